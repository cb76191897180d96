"""Requests on connections of our own: what HTTP allows is understood, what is damaged is found, TLS is verified."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.auth import _host_from_url
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError
from botocore.httpsession import URLLib3Session

from certificates import make_certificate
from edl_ckpt.core.storage.s3.wire import Reply, Wire, wire_of

_DATA = bytes(range(256)) * 1024


def _head(*rows: str, status: str = "200 OK", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join([f"{version} {status}", *rows, "", ""]).encode()


def _sized(data: bytes, *rows: str) -> bytes:
    return _head(f"Content-Length: {len(data)}", *rows) + data


class _Server:
    """A server that answers the requests of each connection with these bytes, one after the other."""

    def __init__(self, answers: list[list[bytes]], wrap: Callable[[socket.socket], socket.socket]) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._answers = answers
        self._wrap = wrap
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for answers in self._answers:
            try:
                line = self._wrap(self._socket.accept()[0])
            except OSError:  # the client did not like the certificate, or the test is over
                continue
            self.connections += 1
            with line, suppress(EOFError):
                for answer in answers:
                    self._read(line)
                    line.sendall(answer)

    def _read(self, line: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            some = line.recv(1 << 16)
            if not some:
                raise EOFError
            data += some
        head, _, body = data.partition(b"\r\n\r\n")
        self.heads.append(head)
        rows = dict(row.lower().split(b": ", 1) for row in head.split(b"\r\n")[1:])
        while len(body) < int(rows.get(b"content-length", 0)):
            body += line.recv(1 << 20)

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes up who waits for a connection
        self._socket.close()
        self._thread.join(60)


@contextmanager
def _serving(
    *answers: list[bytes], wrap: Callable[[socket.socket], socket.socket] = lambda line: line
) -> Iterator[_Server]:
    with closing(_Server([*answers], wrap)) as server:
        yield server


def _wire(server: _Server, *, scheme: str = "http", verify: Any = True, timeout: float = 5) -> Wire:
    found = wire_of(URLLib3Session(verify=verify, timeout=timeout), f"{scheme}://127.0.0.1:{server.port}/b")
    assert found is not None
    return found


def _ask(wire: Wire, verb: str = "GET", body: bytes = b"", **headers: str) -> Reply:
    connection = wire.take()
    if connection.sock is None:
        wire.connect(connection)
    url = f"{wire.url}/key?a=b"
    return wire.send(connection, SimpleNamespace(method=verb, url=url, headers=headers, body=body or None))


def _body(wire: Wire, *arguments: Any) -> bytes:
    with closing(_ask(wire, *arguments)) as reply:
        return reply.read()


def test_answers_on_one_connection() -> None:
    """Bodies with a length, in chunks, without bytes, and after an interim answer: one connection serves them all."""
    chunks = _head("Transfer-Encoding: chunked") + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
    answers = [
        _sized(_DATA),
        chunks,
        _head(status="204 No Content"),
        _head(status="100 Continue") + _sized(b"late", "X-Name:  a value"),
        _sized(b""),
    ]
    with _serving(answers) as server:
        wire = _wire(server)
        assert _body(wire) == _DATA
        assert _body(wire) == b"abcde"
        with closing(_ask(wire, "DELETE")) as reply:
            assert (reply.status_code, reply.read()) == (204, b"")
        with closing(_ask(wire, "POST", b"x" * (1 << 20), **{"X-Mine": "1"})) as reply:
            assert (reply.headers["x-name"], reply.read()) == ("a value", b"late")
        assert _body(wire, "HEAD") == b""
        assert server.connections == 1
    first, post = server.heads[0].decode().split("\r\n"), server.heads[3].decode().split("\r\n")
    assert first == ["GET /b/key?a=b HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Accept-Encoding: identity"]
    assert {f"Content-Length: {1 << 20}", "X-Mine: 1"} < {*post}


def test_a_buffer_is_filled() -> None:
    """A body arrives in the caller's buffer; a connection with bytes left is closed, and replaced."""
    with _serving([_sized(_DATA), _sized(_DATA)], [_sized(b"new")]) as server:
        wire = _wire(server)
        buffer = memoryview(bytearray(len(_DATA)))
        with closing(_ask(wire)) as reply:
            at = 0
            while at < len(buffer):
                at += reply.readinto(buffer[at:])
        assert buffer == _DATA
        with closing(_ask(wire)) as reply:
            assert reply.read(10) == _DATA[:10]
        assert _body(wire) == b"new"
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        _sized(b"end", "Connection: close"),
        _head("Content-Length: 3", version="HTTP/1.0") + b"end",
        _head() + b"end",
    ],
)
def test_last_answers(answer: bytes) -> None:
    """Where the server closes after its answer, the next request has a connection of its own."""
    with _serving([answer], [_sized(b"next")]) as server:
        wire = _wire(server)
        assert (_body(wire), _body(wire)) == (b"end", b"next")
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        _head("Content-Length: 9") + b"short",
        _head("Transfer-Encoding: chunked") + b"zz\r\n",
        _head("Transfer-Encoding: chunked") + b"9\r\nshort",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 40_000,
    ],
)
def test_damaged_answers(answer: bytes) -> None:
    """What is cut short, or is no HTTP, is damaged, and its connection is not used again."""
    with _serving([answer]) as server:
        wire = _wire(server)
        with pytest.raises((HTTPException, ConnectionClosedError)):
            _body(wire)
        assert wire.take().sock is None


def test_no_answer() -> None:
    """A connection that is closed in place of an answer, and one on which nothing comes, are errors of botocore."""
    with _serving([b""]) as server, pytest.raises(ConnectionClosedError):
        _body(_wire(server))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wire = _wire(SimpleNamespace(port=silent.getsockname()[1]), timeout=0.3)  # type: ignore[arg-type]
        with pytest.raises(ReadTimeoutError):
            _body(wire)
        with pytest.raises(ReadTimeoutError):
            _body(wire, "PUT", bytes(1 << 26))


def test_an_early_refusal() -> None:
    """What a server says before it has read a whole body is the answer, although the connection ends then."""

    def wrap(line: socket.socket) -> socket.socket:
        line.recv(1 << 10)
        line.sendall(_head("Content-Length: 0", "Connection: close", status="503 Slow Down"))
        line.shutdown(socket.SHUT_WR)
        while line.recv(1 << 20):
            pass
        return line

    with _serving([], wrap=wrap) as server, closing(_ask(_wire(server), "PUT", bytes(1 << 22))) as reply:
        assert reply.status_code == 503


def test_ends_of_lines_in_headers() -> None:
    """A header cannot begin a second request."""
    with _serving([b""]) as server, pytest.raises(ValueError, match="Invalid header"):
        _ask(_wire(server), X="a\r\n\r\nGET /")


@pytest.mark.parametrize(
    "address",
    [
        "http://h",
        "http://h:80",
        "http://h:443",
        "https://b.s3.amazonaws.com",
        "https://h:443",
        "https://h:80",
        "http://[::1]",
        "http://[::1]:9000",
        "https://[2001:db8::a]",
    ],
)
def test_the_host_is_the_one_that_was_signed(address: str) -> None:
    """Whatever the address: botocore leaves out the port that the scheme has anyway, and S3 compares."""
    wire = wire_of(URLLib3Session(), f"{address}/b")
    assert wire is not None
    connection = wire.take()
    connection.sock, server = socket.socketpair()
    with server:
        server.sendall(_head(status="204 No Content"))
        wire.send(connection, SimpleNamespace(method="GET", url=f"{address}/b/key", headers={}, body=None)).close()
        rows = server.recv(1 << 16).decode().split("\r\n")
    connection.close()
    assert f"Host: {_host_from_url(f'{address}/b/key')}" in rows


def test_proxies_are_left_to_botocore() -> None:
    """Where botocore would use a proxy, or looks different inside, there are no such connections."""
    assert wire_of(URLLib3Session(proxies={"http": "http://127.0.0.1:1"}), "http://127.0.0.1:2/b") is None
    assert wire_of(object(), "http://127.0.0.1:2/b") is None


def test_tls(tmp_path: Path) -> None:
    """Over TLS the certificate is verified as botocore was told, and bodies of any size go both ways."""
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def wrap(line: socket.socket) -> socket.socket:
        return context.wrap_socket(line, server_side=True)

    with _serving([_sized(_DATA), _sized(b"second")], wrap=wrap) as server:
        wire = _wire(server, scheme="https", verify=certificate)
        assert (_body(wire), _body(wire, "PUT", _DATA)) == (_DATA, b"second")
        assert server.connections == 1
    with _serving([_sized(_DATA)], wrap=wrap) as server, pytest.raises(EndpointConnectionError) as refused:
        _body(_wire(server, scheme="https"))
    assert isinstance(refused.value.__cause__, ssl.SSLError)
