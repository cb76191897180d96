"""The members of one round and their messages: sockets in the form of a star, with rank 0 in the middle.

Each message is a frame: one byte for its direction, the number of the exchange, the size, and the bytes. A closed
connection is a lost member. Rank 0 then closes all the others, so that everybody notices.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.training.elastic.coordinator import MembershipError

_FRAME: Final = struct.Struct("<cQQ")
_UP: Final = b"u"
_DOWN: Final = b"d"


class Round:
    """One round. Rank 0 has the sockets of ranks 1, 2, ... in order; every other rank has the socket of rank 0."""

    def __init__(self, rank: int, sockets: Sequence[socket.socket], *, timeout_seconds: float) -> None:
        self._rank = rank
        self._sockets = list(sockets)
        self._exchange = 0
        self._closed = False
        for each in self._sockets:
            each.settimeout(timeout_seconds)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of every rank, in order, on rank 0, and nothing on the others; returns at once there."""
        with self._exchanging():
            if self._rank == 0:
                return [data, *(self._receive(each, _UP) for each in self._sockets)]
            self._send(_UP, data)
        return []

    def share(self, data: bytes = b"") -> bytes:
        """Return the data of rank 0 on every rank."""
        with self._exchanging():
            if self._rank != 0:
                return self._receive(self._sockets[0], _DOWN)
            self._send(_DOWN, data)
        return data

    def close(self) -> None:
        """Leave the round; the others notice when they next wait for a message."""
        self._closed = True
        for each in self._sockets:
            each.close()

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Count an exchange; any failure ends the round for this member, and so for all."""
        if self._closed:
            raise MembershipError("this member has left the round")
        self._exchange += 1
        try:
            yield
        except TimeoutError:
            self.close()
            raise MembershipError("a member gave no answer in time") from None
        except OSError as error:
            self.close()
            raise MembershipError(f"a member was lost: {error}") from None
        except BaseException:
            self.close()
            raise

    def _send(self, direction: bytes, data: bytes) -> None:
        frame = _FRAME.pack(direction, self._exchange, len(data))
        for each in self._sockets:
            each.sendall(frame)
            each.sendall(data)

    def _receive(self, source: socket.socket, expected: bytes) -> bytes:
        direction, exchange, size = _FRAME.unpack(receive(source, _FRAME.size))
        if (direction, exchange) != (expected, self._exchange):
            raise UsageError("the members do not call the same methods of their coordinators in the same order")
        return receive(source, size)


def receive(source: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes from a socket; ConnectionError when the other side has closed it."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = source.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        view = view[count:]
    return bytes(data)
