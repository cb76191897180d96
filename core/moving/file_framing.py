"""The framing of the files of any system, with the checksums of values that some of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.converting.destinations.interface import Destination
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.moving.extents import ExtentSinks, Span
from edl_ckpt.core.moving.framing import Crcs, Framing
from edl_ckpt.core.moving.sums import SummedSink
from edl_ckpt.core.storage.interface import OnDisk, RangeReader, Sink, Sinks, is_on_disk

_PIECE_BYTES: Final = 4 << 20
Opened = Callable[[str], AbstractContextManager[RangeReader]]
"""Opens a file that goes along."""


class FileFraming(Framing):
    """That of the files of other systems, files that go along, and values that are computed.

    Where it has checksums of values, it is written after them. Then files that cannot be read back are summed while
    they are written, and of others the rows, which come in any order, are read back.
    """

    def __init__(self, destination: Destination, opened: Opened, files: Sequence[Sink], job: Job) -> None:
        """Take files that are laid out, what opens those that go along, and all of them in their order."""
        self._destination, self._opened, self._plain, self._job = destination, opened, files, job
        self._memory = ThreadMemory()
        self._summed = list(destination.summed) if destination.checksum else []
        self._crcs = {(file, offset): Crc32(destination.checksum) for _, file, offset, _ in self._summed}
        self._sums_computed = False
        is_read_back = not self._summed or all(map(is_on_disk, files))
        self.files: Sinks = files if is_read_back else self._summing(files)
        self.crcs: Crcs = self._crcs if is_read_back else {}

    def _summing(self, files: Sequence[Sink]) -> Sequence[Sink]:
        """Return the files, which sum what is written to them."""
        sums: dict[int, dict[int, Crc32]] = {}
        sizes: dict[int, dict[int, int]] = {}
        apart = {place[:2] for place in self._destination.computed} if self._sums_computed else set()
        for _, file, offset, size in self._summed:
            if size and (file, offset) not in apart:  # values of no bytes may begin where others do
                sums.setdefault(file, {})[offset] = self._crcs[file, offset]
                sizes.setdefault(file, {})[offset] = size
        return [
            SummedSink(file, sums[number], sizes[number]) if number in sums else file
            for number, file in enumerate(files)
        ]

    def only(self, spans: Mapping[int, Sequence[Span]]) -> None:
        """Write only these bytes; they are summed as they are written, and computed values by themselves."""
        self._sums_computed = True
        self.files = ExtentSinks(self._summing(self._plain), spans)
        self.crcs = {}

    def write_before(self) -> None:
        """Write it before the values where it has no checksums, so that the parts of uploads are whole soon."""
        if not self._destination.checksum:
            self._write({})

    def take(self, crcs: Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]) -> None:
        """Take the checksums of pieces that another process has written."""
        for place, pieces in crcs.items():
            self._crcs[place].take(pieces)

    def write_after(self) -> None:
        """Write files that go along, computed values, and framing with checksums."""
        for name in self._destination.carried:
            self._carry(name)
        for file, offset, data in self._destination.computed:
            self.files[file].write(offset, data)
            if self._sums_computed and (file, offset) in self._crcs:
                self._crcs[file, offset].add(0, data)
        if self._destination.checksum:
            self._write(self._sums())

    def _write(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Write all that is no value and no id, given the checksum of each value."""
        for file, offset, data in self._destination.literals(sums):
            self.files[file].write(offset, data)

    def _carry(self, name: str) -> None:
        """Copy a file that is none of the system's own."""
        sink = self.files[self._destination.number(name)]
        with self._opened(name) as reader:
            for start in range(0, reader.size_bytes, _PIECE_BYTES):
                sink.write(start, reader.read(start, min(_PIECE_BYTES, reader.size_bytes - start)))
            reader.check_unchanged()

    def _sums(self) -> dict[tuple[str, int], int]:
        """Return the checksums of what the files have, where rows came in any order read back from them."""
        pieces: dict[tuple[str, int], Crc32] = {}

        def tasks() -> Iterator[tuple[tuple[str, int], int, int, int, int]]:
            for key, file, offset, size in self._summed:
                pieces[key] = self._crcs[file, offset]
                if pieces[key].size_bytes == size:
                    continue
                pieces[key] = Crc32(self._destination.checksum)
                for start in range(0, size, _PIECE_BYTES):
                    yield key, file, offset, start, min(_PIECE_BYTES, size - start)

        def add(task: tuple[tuple[str, int], int, int, int, int]) -> None:
            key, file, offset, start, size = task
            data, sink = self._memory.take(size).data, self._plain[file]
            assert isinstance(sink, OnDisk)  # noqa: S101 - all bytes of other files were summed when they were written
            sink.read_into(offset + start, data)
            pieces[key].add(start, data)

        run_all(add, tasks(), self._job.workers)
        return {key: sums.value() for key, sums in pieces.items()}
