"""Opened files as streams, for zipfile and for copies."""

from __future__ import annotations

import errno
import io

from edl_ckpt.core.storage.interface import RangeReader


def as_stream(reader: RangeReader) -> io.BufferedReader:
    """Return an opened file as zipfile wants it; the caller, which has opened it, closes it."""
    return io.BufferedReader(RangeStream(reader, 0, reader.size_bytes), 1 << 16)


class RangeStream(io.RawIOBase):
    """Bytes [start, start + size) of an opened file as a stream."""

    def __init__(self, reader: RangeReader, start: int, size: int) -> None:
        super().__init__()
        self._reader, self._start, self._size, self._position = reader, start, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position; OSError for one before the beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"a position before the beginning: {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer, or as much of it as there are bytes."""
        count = max(min(len(buffer), self._size - self._position), 0)
        if count:
            self._reader.read_into(self._start + self._position, memoryview(buffer).cast("B")[:count])
            self._position += count
        return count
