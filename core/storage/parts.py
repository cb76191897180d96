"""The memory of the parts that are being filled or sent: one exact bound for all objects that are written together.

Most parts are filled in buffers, which are used again. Where all of them are taken by parts that wait for bytes, a
further part is filled on the local disk, and read back when it is full. So no order of writes can stop the work, and
none can exceed the bound. Where enough of the buffers are on their way to the storage, a part waits for one of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import LOOK_SECONDS, Beside, stop_requested
from edl_ckpt.core.storage.files import ScratchFile

MAX_PARTS: Final = 10_000
"""The most parts of one object that S3 takes."""
_SENDERS: Final = 32
"""How many parts are sent at a time, beside the threads that fill them."""
PART_MEMORY_BYTES: Final = 112 << 20
"""What the parts of all objects of a version may take together by default."""
_SENT_AGAIN: Final = 4
"""How many parts that were filled on the disk are sent at a time: their memory is set apart."""


def least_part(size_bytes: int, least: int) -> int:
    """Return how large the parts of an object of a size must be: `least` at least, and not too many of them.

    >>> least_part(1 << 20, 5 << 20), least_part(1 << 40, 5 << 20)
    (5242880, 110100480)
    """
    wanted = -(-size_bytes // MAX_PARTS)
    return least if wanted <= least else -(-wanted // (1 << 20)) * (1 << 20)


class PartMemory:
    """Buffers for parts; several threads take and return them. `peak_bytes` is the most that was taken at a time."""

    def __init__(self, limit_bytes: int = PART_MEMORY_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.senders = Beside(_SENDERS)
        """The threads that send full parts; `close` stops them."""
        self.spooled_bytes = 0
        """The bytes of all parts that went by the local disk so far."""
        self._largest = 0
        self._sending_bytes = 0
        self._reading_back = 0
        self._free: list[bytearray] = []
        self._free_bytes = 0
        self._changed = threading.Condition()
        self._disk: ScratchFile | None = None
        self._slots: dict[int, list[int]] = {}

    def expect(self, size: int) -> None:
        """Know that there will be parts of `size` bytes: said of all objects before the first part is opened."""
        with WHOLE, self._changed:
            self._largest = max(self._largest, size)

    def open(self, size: int) -> Part:
        """Return a new part of `size` bytes: in memory, or on the local disk where parts that wait take the memory.

        Raises LockedError when a signal stops the command while it waits.
        """
        while True:
            with WHOLE, self._changed:  # a signal waits as long as a look
                self._largest = max(self._largest, size)
                if self.used_bytes + size + self._largest <= self.limit_bytes:  # one may be read back beside it
                    return Part(size, self._take(size))
                if not self._sending_bytes or self._sending_bytes < self.limit_bytes // 4:
                    return self._spooled(size)
                self._changed.wait(LOOK_SECONDS)
            if stop_requested():
                raise LockedError("stopped")

    def _take(self, size: int) -> bytearray:
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        found = next((number for number, data in enumerate(self._free) if len(data) == size), None)
        data = bytearray(size) if found is None else self._free.pop(found)
        if found is not None:
            self._free_bytes -= size
        while self._free and self.used_bytes + self._free_bytes > self.limit_bytes:
            self._free_bytes -= len(self._free.pop(0))
        return data

    def _spooled(self, size: int) -> Part:
        """Return a part of `size` bytes on the local disk; NoSpaceError when it is full."""
        disk = self._disk = self._disk or ScratchFile()
        self.spooled_bytes += size
        free = self._slots.get(size)
        if not free:
            disk.grow(size)
        return Part(size, None, disk, free.pop() if free else disk.size_bytes - size)

    def lift(self, part: Part) -> bytearray:
        """Return the bytes of a full part, which is about to be sent, in memory; wait for a buffer where needed."""
        while not self._has_room(part):
            pass
        assert part.data is not None  # noqa: S101 - it has room
        if part.disk is not None:
            part.disk.read_into(part.at, memoryview(part.data))
            with WHOLE, self._changed:
                self._slots.setdefault(part.size_bytes, []).append(part.at)
        return part.data

    def _has_room(self, part: Part) -> bool:
        """Give a part that is about to be sent its memory; wait for a look, and return False, where there is none."""
        with WHOLE, self._changed:
            if part.data is None:
                # One at least goes on, whatever the memory: those that wait for bytes may have taken all of it.
                if self._reading_back and (
                    self._reading_back >= _SENT_AGAIN or self.used_bytes + part.size_bytes > self.limit_bytes
                ):
                    self._changed.wait(LOOK_SECONDS)
                    return False
                self._reading_back += 1
                part.data = self._take(part.size_bytes)
            self._sending_bytes += part.size_bytes
            return True

    def drop(self, part: Part) -> None:
        """Take back the buffer of a part that was sent."""
        with WHOLE, self._changed:
            assert part.data is not None  # noqa: S101 - it was lifted
            self._sending_bytes -= part.size_bytes
            self._reading_back -= part.disk is not None
            self.used_bytes -= part.size_bytes
            if self.used_bytes + self._free_bytes + part.size_bytes <= self.limit_bytes:
                self._free.append(part.data)
                self._free_bytes += part.size_bytes
            part.data = None
            self._changed.notify_all()

    def close(self) -> None:
        """Stop what is still being sent; drop all buffers, and what is on the local disk."""
        self.senders.close()
        self._free.clear()
        if self._disk is not None:
            self._disk.close()


@dataclass(slots=True, eq=False)
class Part:
    """A part that is being filled, in memory or at an offset of the local disk; `filled` counts its bytes."""

    size_bytes: int
    data: bytearray | None
    disk: ScratchFile | None = None
    at: int = 0
    filled: int = 0

    def write(self, at: int, data: memoryview) -> None:
        """Write bytes at an offset of the part; several threads write at different offsets."""
        import numpy as np

        if not len(data):
            return
        if self.data is not None:  # numpy copies without the interpreter's lock
            np.frombuffer(self.data, np.uint8)[at : at + len(data)] = np.frombuffer(data, np.uint8)
        elif self.disk is not None:
            self.disk.write(self.at + at, data)
