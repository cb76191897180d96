"""Bytes: listing a location and reading ranges of its files, on the local disk or through fsspec.

The local disk goes through `os` alone, so that a listing imports nothing and a read is one `pread` (never a
mapping: a file that somebody truncates kills a process that has it mapped).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from edl_ckpt.core.state.paths import STATE_DIR

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


class ObjectWriter(Protocol):
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


class ObjectStore(Store, Protocol):
    """A store without rename: files appear one by one, each whole."""

    part_bytes: int
    """Memory that each open stretch of an object takes; 0 where objects are spooled to the local disk."""

    def new_object(self, relative: str, size_bytes: int) -> ObjectWriter:
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

    def resume_object(self, relative: str, size_bytes: int, record: Mapping[str, Any]) -> ObjectWriter | None:
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


class Sink(Protocol):
    """A file of known size that is written at any offset, from several threads."""

    path: str

    @property
    def bytes_written(self) -> int:
        """Return how many bytes were written so far."""
        ...

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        ...
