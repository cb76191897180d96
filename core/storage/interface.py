"""What a store is: one listing, ranged reads, small files; and, for storage without rename, objects.

Stores differ in what they can do, and say so in their `Properties`. Code above asks for those, never for a kind of
store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, runtime_checkable

from edl_ckpt.core.storage.location import Location

SMALL_BYTES: Final = 1 << 26
"""More than any file of our own state holds: what is larger is not one, and never read whole."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What a store can do. Commands choose by these how to write, how to lock and how many requests to make."""

    rename: bool
    """A file or directory moves in one step, so a version appears or goes in one step."""
    exchange: bool
    """Two directories change places in one step, where the kernel has it."""
    trash: bool
    """What is deleted can wait to be put back."""
    conditional_write: bool
    """An object is written only if it is not there, or is still the one that was seen: locks can be held."""
    positional_write: bool
    """A file is written at any offset in place, without memory for its open parts."""
    round_trips: bool
    """Each request takes long: more of them are made at a time, and for more bytes each."""
    part_bytes: int = 0
    """Memory for each open part of an object; 0 where files go to the local disk first, or are written in place."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory in a listing: `relative` is its path below the location.

    `modified` is in seconds since the epoch, 0.0 where the store does not say.
    """

    relative: str
    path: str
    is_dir: bool
    size_bytes: int
    modified: float

    @property
    def name(self) -> str:
        """Return the last part of its path."""
        return self.relative.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """Return the directory it is in, as a path below the location; '' for the location itself."""
        return self.relative.rpartition("/")[0]


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


Inside = Callable[[str], bool]
"""Says of a directory, by its path below the location, whether a listing looks into it."""


class Store(Protocol):
    """A file system or object storage, opened at a location."""

    location: Location
    properties: Properties

    def path(self, relative: str) -> str:
        """Return the full path or URL of something below the location, as messages and `open` have it."""
        ...

    def entries(self, inside: Inside) -> list[Entry]:
        """Return what is in the location and in each directory below it that `inside` says to look into.

        A directory comes before what is in it. One that goes while it is listed is left out. Raises NotFoundError when
        there is no such location.
        """
        ...

    def open(self, path: str, *, mapped: bool = False) -> RangeReader:
        """Open a file by its full path; `mapped` is for files that nobody else touches, and allows mappings."""
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


def flat_listing(store: Store, found: Iterable[tuple[str, int, float, bool]], inside: Inside) -> list[Entry]:
    """Return the entries to be listed from a listing of everything: (relative, bytes, modified, is a directory).

    Object storage has no directories of its own: each prefix of a name is one.
    """
    entries: dict[str, Entry] = {}
    for relative, size, modified, is_dir in found:
        shown = True
        for parent in _parents(relative):
            if parent not in entries and shown:
                entries[parent] = Entry(parent, store.path(parent), is_dir=True, size_bytes=0, modified=0.0)
            shown = shown and inside(parent)
        if shown:
            entries.setdefault(relative, Entry(relative, store.path(relative), is_dir, size, modified))
    return list(entries.values())


def _parents(relative: str) -> Iterator[str]:
    at = relative.find("/")
    while at >= 0:
        yield relative[:at]
        at = relative.find("/", at + 1)


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
