"""What readers of objects have read ahead stays within one bound, for all readers of the process.

An object is pinned to one generation, so its bytes never change. Small values that came with the index are read from
here. Beyond the bound a reader keeps only a little of what it read last: it reads the rest again, and nothing else
changes.
"""

from __future__ import annotations

import threading
from typing import Final

READER_BYTES: Final = 4 << 20
"""The most that one reader keeps."""
ALL_BYTES: Final = 64 << 20
"""The most that all readers keep, apart from the last bytes of each."""
_LAST_BYTES: Final = 32 << 10


class _Kept:
    """The bytes that all readers keep."""

    size_bytes = 0
    lock = threading.RLock()  # the collector of garbage may come in while it is held


class Windows:
    """Ranges of one object; several threads use it."""

    def __init__(self) -> None:
        self._ranges: tuple[tuple[int, bytes], ...] = ()

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
        """Keep a range; older ones go where there are too many."""
        with _Kept.lock:
            older = list(self._ranges)
            _Kept.size_bytes += len(data)
            while older and (
                sum(len(some) for _, some in older) + len(data) > READER_BYTES or _Kept.size_bytes > ALL_BYTES
            ):
                _Kept.size_bytes -= len(older.pop(0)[1])
            if _Kept.size_bytes > ALL_BYTES and len(data) > _LAST_BYTES:
                _Kept.size_bytes -= len(data) - _LAST_BYTES
                data = data[:_LAST_BYTES]
            self._ranges = (*older, (start, data))

    def clear(self) -> None:
        """Drop everything."""
        with _Kept.lock:
            _Kept.size_bytes -= sum(len(data) for _, data in self._ranges)
            self._ranges = ()

    def __del__(self) -> None:
        """Count the bytes of a reader that was never closed as dropped."""
        self.clear()
