"""Connections to one address, and requests of HTTP/1.1 that the thread that asks sends and receives itself.

`http.client` opens the connections. It reads headers as those of letters, which takes a tenth of a millisecond, so
heads are written and read here.

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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import LOOK_SECONDS, awaited, stop_requested
from edl_ckpt.core.storage.s3.session import Service

Result = TypeVar("Result")
_SEND_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 16 << 10
_SLICE_BYTES: Final = 1 << 20
"""Bytes that are received at a time."""
_HEAD_BYTES: Final = 256 << 10
"""The most of a head that is received; http.client takes about as much in lines."""
_LINE_BYTES: Final = 64 << 10
_FIRST_FINAL: Final = 200
"""A smaller status says that the answer will come."""
_FIRST_NOT_GOOD: Final = 300
_BODY_BYTES: Final = 1 << 30
"""The most of a body that has no buffer: nothing is allocated by a number from a server."""
_DECIMAL: Final = "0123456789"
_HEXADECIMAL: Final = "0123456789abcdef"
_SIZE_DIGITS: Final = 18
"""The most digits of a size: more bytes than any object has."""
_WITHOUT_BODY: Final = frozenset({204, 304})


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


class Headers(dict[str, str]):
    """The headers of an answer, by names in lower case; they are found by names in any case."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the text of a header, or the default."""
        return super().get(name.lower(), default)


class Answer(NamedTuple):
    """An answer, with its body: bytes, or received into a buffer."""

    status: int
    headers: Headers
    body: bytes | memoryview


class _Connection:
    """An open connection: requests and answers of HTTP/1.1, one after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._room = memoryview(bytearray(_SMALL_BYTES))
        self._rest = b""
        """What was received, and not read yet."""
        self.is_usable = True
        """False once no other request can be sent."""

    def ask(self, head: bytes, body: bytes | bytearray) -> None:
        """Send a request."""
        if len(body) <= _SMALL_BYTES:
            self.sock.sendall(head + body)
        else:
            self.sock.sendall(head)
            self.sock.sendall(body)

    def answer(self, method: str, wanted: memoryview | int | None) -> Answer:
        """Receive an answer; DamagedError for what is none, and for a body of another size than is wanted."""
        status, headers = self._head()
        while status < _FIRST_FINAL:
            status, headers = self._head()
        if status >= _FIRST_NOT_GOOD:
            wanted = None
        is_empty = method == "HEAD" or status in _WITHOUT_BODY
        body = b"" if is_empty else self._body(headers, wanted)
        self.is_usable &= not self._rest
        return Answer(status, headers, body)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def _head(self) -> tuple[int, Headers]:
        """Receive a status and the headers."""
        first, *lines = self._until(b"\r\n\r\n", _HEAD_BYTES).decode("latin-1").split("\r\n")
        version, _, words = first.partition(" ")
        status = words[:3]
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
            raise DamagedError("no answer of HTTP/1.1")
        headers = Headers()
        for line in lines:
            name, _, text = line.partition(":")
            headers.setdefault(name.strip().lower(), text.strip())
        hint = headers.get("connection", "").lower()
        self.is_usable = hint != "close" and (version != "HTTP/1.0" or hint == "keep-alive")
        return int(status), headers

    def _body(self, headers: Headers, wanted: memoryview | int | None) -> bytes | memoryview:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return checked(self._chunks(), wanted)
        if "content-length" not in headers:
            self.is_usable = False
            return checked(self._everything(), wanted)
        size = _size_in(headers["content-length"], _DECIMAL)
        if wanted is not None:
            check_size(size, wanted if isinstance(wanted, int) else len(wanted))
        if isinstance(wanted, memoryview):
            self._fill(wanted)
            return wanted
        if size > _BODY_BYTES:
            raise DamagedError(f"an answer of {size} bytes")
        return self._bytes(size)

    def _chunks(self) -> bytes:
        """Receive a body in chunks, each with its size in front."""
        chunks: list[bytes] = []
        total = 0
        while size := self._chunk_size():
            total += size
            if total > _BODY_BYTES:
                raise DamagedError(f"an answer of more than {_BODY_BYTES} bytes")
            chunks.append(self._bytes(size))
            if self._until(b"\r\n", _LINE_BYTES):
                raise DamagedError("a chunk is longer than its size")
        while self._until(b"\r\n", _LINE_BYTES):
            pass  # headers behind the body
        return b"".join(chunks)

    def _chunk_size(self) -> int:
        """Receive the size of the next chunk, 0 after the last one."""
        size, _, _ = self._until(b"\r\n", _LINE_BYTES).partition(b";")
        return _size_in(size.decode("latin-1"), _HEXADECIMAL)

    def _everything(self) -> bytes:
        """Receive a body that ends with the connection."""
        chunks = [self._rest]
        while count := self.sock.recv_into(self._room):
            chunks.append(bytes(self._room[:count]))
        self._rest = b""
        return b"".join(chunks)

    def _until(self, end: bytes, most: int) -> bytes:
        """Receive what comes before a mark, which is dropped; DamagedError where there is none in so many bytes."""
        while (at := self._rest.find(end)) < 0:
            if len(self._rest) > most:
                raise DamagedError("no answer of HTTP/1.1")
            count = self.sock.recv_into(self._room)
            if not count:
                raise ConnectionError("the connection was closed")
            self._rest += self._room[:count]
        found, self._rest = self._rest[:at], self._rest[at + len(end) :]
        return found

    def _bytes(self, size: int) -> bytes:
        """Receive so many bytes."""
        if size <= len(self._rest):
            found, self._rest = self._rest[:size], self._rest[size:]
            return found
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, buffer: memoryview) -> None:
        """Receive bytes until a buffer is full; DamagedError when the connection ends before."""
        filled = min(len(self._rest), len(buffer))
        buffer[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        while filled < len(buffer):
            count = self.sock.recv_into(buffer[filled : filled + _SLICE_BYTES])
            if not count:
                check_size(filled, len(buffer))
            filled += count


def _size_in(text: str, digits: str) -> int:
    """Return a size in an answer, which is made of these digits only; DamagedError for another text."""
    number = text.strip().lower()
    if not number or number.strip(digits) or len(number) > _SIZE_DIGITS:
        raise DamagedError("an answer without its size")
    return int(number, len(digits))


def checked(data: bytes, wanted: memoryview | int | None) -> bytes | memoryview:
    """Return data of the size that is wanted, in the buffer where there is one; DamagedError for another size."""
    if wanted is None:
        return data
    if isinstance(wanted, int):
        check_size(len(data), wanted)
        return data
    check_size(len(data), len(wanted))
    wanted[:] = data
    return wanted


def check_size(arrived: int, wanted: int) -> None:
    """Raise DamagedError for a body of another size than is wanted."""
    if arrived != wanted:
        raise DamagedError(f"{arrived} bytes arrived in place of {wanted}")


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the first bytes of a request; ValueError for a line break in what becomes a line."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    head = "\r\n".join(lines)
    if head.count("\n") >= len(lines) or head.count("\r") >= len(lines):
        raise ValueError("a line break in a header")
    return f"{head}\r\n\r\n".encode("latin-1")


class Wire:
    """The connections to the address of a URL. Several threads use it, each connection by one at a time."""

    def __init__(self, url: str, service: Service) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port
        self._tls = service.trust() if parts.scheme == "https" else None
        if self._tls is not None:
            self._tls.sslsocket_class = _TlsSocket
        self._connect_seconds, self._read_seconds = service.connect_seconds, service.read_seconds
        self._idle: deque[_Connection] = deque()

    def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | bytearray = b"",
        *,
        wanted: memoryview | int | None = None,
    ) -> Answer:
        """Send a request; return the answer, with a body that fills the buffer that is `wanted`, or has that size.

        A connection whose answer was read to its end is used again.
        """
        head = request_head(method, target, headers)
        connection = self._take()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # there may be an answer all the same
                connection.ask(head, body)
            answer = connection.answer(method, wanted)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self) -> _Connection:
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
        opened: Any = connection.sock
        if self._tls is None:
            opened.settimeout(None)
            opened = _Socket(fileno=opened.detach())
        opened.settimeout(LOOK_SECONDS)
        opened.silence_seconds = self._read_seconds
        self._idle.append(_Connection(opened))


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
