"""Bytes: listing a location and reading ranges of its files, on the local disk or through fsspec.

The local disk goes through `os` alone, so that a listing imports nothing and a read is one `pread` (never a
mapping: a file that somebody truncates kills a process that has it mapped).
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from edl_ckpt.core.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)

SMALL_BYTES: Final = 1 << 24
"""More than any file of our own state holds: what is larger is not one, and never read whole."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory; `modified` in seconds since the epoch, 0.0 where the store does not say."""

    name: str
    path: str
    is_dir: bool
    size_bytes: int
    modified: float


class RangeReader(Protocol):
    """An open file that is read by ranges, from several threads."""

    path: str
    size_bytes: int
    bytes_read: int

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`; raises LockedError when the file has become shorter."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on; errors as `read`."""
        ...

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return bytes without copying them, None where only copies can be had."""
        ...

    def check_unchanged(self) -> None:
        """Raise LockedError when the file is not what it was when it was opened."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Store(Protocol):
    """A filesystem that holds locations; `root` is the location's path on it."""

    root: str

    def scan(self, path: str) -> tuple[list[Entry], dict[str, list[Entry]]]:
        """Return the entries of a directory, and those of each version directory in it by name."""
        ...

    def open(self, path: str) -> RangeReader:
        """Open a file for ranged reads."""
        ...

    def names(self, relative: str) -> dict[str, str]:
        """Return the files of a directory below the location, their paths by their names; {} when there is none."""
        ...

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location, None when there is none."""
        ...


def is_local(location: str) -> bool:
    """Return True for a plain path, and for file:// and local:// URLs.

    >>> is_local("/data/run"), is_local("file:///data/run"), is_local("s3://bucket/run")
    (True, True, False)
    """
    scheme = location.partition("://")[0] if "://" in location else ""
    return scheme in {"", "file", "local"}


def local_path(location: str) -> str:
    """Return the path of a local location.

    >>> local_path("file:///data/run")
    '/data/run'
    """
    return location.partition("://")[2] if "://" in location else location


def open_store(location: str, storage_options: Mapping[str, str] | None = None) -> Store:
    """Return the store of a location; `storage_options` go to fsspec and are an error on a local path's reader."""
    if is_local(location):
        return LocalStore(local_path(location))
    return FsspecStore(location, dict(storage_options or {}))


@contextmanager
def storage_errors(path: str) -> Iterator[None]:  # noqa: C901 - one branch for each kind of failure
    """Turn what an operating system or a store raises into our errors, naming the path."""
    try:
        yield
    except EdlCkptError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError("no such file or directory", path=path) from error
    except NotADirectoryError as error:
        raise NotFoundError("not a directory", path=path) from error
    except IsADirectoryError as error:
        raise NotFoundError("a directory, where a file was expected", path=path) from error
    except PermissionError as error:
        raise AuthError("permission denied", path=path) from error
    except (ConnectionError, TimeoutError) as error:
        raise UnavailableError(f"storage does not answer: {error}", path=path) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise NoSpaceError(os.strerror(error.errno), path=path) from error
        if error.errno == errno.ELOOP:
            raise NotFoundError("symbolic links that go round in a circle", path=path) from error
        if error.errno == errno.ESTALE:
            raise LockedError("the file was replaced on the file server while being read", path=path) from error
        raise EdlCkptError(f"input/output error: {error.strerror or error}", path=path) from error


class LocalReader:
    """A local file read with `pread`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bytes_read = 0
        with storage_errors(path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._stat = os.fstat(self._fd)
        if not stat_module.S_ISREG(self._stat.st_mode):
            os.close(self._fd)
            raise NotFoundError("not a regular file", path=path)
        self.size_bytes = self._stat.st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        with storage_errors(self.path):
            data = os.pread(self._fd, size, offset)
        if len(data) != size:
            buffer = bytearray(size)
            self.read_into(offset, memoryview(buffer))
            return bytes(buffer)
        self.bytes_read += size
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        done = 0
        with storage_errors(self.path):
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
                if count == 0:
                    raise LockedError(
                        f"the file became shorter while it was read ({self.size_bytes} bytes before)",
                        path=self.path,
                        offset=offset + done,
                    )
                done += count
        self.bytes_read += done

    def view(self, offset: int, size: int) -> memoryview | None:  # noqa: ARG002 - of the protocol
        """Return None: a mapping of a file that somebody else may truncate kills the process."""
        return None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def check_unchanged(self) -> None:
        """Raise LockedError when the file's size or time is not what it was when it was opened."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise LockedError(
                "the file changed while it was read; somebody is writing it",
                path=self.path,
                hint="try again when the job has finished saving",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StagedReader(LocalReader):
    """A file in our own staging area, which nobody else touches: what is asked for of it is mapped, not copied.

    One mapping for each view, which ends with it: pages of a mapping count as memory of the process.
    """

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return bytes of the page cache itself, None where the file system has no mappings."""
        import mmap

        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            held = mmap.mmap(self._fd, offset + size - start, prot=mmap.PROT_READ, offset=start)
        except OSError:  # a file system without mappings
            return None
        self.bytes_read += size
        return memoryview(held)[offset - start :]


class LocalStore:
    """Directories and files of the local disk."""

    def __init__(self, root: str) -> None:
        self.root = root

    def scan(self, path: str) -> tuple[list[Entry], dict[str, list[Entry]]]:
        """Return the entries of a directory, and those of each version directory in it by name."""
        from edl_ckpt.core.layout import parse_version_dir

        top = self._entries(path)
        children: dict[str, list[Entry]] = {}
        for entry in top:
            if entry.is_dir and parse_version_dir(entry.name):
                try:
                    children[entry.name] = self._entries(entry.path)
                except NotFoundError:
                    continue  # deleted between the two listings: savers and pruners do that
        return [e for e in top if not (parse_version_dir(e.name) and e.is_dir) or e.name in children], children

    def _entries(self, path: str) -> list[Entry]:
        entries: list[Entry] = []
        with storage_errors(path), os.scandir(path) as found:
            for item in found:
                try:
                    info = item.stat()
                except FileNotFoundError:
                    if item.is_symlink():
                        entries.append(Entry(item.name, item.path, is_dir=False, size_bytes=0, modified=0.0))
                    continue
                except OSError:
                    entries.append(Entry(item.name, item.path, is_dir=False, size_bytes=0, modified=0.0))
                    continue
                is_dir = stat_module.S_ISDIR(info.st_mode)
                size = 0 if is_dir else info.st_size
                entries.append(Entry(item.name, item.path, is_dir, size, info.st_mtime))
        return entries

    def open(self, path: str) -> RangeReader:
        """Open a file for ranged reads."""
        return LocalReader(path)

    def names(self, relative: str) -> dict[str, str]:
        """Return the files of a directory below the location, their paths by their names; {} when there is none."""
        path = os.path.join(self.root, relative)
        try:
            with storage_errors(path):
                return {name: os.path.join(path, name) for name in os.listdir(path)}
        except NotFoundError:
            return {}

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location, None when there is none; errors as reading."""
        try:
            with LocalReader(os.path.join(self.root, relative)) as reader:
                return reader.read(0, min(reader.size_bytes, SMALL_BYTES))
        except NotFoundError:
            return None


class FsspecReader:
    """A file of any fsspec filesystem, read by ranges without its caches."""

    def __init__(self, fs: Any, path: str, shown: str) -> None:
        self.path = shown
        self.bytes_read = 0
        self._fs = fs
        self._path = path
        with storage_errors(shown):
            self.size_bytes = int(fs.info(path)["size"])

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        if size == 0:
            return b""
        with storage_errors(self.path):
            data: bytes = self._fs.cat_file(self._path, start=offset, end=offset + size)
        if len(data) != size:
            raise LockedError(
                f"the file became shorter while it was read ({self.size_bytes} bytes before)",
                path=self.path,
                offset=offset + len(data),
            )
        self.bytes_read += size
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        buffer[:] = self.read(offset, len(buffer))

    def view(self, offset: int, size: int) -> memoryview | None:  # noqa: ARG002 - of the protocol
        """Return None: what comes over a network is a copy."""
        return None

    def close(self) -> None:
        """Release nothing: every read is a request of its own."""

    def check_unchanged(self) -> None:
        """Raise LockedError when the file's size is not what it was when it was opened."""
        with storage_errors(self.path):
            size = int(self._fs.info(self._path)["size"])
        if size != self.size_bytes:
            raise LockedError("the file changed while it was read; somebody is writing it", path=self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FsspecStore:
    """Any filesystem fsspec can open; object stores are listed with one request per thousand names."""

    def __init__(self, location: str, storage_options: dict[str, str]) -> None:
        import fsspec

        options: dict[str, Any] = dict(storage_options)
        if location.startswith(("s3://", "s3a://")):
            options |= {"use_listings_cache": False, "skip_instance_cache": True}
        try:
            with storage_errors(location):
                self._fs, self.root = fsspec.core.url_to_fs(location, **options)
        except ImportError as error:
            raise UnsupportedError(
                f"{error}", path=location, hint="for s3:// install the extra: pip install 'edl-ckpt[s3]'"
            ) from error
        except ValueError as error:
            raise UnsupportedError(f"no such kind of storage: {error}", path=location) from error
        self._url = location.rstrip("/")

    def scan(self, path: str) -> tuple[list[Entry], dict[str, list[Entry]]]:
        """Return the entries of a directory, and those of each version directory in it by name."""
        with storage_errors(self._url):
            found: dict[str, dict[str, Any]] = self._fs.find(path, maxdepth=None, withdirs=True, detail=True)
            if not found and not self._fs.exists(path):
                raise NotFoundError("no such location", path=self._url)
        top: dict[str, Entry] = {}
        children: dict[str, list[Entry]] = {}
        prefix = path.rstrip("/") + "/"
        for full, info in found.items():
            parts = full.removeprefix(prefix).rstrip("/").split("/")
            if not full.startswith(prefix) or not parts[0]:
                continue
            if len(parts) == 1:
                top.setdefault(parts[0], self._entry(parts[0], parts[0], info))
            else:
                top[parts[0]] = Entry(parts[0], f"{self._url}/{parts[0]}", is_dir=True, size_bytes=0, modified=0.0)
                if len(parts) == 2:
                    children.setdefault(parts[0], []).append(self._entry(parts[1], "/".join(parts), info))
        return list(top.values()), children

    def _entry(self, name: str, relative: str, info: dict[str, Any]) -> Entry:
        stamp = info.get("LastModified") or info.get("mtime") or info.get("created") or info.get("modified") or 0.0
        modified = stamp.timestamp() if hasattr(stamp, "timestamp") else float(stamp)
        is_dir = info.get("type") == "directory"
        return Entry(name, f"{self._url}/{relative}", is_dir, int(info.get("size") or 0), modified)

    def names(self, relative: str) -> dict[str, str]:
        """Return the files of a directory below the location, their paths by their names; {} when there is none."""
        try:
            with storage_errors(f"{self._url}/{relative}"):
                found: list[str] = self._fs.ls(f"{self.root.rstrip('/')}/{relative}", detail=False)
        except NotFoundError:
            return {}
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return {name: f"{self._url}/{relative}/{name}" for name in names}

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location, None when there is none."""
        try:
            with storage_errors(f"{self._url}/{relative}"):
                data: bytes = self._fs.cat_file(f"{self.root.rstrip('/')}/{relative}", start=0, end=SMALL_BYTES)
        except NotFoundError:
            return None
        return data

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small file below the location in one request: its old content or the new is seen, never a mixture."""
        with storage_errors(f"{self._url}/{relative}"):
            self._fs.pipe_file(f"{self.root.rstrip('/')}/{relative}", data)

    def remove(self, relative: str) -> None:
        """Remove a file below the location; one that is gone already is no error."""
        try:
            with storage_errors(f"{self._url}/{relative}"):
                self._fs.rm_file(f"{self.root.rstrip('/')}/{relative}")
        except NotFoundError:
            return

    def open(self, path: str) -> RangeReader:
        """Open a file for ranged reads."""
        inner = self.root.rstrip("/") + path.removeprefix(self._url) if path.startswith(self._url) else path
        return FsspecReader(self._fs, inner, path)
