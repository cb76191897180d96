"""Connections of `http.client` to one address, and requests that the thread that asks sends and receives itself.

A blocked socket cannot be interrupted by another thread. So each call of a socket returns after `LOOK_SECONDS`, and
ends when the command was interrupted. Only a new connection is made by another thread, which its caller can leave.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import LOOK_SECONDS, awaited, stop_requested
from edl_ckpt.core.storage.s3.session import Service

Result = TypeVar("Result")
_SEND_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 16 << 10


class DamagedError(Exception):
    """A damaged answer: too short, too long, or with another checksum than the data. A retry may succeed."""


class _PatientSocket:
    """A socket that waits for LOOK_SECONDS at a time; LockedError when the command was interrupted meanwhile.

    TimeoutError when no byte moves for `silence_seconds`.
    """

    silence_seconds = 60.0

    def recv_into(self, *arguments: Any) -> int:
        """Receive some bytes."""
        return self._waited(super().recv_into, *arguments)  # type: ignore[misc]

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all bytes."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self._waited(super().send, view[:_SEND_BYTES], flags) :]  # type: ignore[misc]

    def _waited(self, move: Callable[..., int], *arguments: Any) -> int:
        since = time.monotonic()
        while True:
            try:
                return move(*arguments)
            except (TimeoutError, BlockingIOError):
                if stop_requested():
                    raise LockedError("stopped") from None
                if time.monotonic() - since > self.silence_seconds:
                    raise


class _Socket(_PatientSocket, socket.socket):
    """One whose timeout is the kernel's, so that a call can wait until a large buffer is full."""

    def settimeout(self, value: float | None) -> None:
        """Let each call take so many seconds at most."""
        if value is not None:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(value * 1e6)))

    def recv_into(self, buffer: Any, *_: int) -> int:
        """Fill a large buffer, or receive some bytes of a small one."""
        whole = socket.MSG_WAITALL if len(buffer) > _SMALL_BYTES else 0
        return self._waited(super(_PatientSocket, self).recv_into, buffer, 0, whole)


class _TlsSocket(_PatientSocket, ssl.SSLSocket):
    pass


class Wire:
    """The connections to the address of a URL. Several threads use it, each connection by one at a time."""

    def __init__(self, url: str, service: Service) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port
        self._tls = service.trust() if parts.scheme == "https" else None
        if self._tls is not None:
            self._tls.sslsocket_class = _TlsSocket
        self._connect_seconds, self._read_seconds = service.connect_seconds, service.read_seconds
        self._idle: deque[HTTPConnection] = deque()

    def send(self, request: Any, receive: Callable[[HTTPResponse], Result]) -> tuple[int, HTTPMessage, Result]:
        """Send a signed request of botocore; return the status, the headers, and the body that `receive` reads.

        A connection whose answer was read to its end is used again.
        """
        connection = self._take()
        try:
            parts = urlsplit(request.url)
            target = f"{parts.path or '/'}{'?' * bool(parts.query)}{parts.query}"
            with suppress(BrokenPipeError, ConnectionResetError):  # there may be an answer all the same
                connection.request(request.method, target, request.body, {**request.headers})
            response = connection.getresponse()
            body = receive(response)
        except BaseException:
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            connection.close()
        else:
            self._idle.append(connection)
        return response.status, response.headers, body

    def _take(self) -> HTTPConnection:
        """Return an idle connection that the other side has not closed, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                left_behind(self._connect)
                continue
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                return connection
            connection.close()

    def __del__(self) -> None:
        """Close the connections."""
        for connection in self._idle:
            connection.close()

    def _connect(self) -> None:
        """Add a new connection to the idle ones; one whose caller has left waits there for the next request."""
        if self._tls is None:
            connection = HTTPConnection(self._host, self._port, timeout=self._connect_seconds)
        else:
            connection = HTTPSConnection(self._host, self._port, timeout=self._connect_seconds, context=self._tls)
        connection.connect()
        if self._tls is None:
            connection.sock.settimeout(None)
            connection.sock = _Socket(fileno=connection.sock.detach())
        opened: Any = connection.sock
        opened.settimeout(LOOK_SECONDS)
        opened.silence_seconds = self._read_seconds
        self._idle.append(connection)


def left_behind(function: Callable[[], Result]) -> Result:
    """Return the result of a function that may block; LockedError, without its end, when the command is interrupted."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)

    with WHOLE:
        threading.Thread(target=run, name="edl-ckpt-s3", daemon=True).start()
    return awaited(future)
