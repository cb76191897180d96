"""What a move has done, noted while it runs: a file of records in its staging directory, which is only added to.

A record is its length, the CRC-32 of its bytes, and the bytes. Reading ends at the first record that is cut off or
damaged, and the next one takes its place. A record may outlive the data that it speaks of when the power is cut, so
whoever resumes reads that data back.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.kernel.checksums import crc32
from edl_ckpt.core.state.paths import PROGRESS
from edl_ckpt.core.storage.beneath import Directory, close_read
from edl_ckpt.core.storage.faults import storage_errors

_MAGIC: Final = b"edlmove1"
_HEAD: Final = struct.Struct("<II")
_MOST_BYTES: Final = 64 << 20
"""A longer record is taken for a damaged one, and none is written."""
_MOST_PARTS: Final = 1000
"""A call of the system takes no more."""


class Progress:
    """The records of a move in its staging directory; several threads note them."""

    def __init__(self, stage: Directory, begin: Callable[[], None]) -> None:
        """Take the directory, and what is called before the first record of this run is written."""
        self._stage, self._begin = stage, begin
        self._end = 0
        """The bytes of all records that can be read."""
        self._fd = -1
        self.is_moving = True
        """False once all has moved."""
        self._is_closed = False
        self._lock = threading.Lock()

    def earlier(self) -> Iterator[bytes]:
        """Yield the records of an interrupted run up to the first damaged one; read them all before `note`."""
        try:
            with storage_errors(self._stage.join(PROGRESS)):
                fd = self._stage.open_file(PROGRESS, os.O_RDONLY)
        except EdlCkptError:
            return
        with os.fdopen(fd, "rb") as file, storage_errors(self._stage.join(PROGRESS)):
            if file.read(len(_MAGIC)) != _MAGIC:
                return
            self._end = len(_MAGIC)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                size_bytes, crc = _HEAD.unpack(head)
                data = file.read(size_bytes) if size_bytes <= _MOST_BYTES else b""
                if len(data) != size_bytes or crc32(data, 0) != crc:
                    return
                yield data
                self._end += _HEAD.size + size_bytes

    def note(self, parts: Sequence[bytes | memoryview]) -> None:
        """Add a record, given in parts. A disk that takes none ends the notes, and not the move."""
        size_bytes, crc = sum(memoryview(part).nbytes for part in parts), 0
        if size_bytes > _MOST_BYTES:
            return
        for part in parts:
            crc = crc32(part, crc)
        with self._lock:
            if self._is_closed:
                return
            try:
                if self._fd < 0:
                    self._open()
                self._write([_HEAD.pack(size_bytes, crc), *parts])
            except EdlCkptError:
                self._is_closed = True

    def end(self) -> None:
        """Note nothing more: all has moved."""
        self.is_moving = False
        self.close()

    def close(self) -> None:
        """Close the file; nothing more is noted."""
        with self._lock:
            fd, self._fd = self._fd, -1
            self._is_closed = True
        if fd >= 0:
            close_read(fd)

    def _open(self) -> None:
        self._begin()
        with storage_errors(self._stage.join(PROGRESS)):
            self._fd = self._stage.open_file(PROGRESS, os.O_RDWR | os.O_CREAT)
            os.ftruncate(self._fd, self._end)
        if not self._end:
            self._write([_MAGIC])

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        with storage_errors(self._stage.join(PROGRESS)):
            for first in range(0, len(parts), _MOST_PARTS):
                self._end += self._write_some(parts[first : first + _MOST_PARTS])

    def _write_some(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write some parts at the end of all records, and return how many bytes they have."""
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        done = os.pwritev(self._fd, parts, self._end)
        while done < size_bytes:
            rest = b"".join(parts)[done:]
            done += os.pwrite(self._fd, rest, self._end + done)
        return size_bytes
