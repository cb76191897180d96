"""Requests and answers of HTTP/1.1, byte by byte: bodies in each of their forms, connections that are used again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from edl_ckpt.core.storage.s3.wire import DamagedError, Wire, request_head

_GOOD = b"HTTP/1.1 200 OK\r\n"


class _Server:
    """Answers requests with given bytes, one connection after the other."""

    def __init__(self, answers: Sequence[bytes], *, closes: bool) -> None:
        self._answers, self._closes = list(answers), closes
        self.connections = 0
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                while self._answers and (request := connection.recv(65536)):
                    self.requests.append(request)
                    connection.sendall(self._answers.pop(0))
                    if self._closes:
                        break

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextmanager
def _answering(*answers: bytes, closes: bool = False) -> Iterator[tuple[_Server, Wire]]:
    server = _Server(answers, closes=closes)
    service: Any = SimpleNamespace(connect_seconds=5.0, read_seconds=5.0)
    try:
        yield server, Wire(server.url, service)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (_GOOD + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (_GOOD + b"content-length:5\r\nX: y\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + _GOOD + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (_GOOD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n", b"hello"),
        (_GOOD + b"Content-Length: 100000\r\n\r\n" + b"z" * 100_000, b"z" * 100_000),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", b"no"),
    ],
)
def test_a_body_is_read_to_its_end(answer: bytes, body: bytes) -> None:
    """A body of known size and one in chunks are read whole, and the connection is used again."""
    with _answering(answer, answer) as (server, wire):
        for _ in range(2):
            found = wire.send("GET", "/x", {"host": "h"})
            assert bytes(found.body) == body
        assert server.connections == 1
        assert server.requests[0] == b"GET /x HTTP/1.1\r\nhost: h\r\n\r\n"


def test_an_answer_to_head_has_no_body() -> None:
    """The length that it names is that of the object."""
    with _answering(_GOOD + b"Content-Length: 5\r\nETag: e\r\n\r\n") as (_, wire):
        found = wire.send("HEAD", "/x", {})
        assert (found.body, found.headers["ETag"], found.headers.get("Content-LENGTH")) == (b"", "e", "5")


def test_a_buffer_is_filled() -> None:
    """A body goes into the buffer that is wanted; of an error it does not."""
    buffer = memoryview(bytearray(200_000))
    chunked = _GOOD + b"Transfer-Encoding: chunked\r\n\r\n30d40\r\n" + b"c" * 200_000 + b"\r\n0\r\n\r\n"
    good = _GOOD + b"Content-Length: 200000\r\n\r\n" + b"b" * 200_000
    error = b"HTTP/1.1 503 Slow\r\nContent-Length: 4\r\n\r\nslow"
    with _answering(good, chunked, error) as (_, wire):
        assert wire.send("GET", "/", {}, wanted=buffer).body is buffer
        assert bytes(buffer) == b"b" * 200_000
        wire.send("GET", "/", {}, wanted=buffer)
        assert bytes(buffer) == b"c" * 200_000
        assert wire.send("GET", "/", {}, wanted=buffer).body == b"slow"


@pytest.mark.parametrize(
    "answer",
    [
        _GOOD + b"Content-Length: 5\r\n\r\nhello, and more",
        _GOOD + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_a_connection_that_may_not_be_used_again_is_closed(answer: bytes) -> None:
    """Bytes behind an answer are never taken for the next one."""
    with _answering(answer, answer) as (server, wire):
        for _ in range(2):
            assert wire.send("GET", "/x", {}).body == b"hello"
        assert server.connections == 2


def test_a_body_may_end_with_the_connection() -> None:
    """Without a length it does, and the next request has a new connection."""
    answer = _GOOD + b"\r\n" + b"hello"
    with _answering(answer, answer, closes=True) as (server, wire):
        for _ in range(2):
            assert wire.send("GET", "/x", {}).body == b"hello"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (_GOOD + b"Content-Length: 5\r\n\r\nhell", None),
        (_GOOD + b"Content-Length: 5\r\n\r\nhello", 4),
        (_GOOD + b"Content-Length: 5\r\n\r\nhello", 6),
        (_GOOD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 6),
        (_GOOD + b"Transfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n", None),
        (_GOOD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n", None),
        (_GOOD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", None),
        (_GOOD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffff\r\nhello\r\n0\r\n\r\n", None),
        (_GOOD + b"Content-Length: many\r\n\r\nhello", None),
        (_GOOD + b"Content-Length: -5\r\n\r\nhello", None),
        (_GOOD + b"Content-Length: +5\r\n\r\nhello", None),
        (_GOOD + b"Content-Length: \r\n\r\nhello", None),
        (_GOOD + b"Content-Length: 99999999999999999\r\n\r\nhello", None),
        (_GOOD + b"Content-Length: 999999999999999999999\r\n\r\nhello", None),
        (b"SSH-2.0-OpenSSH\r\n\r\n", None),
        (b"HTTP/1.1 OK\r\n\r\n", None),
        (_GOOD + b"X: " + b"y" * 300_000 + b"\r\n\r\n", None),
    ],
)
def test_a_damaged_answer_is_found(answer: bytes, wanted: int | None) -> None:
    """An answer that is cut off, too long, or none is an error that a retry may mend; its connection is closed."""
    with _answering(answer, _GOOD + b"Content-Length: 2\r\n\r\nok", closes=True) as (server, wire):
        with pytest.raises(DamagedError):
            wire.send("GET", "/x", {}, wanted=wanted)
        assert wire.send("GET", "/x", {}).body == b"ok"
        assert server.connections == 2


def test_a_connection_may_end_without_an_answer() -> None:
    """That is an error of the connection."""
    with _answering(b"", closes=True) as (_, wire), pytest.raises(ConnectionError):
        wire.send("GET", "/x", {})


@pytest.mark.parametrize("text", ["a\r\nb", "a\nb", "a\rb"])
def test_no_header_begins_another(text: str) -> None:
    """A line break in a header is refused, so that nothing can be smuggled into a request."""
    with pytest.raises(ValueError, match="line break"):
        request_head("GET", "/x", {"x-a": text})
