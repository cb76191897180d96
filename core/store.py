"""Bytes: listing a location and reading ranges of its files, on the local disk or through fsspec.

The local disk goes through `os` alone, so that a listing imports nothing and a read is one `pread` (never a
mapping: a file that somebody truncates kills a process that has it mapped).
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from edl_ckpt.core.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
)
from edl_ckpt.core.layout import STATE_DIR, parse_version_dir

SMALL_BYTES: Final = 1 << 26
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


class Scan(NamedTuple):
    """What a location holds: its entries, those of each version directory, and what there is of our own state.

    `state` has the paths below the location, None where the listing did not tell them.
    """

    top: list[Entry]
    children: dict[str, list[Entry]]
    state: tuple[str, ...] | None


class Store(Protocol):
    """A filesystem that holds a location; `root` is the location's path on it."""

    root: str
    location: str
    is_remote: bool
    """True where a request takes long, and nothing is renamed."""

    def scan(self, path: str) -> Scan:
        """Return what is in a directory and in each version directory in it."""
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

    def write_small(self, relative: str, data: bytes) -> None:
        """Put a small file in its place: its old content or the new is seen, never a mixture."""
        ...

    def remove(self, relative: str) -> None:
        """Remove a file; one that is gone already is no error."""
        ...


class NewObject(Protocol):
    """A file of known size on a remote store, written at any offset from several threads, seen when it is completed."""

    path: str
    size_bytes: int
    bytes_written: int
    completed: bool
    """True once it is visible."""
    upload_id: str
    """What names the unfinished object to the store; '' where there is nothing unfinished on it."""
    write_id: str
    """What tells on the store that an object is this one; '' where nothing can be written beside it."""
    verified: bool
    """True when the store has told the sums of all that it got, and they were right."""

    def begin(self) -> str:
        """Begin; return what names the unfinished object to the store, '' where it has no name."""
        ...

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`; every byte is to be written once."""
        ...

    def finish(self) -> None:
        """Make sure that every byte was written and is safe."""
        ...

    def complete(self, *, replace: bool = False) -> None:
        """Make it visible, whole; RefusedError when the name is taken, unless what is there is to be replaced."""
        ...

    def abort(self) -> None:
        """Drop it; what was completed stays."""
        ...


class RemoteStore(Store, Protocol):
    """A store without rename: files appear one by one, each whole."""

    part_bytes: int
    """Memory that each open stretch of an object takes; 0 where objects are spooled to the local disk."""

    def new_object(self, relative: str, size_bytes: int) -> NewObject:
        """Begin a file of a known size below the location."""
        ...

    def stat(self, relative: str) -> ObjectStat | None:
        """Return what is known of a file, None when there is none."""
        ...

    def remove_many(self, relatives: Sequence[str]) -> None:
        """Remove files; those that are gone already are no error."""
        ...

    def abort_upload(self, relative: str, upload_id: str) -> None:
        """Drop an unfinished object; one that is gone already is no error."""
        ...

    def open_uploads(self) -> Iterable[OpenUpload]:
        """Return the unfinished objects below the location."""
        ...

    def resume_object(self, relative: str, size_bytes: int, record: Mapping[str, Any]) -> NewObject | None:
        """Return an unfinished object all of whose bytes came, by its upload_id and write_id; None when it is gone."""
        ...

    def remove_directory(self, relative: str) -> None:
        """Remove a directory that is empty now, where the store has any."""
        ...

    def tree(self, relative: str) -> list[str]:
        """Return all files below a directory, as paths below the location."""
        ...


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """An unfinished object on a store: being written, or left."""

    relative: str
    upload_id: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """A remote file: its size, the tag of its generation, its age by the store's clock, and who wrote it, if told."""

    size_bytes: int
    etag: str
    age_seconds: float
    write_id: str | None = None


@runtime_checkable
class ConditionalStore(Protocol):
    """A store that writes an object only if it still is, or still is not, there."""

    def write_if(self, relative: str, data: bytes, *, etag: str) -> str:
        """Write where the object has this ETag, '' for none; return the new one, '' when it has another."""
        ...

    def stat(self, relative: str) -> ObjectStat | None:
        """Return what is known of a file, None when there is none."""
        ...

    def remove(self, relative: str) -> None:
        """Remove a file; one that is gone already is no error."""
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
    """Return the store of a location; `storage_options` go to S3 or fsspec, and mean nothing on a local path."""
    if is_local(location):
        return LocalStore(local_path(location))
    return open_remote(location, storage_options)


def open_remote(location: str, storage_options: Mapping[str, str] | None = None) -> RemoteStore:
    """Return the store of a location that is not local."""
    if location.startswith(("s3://", "s3a://")):
        from edl_ckpt.core.s3 import S3Store

        return S3Store(location, storage_options or {})
    from edl_ckpt.core.remote import FsspecStore

    return FsspecStore(location, storage_options or {})


def scan_of(location: str, found: Iterable[tuple[str, int, float, bool]]) -> Scan:
    """Return a scan from one listing of everything: (path below the location, bytes, modified, is a directory)."""
    top: dict[str, Entry] = {}
    children: dict[str, list[Entry]] = {}
    state: list[str] = []
    for relative, size, modified, is_dir in found:
        first, *rest = relative.split("/")
        if not rest:
            top.setdefault(first, Entry(first, f"{location}/{first}", is_dir, size, modified))
            continue
        top[first] = Entry(first, f"{location}/{first}", is_dir=True, size_bytes=0, modified=0.0)
        if first == STATE_DIR:
            state.append(relative)
        elif len(rest) == 1 and rest[0]:
            children.setdefault(first, []).append(Entry(rest[0], f"{location}/{relative}", is_dir, size, modified))
    return Scan(list(top.values()), children, tuple(state))


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


class RemoteReader:
    """What readers of remote files have in common: every read is a request of its own."""

    path: str
    size_bytes: int
    bytes_read: int

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        raise NotImplementedError

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        buffer[:] = self.read(offset, len(buffer))

    def view(self, offset: int, size: int) -> memoryview | None:  # noqa: ARG002 - of the protocol
        """Return None: what comes over a network is a copy."""
        return None

    def close(self) -> None:
        """Release nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalStore:
    """Directories and files of the local disk."""

    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = root
        self.location = root

    def scan(self, path: str) -> Scan:
        """Return what is in a directory and in each version directory in it."""
        top = self._entries(path)
        children: dict[str, list[Entry]] = {}
        for entry in top:
            if entry.is_dir and parse_version_dir(entry.name):
                try:
                    children[entry.name] = self._entries(entry.path)
                except NotFoundError:
                    continue  # deleted between the two listings: savers and pruners do that
        kept = [e for e in top if not (parse_version_dir(e.name) and e.is_dir) or e.name in children]
        return Scan(kept, children, None)

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

    def write_small(self, relative: str, data: bytes) -> None:
        """Put a small file in its place: staged, flushed, then one rename."""
        from edl_ckpt.core.publish import Staging, replace_file

        with Staging(self.root, "metadata") as staging:
            replace_file(staging, os.path.join(self.root, relative), data)

    def remove(self, relative: str) -> None:
        """Remove a file, and the directories of our state that are empty then; one that is gone is no error."""
        path = os.path.join(self.root, relative)
        with storage_errors(path), suppress(FileNotFoundError):
            os.unlink(path)
        with suppress(OSError):  # not empty
            os.rmdir(os.path.dirname(path))
            os.rmdir(os.path.join(self.root, STATE_DIR))
