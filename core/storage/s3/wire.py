"""Requests on the connections that botocore configures, sent and received by the thread that asks.

urllib3 opens the connections, with botocore's certificates and timeouts, and `http.client` speaks HTTP on them. Between
the two stands a stream that waits: every `LOOK_SECONDS` it looks whether the command was interrupted, and a large body
arrives in the caller's buffer by one call of the system for each slice. A proxy is left to botocore.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import urlsplit

from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.parallel import LOOK_SECONDS, stop_requested

_BUFFER_BYTES: Final = 16 << 10
_SEND_BYTES: Final = 1 << 20
_TIMEOUTS: Final = (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket raises when nothing came, or went, for LOOK_SECONDS."""


class DamagedError(Exception):
    """A damaged answer: too short, too long, no HTTP, or with another MD5 than the data. A retry may succeed."""


class _Line(io.RawIOBase):
    """An open connection, as `http.client` sees its socket and the stream of what arrives."""

    def __init__(self, wire: Wire, connection: Any) -> None:
        super().__init__()
        self._wire = wire
        self._socket = connection.sock
        self._is_plain = not isinstance(self._socket, ssl.SSLSocket)
        self._socket.settimeout(None if self._is_plain else LOOK_SECONDS)
        if self._is_plain:  # the kernel's own timeout, so that a call can wait for a whole buffer
            look = struct.pack("ll", 0, int(LOOK_SECONDS * 1e6))
            for each in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, each, look)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the stream of one answer."""
        return io.BufferedReader(self, _BUFFER_BYTES)

    def sendall(self, data: Any) -> None:
        """Send all bytes."""
        view = memoryview(data)
        while view:
            view = view[self._waited(self._socket.send, view[:_SEND_BYTES]) :]

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a large buffer, or a part of a small one, and return the number of bytes; 0 at the end."""
        whole = self._is_plain and len(buffer) > _BUFFER_BYTES
        return self._waited(self._socket.recv_into, buffer, 0, socket.MSG_WAITALL if whole else 0)

    def _waited(self, move: Callable[..., int], *arguments: Any) -> int:
        """Move some bytes; LockedError when the command was interrupted, ReadTimeoutError when none move for long."""
        since = time.monotonic()
        while True:
            try:
                return move(*arguments)
            except _TIMEOUTS:
                if stop_requested():
                    raise LockedError("stopped") from None
                if time.monotonic() - since > self._wire.read_seconds:
                    from botocore.exceptions import ReadTimeoutError

                    raise ReadTimeoutError(endpoint_url=self._wire.url) from None

    def close(self) -> None:
        """Leave the connection open: the end of an answer is not its end."""


class Reply:
    """An answer with the status and the headers, and the body as a stream, by the names of botocore's answers."""

    def __init__(self, wire: Wire, connection: Any, response: http.client.HTTPResponse) -> None:
        self._wire, self._connection, self._response = wire, connection, response
        self.status_code = response.status
        self.headers = response.headers
        self.raw = self

    def read(self, size: int | None = None) -> bytes:
        """Return so many bytes, or all."""
        return self._response.read(size)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a part of a buffer and return its size, 0 at the end."""
        return self._response.readinto(buffer)

    def close(self) -> None:
        """Keep the connection for the next request, or close it when bytes are left."""
        if self._response.length == 0:
            self._response.read()  # so that `http.client` knows
        if self._response.will_close or not self._response.isclosed():
            self._connection.close()
        self._wire.put_back(self._connection)


def wire_of(session: Any, url: str) -> Wire | None:
    """Return the connections that a session of botocore makes to an address; None where it would use a proxy."""
    try:
        has_proxy = session._proxy_config.proxy_url_for(url) is not None  # noqa: SLF001 - as in Wire
        return None if has_proxy else Wire(session, url)
    except (AttributeError, TypeError, ValueError):  # another botocore, or urllib3
        return None


class Wire:
    """The connections to one address, of urllib3's pool. Several threads use it, each connection by one at a time."""

    def __init__(self, session: Any, url: str) -> None:
        """Prepare connections as a session of botocore makes them; no public name leads to its settings."""
        self._pool = session._get_connection_manager(url).connection_from_url(url)  # noqa: SLF001
        session._setup_ssl_cert(self._pool, url, session._verify)  # noqa: SLF001
        self.url = url
        self.read_seconds = float(self._pool.timeout.read_timeout)

    def take(self) -> Any:
        """Return an idle connection that the other side has not closed, or a new one, whose `sock` is None."""
        return self._pool._get_conn()  # noqa: SLF001

    def put_back(self, connection: Any) -> None:
        """Keep a connection for the next request."""
        self._pool._put_conn(connection)  # noqa: SLF001

    def connect(self, connection: Any) -> dict[str, Any]:
        """Open a new connection, which may take long and cannot be interrupted; its answer has nothing in it."""
        from botocore.exceptions import EndpointConnectionError

        try:
            connection.connect()
        except Exception as error:
            connection.close()
            raise EndpointConnectionError(endpoint_url=self.url, error=error) from error
        return {}

    def send(self, connection: Any, request: Any) -> Reply:
        """Send a signed request of botocore, and return the answer as soon as its head is there."""
        parts = urlsplit(request.url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        try:
            talk = http.client.HTTPConnection(str(parts.hostname), connection.port)
            talk.default_port = connection.default_port  # of HTTPS, where it is that: Host is as it was signed
            talk.sock = cast("socket.socket", _Line(self, connection))
            with suppress(BrokenPipeError, ConnectionResetError):  # there may be an answer all the same
                talk.request(request.method, target, request.body, {**request.headers})
            return Reply(self, connection, talk.getresponse())
        except BaseException as error:
            connection.close()
            if isinstance(error, ConnectionError):
                from botocore.exceptions import ConnectionClosedError

                raise ConnectionClosedError(endpoint_url=self.url, error=error) from error
            raise
