"""Uploads of which other processes send parts; the process that began them completes or aborts them.

A part has one writer, and a task that is done twice sends the same bytes under the same number. The storage itself is
the fence: once an upload was completed or aborted, it takes no part. So no late task changes what is published, and no
record of attempts is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.parallel import Resource
from edl_ckpt.core.storage import Location, open_objects
from edl_ckpt.core.storage.interface import PartsWriter, SentPart, Sink, Sinks, has_parts
from edl_ckpt.core.storage.parts import PartMemory, least_part

Source = TypeVar("Source", bound=Resource)


class Extent(NamedTuple):
    """The parts of one target that one task sends."""

    target: int
    edges: tuple[int, ...]
    """Where each part begins in the target, and where the last one ends."""
    first: int
    """The number of the first part."""


def even_edges(start: int, end: int, least: int) -> list[int]:
    """Return where parts end that are of one size, of `least` bytes at least unless all together have fewer.

    >>> even_edges(10, 22, 5), even_edges(10, 13, 5)
    ([16, 22], [13])
    """
    count = max((end - start) // least, 1)
    return [start + (end - start) * number // count for number in range(1, count + 1)]


class TargetPart(NamedTuple):
    """A part that was sent, with the number of its target."""

    target: int
    part: SentPart


class SharedUpload(NamedTuple):
    """An upload as other processes know it."""

    relative: str
    size_bytes: int
    upload_id: str


@dataclass(frozen=True, slots=True)
class SharedUploads:
    """The uploads of a version as a value, by the numbers of their targets; those that are finished are missing."""

    location: Location
    uploads: Mapping[int, SharedUpload]
    part_bytes: int
    """The least that the storage takes for each part but the last."""

    def __repr__(self) -> str:
        return f"<SharedUploads of {self.location.url}>"

    def least_part(self, target: int) -> int:
        """Return how large the parts of a target must be at least, so that there are not too many."""
        return least_part(self.uploads[target].size_bytes, self.part_bytes)

    def only(self, number: int) -> SharedUploads:  # noqa: ARG002 - each upload has an end of its own
        """Return the same: nothing keeps one upload from being finished while others are sent."""
        return self

    @contextmanager
    def opened(
        self,
        numbers: Collection[int],  # noqa: ARG002 - as `StagedTargets`
        extents: Collection[Extent],
        memory: PartMemory,
    ) -> Iterator[SentFiles]:
        """Yield writers of the parts of some targets; at the end all parts are sent, and the writers list them.

        Raises LockedError when an upload was completed or aborted: then the task is not needed any more.
        """
        store = open_objects(self.location)
        if not has_parts(store):
            raise UnsupportedError("this storage takes no parts of objects", path=self.location.url)
        writers: dict[int, list[PartsWriter]] = {}
        for target, edges, first in extents:
            upload = self.uploads[target]
            writer = store.parts_of(upload.relative, upload.upload_id, edges=edges, first=first, memory=memory)
            writers.setdefault(target, []).append(writer)
        files = SentFiles(writers)
        yield files
        files.sent = [
            TargetPart(target, part) for target, some in writers.items() for writer in some for part in writer.sent()
        ]


class SentFiles(Sinks):
    """The targets of a task, by their numbers; bytes for any other target are dropped."""

    def __init__(self, writers: Mapping[int, Sequence[PartsWriter]]) -> None:
        self._writers = {target: _joined(some) for target, some in writers.items()}
        self.sent: list[TargetPart] = []
        """The parts, once they are sent."""

    def __getitem__(self, index: int) -> Sink:
        return self._writers.get(index, _DROPPED)


def _joined(writers: Sequence[PartsWriter]) -> Sink:
    """Return what writes the parts of all of them."""
    return writers[0] if len(writers) == 1 else _Several(writers)


class _Several(Sink):
    """Parts of one target that do not follow each other: each writer drops what is none of its own."""

    def __init__(self, writers: Sequence[PartsWriter]) -> None:
        self._writers = writers
        self.path = writers[0].path

    def write_between(self, between: Iterable[tuple[int, bytes]]) -> None:
        """Give all of them what stands between values."""
        listed = list(between)
        for writer in self._writers:
            writer.write_between(listed)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write the bytes that belong to any of these parts."""
        for writer in self._writers:
            writer.write(offset, data)


class _Dropped:
    """Stands for a target that another task writes."""

    path = ""

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Drop the bytes."""

    def write_between(self, between: object) -> None:
        """Drop the bytes."""


_DROPPED = _Dropped()


class Sending(Generic[Source]):
    """A source, opened, and the memory for the parts that a process fills and sends."""

    def __init__(self, source: Source, memory_bytes: int) -> None:
        self.source = source
        self.memory = PartMemory(memory_bytes)

    @property
    def bytes_read(self) -> int:
        """Return how many bytes of the source were read so far."""
        return self.source.bytes_read

    def close(self) -> None:
        """Stop what is still being sent, and close the source."""
        self.memory.close()
        self.source.close()
