"""Values whose checksums stand in the framing of files, and files that sum them on their way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edl_ckpt.core.converting.rows import Cut
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.storage.interface import Sink, Sinks


@dataclass(frozen=True, slots=True)
class SummedValues:
    """Which values have checksums in the framing, and of which kind; it can be pickled."""

    checksum: str = ""
    """The name of the checksum; '' where the framing has none."""
    rows: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """The bytes of the rows, and of the ids, of spread tables, by the number of their file and their offset there."""

    def of_cuts(self, cuts: Iterable[Cut]) -> dict[tuple[int, int], Crc32]:
        """Return a new checksum for each of some cuts, by file and offset."""
        return {(cut.file, cut.offset): Crc32(self.checksum) for cut in cuts} if self.checksum else {}

    def of_rows(self, files: Iterable[int]) -> dict[tuple[int, int], Crc32]:
        """Return a new checksum for each of the rows and ids of spread tables in some files."""
        return {(file, offset): Crc32(self.checksum) for file in files for offset in self.rows.get(file, ())}


class SummedSink(Sink):
    """A file that cannot be read back while it is written: the bytes of values are summed on their way.

    `sums` are the checksums of values by their offset in the file, `sizes` the bytes of each.
    """

    def __init__(self, inner: Sink, sums: Mapping[int, Crc32], sizes: Mapping[int, int]) -> None:
        self._inner, self._sums, self._sizes = inner, sums, sizes
        self._starts = sorted(start for start in sums if sizes[start])
        self.path = inner.path

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write bytes, and sum those of values."""
        end = offset + len(data)
        for start in self._starts[max(bisect_right(self._starts, offset) - 1, 0) :]:
            low, high = max(start, offset), min(start + self._sizes[start], end)
            if start >= end:
                break
            if low < high:
                self._sums[start].add(low - start, data[low - offset : high - offset])
        self._inner.write(offset, data)


class SummedSinks(Sinks):
    """Files that sum what is written to them; each is opened when it is written first."""

    def __init__(
        self, files: Sinks, sums: Mapping[tuple[int, int], Crc32], sizes: Mapping[int, Mapping[int, int]]
    ) -> None:
        self._files, self._sums, self._sizes = files, sums, sizes

    def __getitem__(self, number: int, /) -> Sink:
        file, sizes = self._files[number], self._sizes.get(number, {})
        return SummedSink(file, {offset: self._sums[number, offset] for offset in sizes}, sizes) if sizes else file
