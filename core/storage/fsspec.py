"""Any file system that fsspec can open: ranged reads without fsspec's caches, writes through the local disk.

Nothing is known of such a filesystem but that a file appears when it is put there: no rename, no condition, no lock. So
a new file is written to a local one without a name, and put in its place whole when it is completed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from edl_ckpt.core.base.errors import (
    EdlCkptError,
    LockedError,
    NotFoundError,
    RefusedError,
    ReplacedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.storage.facts import Fact, Verdict
from edl_ckpt.core.storage.faults import Fault, storage_errors
from edl_ckpt.core.storage.files import ScratchFile
from edl_ckpt.core.storage.interface import (
    SMALL_BYTES,
    Entry,
    Inside,
    Level,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Properties,
    RangeReader,
    RemoteReader,
    flat_listing,
)
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.parts import PartMemory

_FAULT: Final = "fault"
_WITH_HOST: Final = frozenset({"ftp", "ftps", "http", "https", "sftp", "ssh", "webhdfs"})


@contextmanager
def client_errors(path: str) -> Iterator[None]:
    """Translate errors as `storage_errors` does; also say what a file system of fsspec lacks."""
    try:
        with storage_errors(path):
            yield
    except ImportError as error:
        raise UnsupportedError(f"{error}", path=path, hint="install the package that it needs") from error
    except NotImplementedError as error:
        raise UnsupportedError("this storage cannot do that", path=path) from error


class FsspecReader(RemoteReader):
    """A file of any fsspec file system, read by ranges without its caches."""

    def __init__(self, fs: Any, path: str, shown: str) -> None:
        self.path = shown
        self.bytes_read = 0
        self._fs = fs
        self._path = path
        with client_errors(shown):
            info = fs.info(path)
        self.size_bytes = int(info["size"])
        self._opened = _generation(info)

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        if size == 0:
            return b""
        data: bytes = self._ask("cat_file", start=offset, end=offset + size)
        if len(data) == self.size_bytes:  # some HTTP servers ignore ranges
            data = data[offset : offset + size]
        if len(data) != size:
            raise self.shorter(offset + len(data))
        self.bytes_read += size
        return data

    def check_unchanged(self) -> None:
        """Raise LockedError when the file's size, ETag or time is not what it was when it was opened."""
        if _generation(self._ask("info")) != self._opened:
            raise LockedError("the file changed while it was being read; another process is writing it", path=self.path)

    def _ask(self, method: str, **parameters: int) -> Any:
        try:
            with client_errors(self.path):
                return getattr(self._fs, method)(self._path, **parameters)
        except NotFoundError:
            raise ReplacedError("the file was removed while it was being read", path=self.path) from None


class FsspecStore(ObjectStore):
    """A location on any file system of fsspec."""

    properties = Properties(whole_listings=False)

    def __init__(self, location: Location) -> None:
        import fsspec

        self.location = location
        self._url = location.url.rstrip("/")

        if location.scheme in _WITH_HOST and not _has_host(location.url):
            raise UsageError(f"expected {location.scheme}://HOST/PATH, got no host", path=location.url)
        try:
            with client_errors(location.url):
                self._fs, self._root = fsspec.core.url_to_fs(location.url, **location.options)
        except ValueError as error:
            hint = "expected a path, s3://, or a kind that fsspec knows, such as gs://, abfs:// or hdfs://"
            scheme, _, rest = location.url.partition("://")
            hint = hint if scheme.islower() else f"did you mean {scheme.lower()}://{rest}?"
            raise UnsupportedError(f"unknown kind of storage: {error}", path=location.url, hint=hint) from error
        except TypeError as error:  # its constructor wants arguments that a URL cannot give
            raise UsageError(
                f"this storage needs other options: {error}", path=location.url, hint="--storage-option KEY=VALUE"
            ) from error

    def _inner(self, relative: str) -> str:
        return f"{self._root.rstrip('/')}/{relative}"

    def entries(self, inside: Inside) -> list[Entry]:
        """Return the entries of the location: from one listing of all, or one for each directory."""
        found = list(self._found("", inside))
        if not found:
            with client_errors(self._url):
                self._fs.info(self._root)  # unlike `exists`, it says why
        # HTTP's listings are pages of links, without sizes.
        unknown = [relative for relative, info in found if info.get("size") is None and not _is_dir(info)]
        known = dict(zip(unknown, run_parallel(self._info, unknown, REMOTE_WORKERS), strict=True))
        facts = ((name, known.get(name, info)) for name, info in found)
        faults = {name: info[_FAULT] for name, info in found if _FAULT in info}
        rows = ((n, int(i.get("size") or 0), _modified(i), _is_dir(i), "") for n, i in facts if i is not None)
        entries = flat_listing(self, rows, inside)
        return [e._replace(fault=faults[e.relative]) if e.relative in faults else e for e in entries]

    def _info(self, relative: str) -> Mapping[str, Any] | None:
        """Return what is known of a file; None when there is no such file."""
        with suppress(NotFoundError), client_errors(self.path(relative)):
            return dict(self._fs.info(self._inner(relative)))
        return None

    def _found(self, relative: str, inside: Inside) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield what is below a directory, and once more, with its fault, a directory that cannot be listed.

        fsspec's own walk, which `find` is unless a class has a better one, leaves out what it cannot list.
        """
        top, shown = (self._inner(relative), self.path(relative)) if relative else (self._root, self._url)
        if _finds_at_once(self._fs):
            with client_errors(shown):
                found = self._fs.find(top, maxdepth=None, withdirs=True, detail=True)
            yield from self._named(found.items(), relative)
            return
        try:
            with client_errors(shown):
                listed = self._fs.ls(top, detail=True)
        except NotFoundError:
            return
        except (UnavailableError, UnsupportedError):
            raise  # a fault of the storage, not of the directory
        except EdlCkptError as error:
            if not relative:
                raise
            yield relative, {"type": "directory", _FAULT: Fault.of(error, shown)}
            return
        for name, info in self._named(((info["name"], info) for info in listed), relative):
            yield name, info
            if _is_dir(info) and inside(name):
                yield from self._found(name, inside)

    def _named(
        self, found: Iterable[tuple[str, Mapping[str, Any]]], relative: str
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield files and directories by their paths below the location, without the directory itself."""
        prefix = self._root.rstrip("/") + "/"
        for full, info in found:
            name = full.removeprefix(prefix).rstrip("/")
            if full.startswith(prefix) and name not in {"", relative}:
                yield name, info

    def facts(self) -> Iterator[Fact]:
        """Yield what is known of the file system: little, as fsspec's have little in common."""
        yield Fact("file system", f"fsspec: {type(self._fs).__name__}")
        why = "a version appears file by file, and no trash can be kept"
        yield Fact("rename", "not used", Verdict.WEAKER, why)
        why = "its listings may omit unreadable entries, so nothing is removed because it is not listed"
        yield Fact("whole listings", "not certain", Verdict.WEAKER, why)

    def names(self, relative: str) -> dict[str, str]:
        """Return the paths of a directory's files by name; {} when there is no such directory."""
        listed: list[str] = []
        with suppress(NotFoundError), client_errors(self.path(relative)):
            listed = self._fs.ls(self._inner(relative).rstrip("/"), detail=False)
        names = (path.rstrip("/").rpartition("/")[2] for path in listed)
        return {name: self.path(f"{relative}/{name}" if relative else name) for name in names}

    def level(self, relative: str, most_requests: int) -> Level:  # noqa: ARG002 - a directory is listed at once
        """Return the names right in a directory."""
        listed: list[Mapping[str, Any]] = []
        with suppress(NotFoundError), client_errors(self.path(relative)):
            listed = self._fs.ls(self._inner(relative).rstrip("/"), detail=True)
        return Level({info["name"].rstrip("/").rpartition("/")[2]: _is_dir(info) for info in listed})

    def tree(self, relative: str) -> list[str]:
        """Return all files below a directory, as paths below the location."""
        found = list(self._found(relative, lambda _: True))
        for _, info in found:
            if _FAULT in info:
                raise info[_FAULT].error()
        return [name for name, info in found if not _is_dir(info)]

    def ages(self, relative: str) -> dict[str, float]:
        """Return the seconds since each file of a directory was written, by its name and by the clock of this host."""
        self._fs.invalidate_cache()  # else some file systems show what they listed before
        top = self._inner(relative)
        listed: list[Mapping[str, Any]] = []
        with suppress(NotFoundError), client_errors(self.path(relative)):
            listed = self._fs.ls(top, detail=True)
        now = time.time()
        stamps = {info["name"].rstrip("/").removeprefix(top).removeprefix("/"): _modified(info) for info in listed}
        return {name: now - stamp if stamp else 0.0 for name, stamp in stamps.items()}

    def open(self, path: str, *, listed_bytes: int = 0) -> RangeReader:  # noqa: ARG002 - the protocol has it
        """Open a file for ranged reads."""
        return FsspecReader(self._fs, self._inner(path.removeprefix(f"{self._url}/")), path)

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location, None when there is none."""
        with suppress(NotFoundError), client_errors(self.path(relative)):
            return bytes(self._fs.cat_file(self._inner(relative), start=0, end=SMALL_BYTES))
        return None

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small file in one request. A reader sees the old content or the new, never a mixture."""
        with client_errors(self.path(relative)):
            self._fs.makedirs(os.path.dirname(self._inner(relative)), exist_ok=True)
            self._fs.pipe_file(self._inner(relative), data)

    def remove(self, relative: str) -> None:
        """Remove a file; a missing one is no error."""
        with suppress(NotFoundError), client_errors(self.path(relative)):
            self._fs.rm_file(self._inner(relative))

    def remove_each(self, relatives: Sequence[str]) -> dict[str, EdlCkptError]:
        """Remove as many of these files as can be removed; return the error of each other one."""
        failed: dict[str, EdlCkptError] = {}
        for relative in relatives:
            try:
                self.remove(relative)
            except EdlCkptError as error:
                failed[relative] = error
        return failed

    def remove_directory(self, relative: str) -> None:
        """Remove a directory if it is empty."""
        with suppress(EdlCkptError, OSError), client_errors(self.path(relative)):
            self._fs.rmdir(self._inner(relative))

    def stat(self, relative: str) -> ObjectStat | None:
        """Return a file's size and age, None when there is none."""
        info = self._info(relative)
        if info is None:
            return None
        modified = _modified(info)
        return ObjectStat(int(info.get("size") or 0), "", time.time() - modified, modified=modified)

    def new_object(self, relative: str, size_bytes: int, memory: PartMemory | None = None) -> Spool:  # noqa: ARG002
        """Begin a file of a known size. It has no parts, so it needs no memory."""
        return Spool(self, relative, size_bytes)

    def put(self, local: str, relative: str, *, replace: bool) -> None:
        """Copy a local file to its place; after a failure remove what arrived of it."""
        with client_errors(self.path(relative)):
            if not replace and self._fs.exists(self._inner(relative)):
                raise RefusedError("already exists; nothing was changed", path=self.path(relative))
            try:
                self._fs.makedirs(os.path.dirname(self._inner(relative)), exist_ok=True)
                self._fs.put_file(local, self._inner(relative))
            except BaseException:
                self.remove(relative)
                raise


class Spool(ObjectWriter):
    """A new file, kept in a nameless local file until it is completed."""

    def __init__(self, store: FsspecStore, relative: str, size_bytes: int) -> None:
        self.path = store.path(relative)
        self.size_bytes = size_bytes
        self._store = store
        self._relative = relative
        self._file = ScratchFile(size_bytes)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        self._file.write(offset, data)
        self.bytes_written = self._file.bytes_written

    def finish(self) -> None:
        """Raise EdlCkptError when not every byte was written."""
        if self._file.bytes_written != self.size_bytes:
            raise EdlCkptError("not every byte of the file was written", path=self.path)

    def complete(self, *, replace: bool = False) -> None:
        """Put the file in its place."""
        self._store.put(self._file.link, self._relative, replace=replace)
        self.completed = True
        self.abort()

    def abort(self) -> None:
        """Drop the local file."""
        self._file.close()


def _has_host(url: str) -> bool:
    """Say whether a URL can be parsed and names a host."""
    from urllib.parse import urlsplit

    with suppress(ValueError):
        return bool(urlsplit(url).hostname)
    return False


def _finds_at_once(fs: Any) -> bool:
    """Say whether a file system has a listing of everything of its own, and not fsspec's walk, which hides errors."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    async_find = AsyncFileSystem._find  # noqa: SLF001 - what its subclasses override
    return type(fs).find is not AbstractFileSystem.find or getattr(type(fs), "_find", async_find) is not async_find


def _generation(info: Mapping[str, Any]) -> tuple[int, Any]:
    """Return a value that changes when the file is written again."""
    return int(info["size"]), info.get("ETag") or info.get("etag") or _modified(info)


def _modified(info: Mapping[str, Any]) -> float:
    stamp = info.get("LastModified") or info.get("mtime") or info.get("created") or info.get("modified") or 0.0
    return float(stamp.timestamp() if hasattr(stamp, "timestamp") else stamp)


def _is_dir(info: Mapping[str, Any]) -> bool:
    return info.get("type") == "directory"
