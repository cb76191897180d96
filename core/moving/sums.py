"""Files whose values are summed on their way, because their framing has checksums of these."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.storage.interface import Sink, Sinks


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
