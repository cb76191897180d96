"""One bound for the bytes that readers of objects have read ahead, over all readers of the process.

An object is pinned to one generation, so its bytes never change. Small values that came with the index are read from
here. Beyond the bound, the reader that has read nothing for the longest time keeps only a little of its first bytes. It
reads the rest again, and nothing else changes. So an object whose header is being read keeps it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final
from weakref import ref

READER_BYTES: Final = 4 << 20
"""The most that one reader keeps."""
ALL_BYTES: Final = 64 << 20
"""The most that all readers keep, apart from the first bytes of each."""
_FIRST_BYTES: Final = 32 << 10


class _Kept:
    """The bytes that all readers keep, and the readers, the one that has read nothing for the longest time first."""

    size_bytes = 0
    readers: OrderedDict[int, ref[Windows]] = OrderedDict()  # noqa: RUF012 - one for the process
    lock = threading.RLock()  # the collector of garbage may come in while it is held


class Windows:
    """Ranges of one object; several threads use it."""

    def __init__(self) -> None:
        self._ranges: tuple[tuple[int, bytes], ...] = ()
        self._counted = 0

    def find(self, offset: int, size: int) -> bytes | None:
        """Return bytes that are here, in one window or in several that touch; None when some are not."""
        found: list[bytes] = []
        end = offset + size
        for start, data in sorted(self._ranges):
            if start <= offset < start + len(data):
                found.append(data[offset - start : end - start])
                offset += len(found[-1])
                if offset == end:
                    return b"".join(found)
        return None

    def keep(self, start: int, data: bytes) -> None:
        """Keep a range; older ones go where there are too many, and those of other readers."""
        with _Kept.lock:
            ranges = [*self._ranges, (start, data)]
            while len(ranges) > 1 and sum(len(some) for _, some in ranges) > READER_BYTES:
                ranges.pop(0)
            self._take(tuple(ranges), sum(len(some) for _, some in ranges))
            _Kept.readers.pop(id(self), None)
            while _Kept.size_bytes > ALL_BYTES and _Kept.readers:
                _, oldest = _Kept.readers.popitem(last=False)
                if (other := oldest()) is not None:
                    other._shrink()  # noqa: SLF001 - of the same class
            _Kept.readers[id(self)] = ref(self)

    def _shrink(self) -> None:
        """Keep only the first bytes, which are not counted."""
        self._take(tuple((start, data[:_FIRST_BYTES]) for start, data in self._ranges[:1]), 0)

    def _take(self, ranges: tuple[tuple[int, bytes], ...], counted: int) -> None:
        _Kept.size_bytes += counted - self._counted
        self._ranges, self._counted = ranges, counted

    def clear(self) -> None:
        """Drop everything."""
        with _Kept.lock:
            _Kept.readers.pop(id(self), None)
            self._take((), 0)

    def __del__(self) -> None:
        """Count the bytes of a reader that was never closed as dropped."""
        self.clear()
