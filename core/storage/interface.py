"""The protocols of storage: one listing, ranged reads and small files; and objects, where nothing can be renamed.

Stores differ in what they can do, and their `Properties` say so. Code in the rooms above asks for a property, never for
a kind of store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeGuard

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, UnsupportedError
from edl_ckpt.core.storage.descriptors import KeptOpen
from edl_ckpt.core.storage.facts import Fact
from edl_ckpt.core.storage.faults import Fault, storage_errors
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.tree import Tree, object_tree

if TYPE_CHECKING:
    from edl_ckpt.core.storage.parts import PartMemory

_AHEAD_BYTES: Final = 1 << 20
"""Bytes that the kernel is asked to read at a time: of more, it may read only the beginning."""
SMALL_BYTES: Final = 1 << 26
"""No file of our own state is larger, so nothing larger is read whole."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What a store can do, by default what object storage can.

    Commands choose how to write, how to lock and how many requests to make by these.
    """

    rename: bool = False
    """A file or directory can be renamed, so a version appears or disappears in one step."""
    trash: bool = False
    """Deleted versions can wait in a trash, and be put back."""
    whole_listings: bool = True
    """A listing without an error has everything that is there. Some file systems of fsspec leave out what fails."""
    positional_write: bool = False
    """A file can be written in place, at any offset, without memory for open parts."""
    round_trips: bool = True
    """Each request takes long, so more requests run at a time, and each asks for more bytes."""
    marks: bool = False
    """Listings and reads show a mark of each file's content, and the store is a `MarkedStore`."""
    part_bytes: int = 0
    """Memory that each open part of an object takes; 0 where files are written in place or through the local disk."""

    def at_a_time(self, requests: int) -> int:
        """Return how many small things are asked for at a time: so many where each is a request, else one."""
        return requests if self.round_trips else 1


class Entry(NamedTuple):
    """One file or directory in a listing; `relative` is its path below the location.

    `modified` is in seconds since the epoch, 0.0 where the store does not say. With a `fault`, it is there and cannot
    be looked at or listed: then the other facts are those that are known, and `is_dir` may be wrong.
    """

    relative: str
    path: str
    is_dir: bool
    size_bytes: int
    modified: float
    fault: Fault | None = None
    linked: bool = False
    """True for a symbolic link: the other facts are those of what it leads to."""
    mark: str = ""
    """What tells the content of a file from any other, such as its ETag; '' where listings show nothing like it."""
    changed_ns: int = 0
    """When a file on a disk last changed, its name and its times too, in nanoseconds; 0 on other storage."""

    @property
    def name(self) -> str:
        """Return the last part of its path."""
        return self.relative.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """Return the path of its directory below the location; '' for the location itself."""
        return self.relative.rpartition("/")[0]


class Level(NamedTuple):
    """The names right in a directory, each with whether it may be a directory; perhaps only the first of them."""

    names: Mapping[str, bool]
    is_whole: bool = True
    """False where there are more names, which were not asked for."""

    @property
    def directories(self) -> list[str]:
        """Return the names of what may be a directory, sorted; a link that leads nowhere may be one."""
        return sorted(name for name, is_directory in self.names.items() if is_directory)


ListedRow = tuple[str, int, float, bool, str]
"""A file, or a directory, of a flat listing: its path below the location, bytes, time, whether a directory, mark."""


class Page(NamedTuple):
    """What one request lists of everything below a location, in the order of the paths."""

    rows: Sequence[ListedRow]
    token: str = ""
    """What the request for the next page says; '' after the last one."""


class RangeReader:
    """An open file; several threads read ranges of it. By itself it holds nothing open, and copies what it reads.

    A subclass has `read` or `read_into`, and the other one follows from it.
    """

    path: str
    size_bytes: int
    bytes_read: int
    block_bytes: int = 0
    """How many bytes a read should ask for at least where more are needed anyway; 0 where reads cost nothing."""
    generation: str = ""
    """What tells the bytes of this opening from those of another one; '' where the storage does not say."""
    mark: str = ""
    """What listings of the store show for these bytes (`Entry.mark`), '' where they show nothing."""

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`; raises LockedError when the file has become shorter."""
        data = bytearray(size)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on; errors as `read`."""
        buffer[:] = self.read(offset, len(buffer))

    def view(self, offset: int, size: int) -> memoryview | None:  # noqa: ARG002 - readers of memory need it
        """Return bytes without copying them; None where that is impossible."""
        return None

    def check_unchanged(self) -> None:
        """Raise LockedError when the file has changed since it was opened, where another process can change it."""

    def shorter(self, offset: int) -> LockedError:
        """Return the error of a file that ends at an offset, and had more bytes when it was opened."""
        words = f"the file became shorter while it was being read; it had {self.size_bytes} bytes"
        return LockedError(words, path=self.path, offset=offset)

    def close(self) -> None:
        """Release the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BytesReader(RangeReader):
    """Bytes that were read already, as those of a file."""

    def __init__(self, data: bytes, path: str) -> None:
        self.path, self._data = path, data
        self.size_bytes = len(data)
        self.bytes_read = 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        if offset + size > self.size_bytes:
            raise self.shorter(self.size_bytes)
        self.bytes_read += size
        return self._data[offset : offset + size]


Inside = Callable[[str], bool]
"""Takes the path of a directory below the location; True when a listing descends into it."""


class Store(Protocol):
    """A file system or object storage, opened at a location."""

    location: Location
    properties: Properties

    def facts(self) -> Iterable[Fact]:
        """Return what is known of it without a write."""

    def path(self, relative: str) -> str:
        """Return the full path or URL of a path below the location, as messages and `open` use it."""

    def entries(self, inside: Inside) -> list[Entry]:
        """Return the entries of the location, and those of each directory below it that `inside` accepts.

        A directory comes before its entries. A directory that disappears meanwhile is left out; one that cannot be
        listed has a fault and no entries. Raises NotFoundError when there is no such location, and the error of the
        location itself.
        """

    def raw_tree(self, relative: str) -> Tree:
        """Return every entry below a directory, raw: hidden ones too, links as links, at any depth.

        Raises NotFoundError when a store with directories has none of that path, RefusedError for one without end.
        """

    def open(self, path: str, *, listed_bytes: int = 0) -> RangeReader:
        """Open a file by its full path; `listed_bytes` is its size in a listing, 0 where nobody knows."""

    def names(self, relative: str) -> dict[str, str]:
        """Return the paths of a directory's files by name; {} when there is no such directory."""

    def level(self, relative: str, most_requests: int) -> Level:
        """Return the names right in a directory; where they take requests, of so many at most. Errors as `names`."""

    def ages(self, relative: str) -> dict[str, float]:
        """Return the seconds since each file of a directory was written, by its name; '' is an object of that path.

        The listing shows everything that was written before, and the ages are by the clock of the storage. 0.0 stands
        for an unknown age.
        """

    def stat(self, relative: str) -> ObjectStat | None:
        """Return the state of a file; None when there is no such file."""

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location; None when there is no such file."""

    def kept_open(self, folder: str) -> AbstractContextManager[None]:
        """Return a block in which `read_small` of many files in a directory of ours takes fewer calls each."""

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small file. A reader sees the old content or the new, never a mixture."""

    def remove(self, relative: str) -> None:
        """Remove a file; a missing one is no error."""


class SentPart(NamedTuple):
    """A part of an unfinished object that the store has."""

    number: int
    size_bytes: int
    etag: str
    verified: bool
    """True when the store reported its checksum, and that was right."""
    crc32c: str = ""
    """The checksum that the store keeps of it and wants again at the end, in base64; '' without one."""


class Sink(Protocol):
    """A file of known size; several threads write to it, at any offset."""

    path: str

    def write_between(self, between: Iterable[tuple[int, bytes]]) -> None:
        """Write the (offset, bytes) that stand between values, at once or with the values beside them."""
        for offset, data in between:
            self.write(offset, data)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""


class ObjectWriter(Sink, Protocol):
    """A new object of known size; it is visible once completed. Each byte must be written exactly once.

    A class that implements it inherits what an object does that is uploaded whole.
    """

    size_bytes: int
    bytes_written: int = 0
    completed: bool = False
    """True once it is visible."""
    upload_id: str = ""
    """The store's name for the unfinished object; '' when the store has nothing of it yet."""
    write_id: str = ""
    """A mark on the object that identifies it as ours; '' where the store keeps no such mark."""
    verified: bool = False
    """True when the store reported the checksum of every part, and all of them were right."""

    def begin(self) -> str:
        """Begin; return the store's name for the unfinished object, '' when it has none."""
        return ""

    def finish(self) -> None:
        """Make sure that every byte was written and is safe on the store."""

    def take(self, parts: Iterable[SentPart]) -> None:  # noqa: ARG002 - uploads need it
        """Take parts that other processes have sent; UnsupportedError where an object has none."""
        raise UnsupportedError("this storage takes no parts of objects", path=self.path)

    def join(self, parts: Iterable[SentPart]) -> None:
        """Take all parts, in this order, of an object whose size is theirs; numbers may be missing between theirs."""
        self.take(parts)

    def complete(self, *, replace: bool = False) -> None:
        """Make the object visible, whole. Raises RefusedError when the name is taken, unless `replace` is set."""

    def abort(self) -> None:
        """Discard the object, unless it was completed."""


class ObjectStore(Store, Protocol):
    """A store without rename. Files appear one by one, each of them whole.

    A class that implements it inherits what a store without uploads and without directories does.
    """

    def path(self, relative: str) -> str:
        """Return the full URL of something below the location."""
        return f"{self.location.url.rstrip('/')}/{relative}"

    def raw_tree(self, relative: str) -> Tree:
        """Return every object below a directory."""

        def inside(path: str) -> bool:
            return f"{path}/".startswith(f"{relative}/" if relative else "") or relative.startswith(f"{path}/")

        return object_tree(relative, self.entries(inside))

    def kept_open(self, folder: str) -> AbstractContextManager[None]:  # noqa: ARG002 - there are no directories
        """Return a block that changes nothing."""
        return nullcontext()

    def new_object(self, relative: str, size_bytes: int, memory: PartMemory | None = None) -> ObjectWriter:
        """Begin a file of a known size below the location; objects with one `memory` for parts keep its bound."""

    def remove_many(self, relatives: Sequence[str]) -> None:
        """Remove as many files as can be removed; raise the error of the first other one. Missing ones are no error."""
        for error in self.remove_each(relatives).values():
            raise error

    def tried(self, relative: str) -> Iterable[Fact]:  # noqa: ARG002 - a service has requests of its own
        """Return what else it does with a small file of ours, which the caller removes."""
        return ()

    def remove_each(self, relatives: Sequence[str]) -> dict[str, EdlCkptError]:
        """Remove as many of these files as can be removed; return the error of each other one."""

    def abort_upload(self, relative: str, upload_id: str) -> bool:  # noqa: ARG002 - as `tried`
        """Discard an unfinished object; a missing one is no error. False where the service cannot discard any."""
        return True

    def open_uploads(self) -> Iterable[OpenUpload]:
        """Return the unfinished objects below the location."""
        return ()

    def resume_object(self, relative: str, size_bytes: int, upload_id: str, write_id: str) -> ObjectWriter | None:  # noqa: ARG002
        """Return an unfinished object that has all its bytes; None when it is gone."""
        return None

    def remove_directory(self, relative: str) -> None:  # noqa: ARG002 - as `tried`
        """Remove a directory if it is empty, on a store that has directories."""
        return

    def remove_directories(self, relatives: Iterable[str]) -> None:
        """Remove those directories that are empty, inner ones first; on a service of keys, what marks them there."""
        for relative in sorted(relatives, reverse=True):
            self.remove_directory(relative)

    def tree(self, relative: str) -> list[str]:
        """Return the paths, below the location, of all files in a directory and its subdirectories."""


class MarkedStore(ObjectStore, Protocol):
    """A store whose listings show a mark of each file's content (`Entry.mark`)."""

    def below(self, relative: str, inside: Inside) -> list[Entry]:
        """Return the entries below one directory, as `entries` has them; nothing when there is no such directory."""

    def page(self, after: str = "", token: str = "") -> Page:
        """Return what one request lists of everything: after a name, or from where another page ended, or from the top.

        Some services take no name, and list from the top.
        """

    def few(self, inside: Inside) -> list[Entry] | None:
        """Return the entries of a location if one request can list them, else None; errors as `entries`."""

    def read_marked(self, relative: str) -> tuple[bytes, str] | None:
        """Return the whole of a small file and the mark of these bytes; None when there is no such file."""

    def write_over(self, relative: str, data: bytes, seen: ObjectStat | None) -> None:
        """Write a small file in place of the one that was seen, None for none; LockedError when another one is there.

        Where the service knows no conditional writes it is written in any case.
        """


class PartsWriter(Sink, Protocol):
    """Some parts of an unfinished object that another process completes; what belongs to other parts is dropped."""

    def sent(self) -> list[SentPart]:
        """Make sure that every byte is safe on the store, and return the parts; EdlCkptError when one is missing."""


class PartsStore(ObjectStore, Protocol):
    """A store of objects whose parts several processes can write (`Properties.part_bytes`)."""

    def parts_of(
        self, relative: str, upload_id: str, *, edges: Sequence[int], first: int, memory: PartMemory
    ) -> PartsWriter:
        """Return a writer of the parts between `edges`, offsets in the object, from part number `first` on."""

    def copy_object(self, source: ObjectWriter, target: ObjectWriter) -> None:
        """Fill a new object with the bytes of a completed one of this process and size; no byte goes through here."""


def has_parts(store: Store) -> TypeGuard[PartsStore]:
    """Say whether several processes can write the parts of one object."""
    return store.properties.part_bytes > 0


def lists_marks(store: Store) -> TypeGuard[MarkedStore]:
    """Say whether the listings of a store show marks."""
    return store.properties.marks


class OpenUpload(NamedTuple):
    """An unfinished object on a store: still being written, or abandoned."""

    relative: str
    upload_id: str
    age_seconds: float


class ObjectStat(NamedTuple):
    """The state of a file: size, ETag, age by the store's clock, and what identifies its writing, if anything.

    `modified` is when it was last written, in seconds since the epoch, as a listing shows it.
    """

    size_bytes: int
    etag: str
    age_seconds: float
    write_id: str | None = None
    modified: float = 0.0

    @property
    def mark(self) -> str:
        """Return what tells the file from others of its name; without a write id its size, which proves little.

        >>> ObjectStat(5, "", 0.0, "20261121T211600-host_7-1-0a1b2c3d").mark, ObjectStat(255, "", 0.0).mark
        ('20261121T211600-host_7-1-0a1b2c3d', 'size_ff')
        """
        return self.write_id or f"size_{self.size_bytes:x}"


def flat_listing(store: Store, found: Iterable[ListedRow], inside: Inside) -> list[Entry]:
    """Return the entries that `inside` selects from a listing of everything: (relative, bytes, modified, is_dir, mark).

    Object storage has no directories; each prefix of a name counts as one.
    """
    entries: dict[str, Entry] = {}
    for relative, size, modified, is_dir, mark in found:
        shown = True
        for parent in accumulate(relative.split("/")[:-1], "{}/{}".format):
            if parent not in entries and shown:
                entries[parent] = Entry(parent, store.path(parent), is_dir=True, size_bytes=0, modified=0.0)
            shown = shown and inside(parent)
        if shown:
            entries.setdefault(relative, Entry(relative, store.path(relative), is_dir, size, modified, mark=mark))
    return list(entries.values())


class RemoteReader(RangeReader):
    """The common part of remote readers: every read is one request."""

    block_bytes = 4 << 20
    """What a connection moves in twice the time that a request waits; each worker has memory for one block."""


class OnDisk(KeptOpen):
    """The common part of readers and sinks of the local disk: the compiled kernel may read or write them itself."""

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the open file."""
        return self._fd

    def add_moved(self, size_bytes: int) -> None:
        """Count bytes that the kernel has read or written."""
        raise NotImplementedError

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        with storage_errors(self.path):
            if self.is_kept_open:
                self._read_from(self._fd, offset, buffer)
                return
            with self.used() as fd:
                self._read_from(fd, offset, buffer)

    def _read_from(self, fd: int, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = os.preadv(fd, [buffer[done:]], offset + done)
            if count == 0:
                raise self.failed(-1, offset + done)
            done += count

    def will_need(self, offset: int, size_bytes: int) -> None:
        """Let the system begin to read some bytes, so that the disk works beside the look at those before them.

        It reads ahead of one thread for each open file, and two that read the same file look to it like jumps.
        """
        for at in range(offset, offset + size_bytes, _AHEAD_BYTES):
            self._advise(at, min(_AHEAD_BYTES, offset + size_bytes - at), os.POSIX_FADV_WILLNEED)

    def will_not_need(self, offset: int, size_bytes: int) -> None:
        """Let the system use the memory of some bytes of the page cache for others; those of the disk stay."""
        self._advise(offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def _advise(self, offset: int, size_bytes: int, advice: int) -> None:
        with suppress(OSError):  # advice only: the read raises the error; -1 for a file that is not kept open
            os.posix_fadvise(self._fd, offset, size_bytes, advice)

    def failed(self, error: int, offset: int) -> EdlCkptError:  # noqa: ARG002 - a reader says where
        """Return what the number of a system's error means here; -1 for a file that has become shorter."""
        if error < 0:
            return EdlCkptError("the file became shorter while it was being written", path=self.path)
        return Fault.of(OSError(error, os.strerror(error)), self.path).error()


def is_on_disk(file: object) -> TypeGuard[OnDisk]:
    """Say whether the kernel may read or write a file itself."""
    return isinstance(file, OnDisk) and file.is_kept_open


class Sinks(Protocol):
    """Files by their numbers, each opened when it is written first, or all of them."""

    def __getitem__(self, number: int, /) -> Sink: ...
