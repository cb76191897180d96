"""A proxy on loopback between an S3 client and a store: it records every request and makes chosen ones fail.

The client's endpoint is the proxy, addressing is by path; what a fault does not touch is forwarded as it came, `Host`
included. A kind of fault is a function around the forwarding of one request, so that faults add up: the one armed
first is the outermost. Whole bodies are held in memory, in the process of the test.

    with FaultProxy(over_http(host, port)) as proxy:
        armed = proxy.fail(Fault(status(503, "SlowDown"), operation="get", key="variables-0", nth=2))
        ...
        assert (armed.hits, proxy.count("get")) == (1, 9)
"""

from __future__ import annotations

import base64
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NoReturn, Self, TypeAlias, get_args
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

Operation = Literal[
    "list", "get", "head", "put", "copy", "delete", "delete_many", "create_upload", "upload_part", "upload_part_copy",
    "complete", "abort", "list_uploads", "list_parts", "other",
]  # fmt: skip

LISTING = {"list-type", "prefix", "delimiter", "marker", "start-after", "continuation-token", "max-keys",
           "encoding-type", "fetch-owner", "x-id"}  # fmt: skip
OF_A_KEY = {"partNumber", "versionId", "uploadId", "uploads", "max-parts", "part-number-marker", "x-id"}
CHECKSUM = ("x-amz-checksum-", "x-amz-sdk-checksum-")
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
ON_UPLOADS: dict[str, Operation] = {"GET": "list_parts", "PUT": "upload_part", "POST": "complete", "DELETE": "abort"}
ON_OBJECTS: dict[str, Operation] = {"GET": "get", "HEAD": "head", "PUT": "put", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request and what was replied; bytes are those of the bodies, `status` is None where no reply was sent."""

    method: str
    key: str  # after the bucket, decoded; empty where the bucket is meant
    operation: Operation
    request_bytes: int  # the framing of aws-chunked included
    response_bytes: int = 0
    status: int | None = None
    range: str | None = None
    if_match: str | None = None
    if_none_match: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way to the store; a fault may forward a changed one."""

    request: Request
    target: str  # path and query, as sent
    headers: tuple[tuple[str, str], ...]
    body: bytes
    stopping: threading.Event


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply on its way to the client; with `cut` the connection ends after a body shorter than announced."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    cut: bool = False


ONE_AT_A_TIME = threading.RLock()
"""Held while an application of this process answers: moto iterates over what its other threads change."""
Store: TypeAlias = Callable[[Call], Reply]
Forward: TypeAlias = Callable[[Call], Reply | None]
Kind: TypeAlias = Callable[[Call, Forward], Reply | None]  # None: reset the connection in place of a reply


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and when: at the nth request that matches, counted from `fail`, and `times` from there on."""

    kind: Kind
    operation: Operation | None = None  # None: any
    key: str | None = None  # a regular expression, searched for
    nth: int = 1
    times: int | None = 1  # None: for ever

    def __post_init__(self) -> None:
        if self.operation not in (None, *get_args(Operation)) or self.nth < 1:
            raise ValueError(f"this fault would never strike: {self}")


@dataclass(slots=True)
class Armed:
    """A fault at work: how many requests matched it, and how many it struck."""

    fault: Fault
    seen: int = 0
    hits: int = 0

    def strikes(self, request: Request) -> bool:
        """Count this request and say whether it is struck."""
        fault = self.fault
        if fault.operation not in (None, request.operation) or not re.search(fault.key or "", request.key):
            return False
        self.seen += 1
        struck = self.seen >= fault.nth and (fault.times is None or self.seen < fault.nth + fault.times)
        self.hits += struck
        return struck


# --- the kinds of faults


def status(number: int, code: str) -> Kind:
    """Reply with an error of S3, without forwarding; 200 too, as S3 does when completing an upload fails late."""

    def kind(call: Call, forward: Forward) -> Reply:
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>injected</Message></Error>'
        return Reply(number, (("Content-Type", "application/xml"), ("Content-Length", str(len(body)))), body.encode())

    return kind


def stall(seconds: float) -> Kind:
    """Wait, then forward: a client that gave up meanwhile finds its request done all the same."""

    def kind(call: Call, forward: Forward) -> Reply | None:
        return None if call.stopping.wait(seconds) else forward(call)

    return kind


def hook(function: Callable[[Request], Any]) -> Kind:
    """Call the function with the request, then forward; what it raises is raised again where the proxy is closed."""

    def kind(call: Call, forward: Forward) -> Reply | None:
        function(call.request)
        return forward(call)

    return kind


def reset(call: Call, forward: Forward) -> None:
    """Reset the connection; the store never hears of the request."""


def lose_reply(call: Call, forward: Forward) -> None:
    """Forward, so that the request takes effect, and reset the connection."""
    forward(call)


def truncate(call: Call, forward: Forward) -> Reply | None:
    """Announce the whole body, send half of it, close."""
    reply = forward(call)
    return reply and replace(reply, body=reply.body[: len(reply.body) // 2], cut=True)


def corrupt_reply(call: Call, forward: Forward) -> Reply | None:
    """Flip one bit in the middle of what is sent back; an empty body stays as it is."""
    reply = forward(call)
    return reply and replace(reply, body=flipped(reply.body, 0, len(reply.body)))


def corrupt_request(call: Call, forward: Forward) -> Reply | None:
    """Flip one bit in the middle of the data, never of the framing of aws-chunked; an empty body stays as it is."""
    start, size = 0, len(call.body)
    if "x-amz-decoded-content-length" in {name.lower() for name, _ in call.headers}:
        line, _, _ = call.body.partition(b"\r\n")
        start, size = len(line) + 2, int(line.partition(b";")[0], 16)
    return forward(replace(call, body=flipped(call.body, start, size)))


def ignore_conditions(call: Call, forward: Forward) -> Reply | None:
    """Forward without If-Match and If-None-Match, as a store does that knows no conditional writes."""
    kept = tuple((name, value) for name, value in call.headers if name.lower() not in {"if-match", "if-none-match"})
    return forward(replace(call, headers=kept))


# --- dialects: what S3 services make of the same requests


def refuse_quoted_etag(call: Call, forward: Forward) -> Reply | None:
    """Answer 412 to If-Match with an ETag in quotes, and take it without, as Ceph's gateway does."""
    if (call.request.if_match or "").startswith('"'):
        return status(412, "PreconditionFailed")(call, forward)
    quoted = tuple((name, f'"{value}"' if name.lower() == "if-match" else value) for name, value in call.headers)
    return forward(replace(call, headers=quoted))


def ignore_if_none_match(call: Call, forward: Forward) -> Reply | None:
    """Forward without If-None-Match: every write replaces."""
    kept = tuple((name, value) for name, value in call.headers if name.lower() != "if-none-match")
    return forward(replace(call, headers=kept))


def ignore_delimiter(call: Call, forward: Forward) -> Reply | None:
    """List everything below a prefix, as a service does that knows no delimiter."""
    if call.request.operation != "list":
        return forward(call)
    return forward(replace(call, target=re.sub(r"(?<=[?&])delimiter=[^&]*&?", "", call.target)))


def strange_etags(call: Call, forward: Forward) -> Reply | None:
    """Report ETags that look like MD5 sums and are none, everywhere in the same way: the digits in reverse order."""
    headers = tuple((n, _reversed(v) if n.lower() == "if-match" else v) for n, v in call.headers)
    reply = forward(replace(call, headers=headers, body=_reversed_in(call.body)))
    if reply is None:
        return None
    sent = tuple((n, _reversed(v) if n.lower() == "etag" else v) for n, v in reply.headers)
    return replace(reply, headers=sent, body=_reversed_in(reply.body))


def know_no_crc32c(call: Call, forward: Forward) -> Reply | None:
    """Ignore what a request says of checksums, as services do that are older than these."""
    known = tuple((name, value) for name, value in call.headers if not name.lower().startswith(CHECKSUM))
    return forward(
        replace(call, headers=known, body=re.sub(rb"<ChecksumCRC32C>[^<]*</ChecksumCRC32C>", b"", call.body))
    )


def refuse_crc32c(call: Call, forward: Forward) -> Reply | None:
    """Answer 400 to any request that says something of checksums."""
    said = any(name.lower().startswith(CHECKSUM) for name, _ in call.headers)
    return (status(400, "InvalidArgument") if said else _plain)(call, forward)


def list_no_uploads(call: Call, forward: Forward) -> Reply | None:
    """Answer 501 to a listing of uploads, as s3rver does."""
    return (status(501, "NotImplemented") if call.request.operation == "list_uploads" else _plain)(call, forward)


def _plain(call: Call, forward: Forward) -> Reply | None:
    return forward(call)


def _reversed(etag: str) -> str:
    return f'"{etag.strip(chr(34))[::-1]}"'


def _reversed_in(body: bytes) -> bytes:
    """Reverse the ETags in a document; other bodies stay as they are."""
    pattern = rb"(<ETag>(?:&quot;|&#34;|\")?)([0-9a-f-]+)((?:&quot;|&#34;|\")?</ETag>)"
    return re.sub(pattern, lambda m: m[1] + m[2][::-1] + m[3], body)


DIALECTS: dict[str, Kind] = {
    "412 for quoted If-Match": refuse_quoted_etag,
    "ignores If-None-Match": ignore_if_none_match,
    "no delimiter": ignore_delimiter,
    "ETag is no MD5": strange_etags,
    "no CRC-32C": know_no_crc32c,
    "no list of uploads": list_no_uploads,
}
"""Services that differ from AWS, each in one respect."""


def flipped(data: bytes, start: int, size: int) -> bytes:
    at = start + size // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if size else data


# --- the proxy


@dataclass
class FaultProxy:
    """The proxy before a store; a context manager."""

    store: Store
    requests: list[Request] = field(default_factory=list)  # in the order of their replies
    faults: list[Armed] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)  # not the client's: of hooks, of the store, our own
    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self.server = Server(self)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), name="s3-proxy")
        self.thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.server.hang_up()
        self.server.server_close()  # joins the threads of all connections
        self.thread.join()
        if self.errors and error is None:
            raise self.errors[0]

    @property
    def endpoint(self) -> str:
        """The URL for the client."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def fail(self, fault: Fault) -> Armed:
        """Arm a fault."""
        armed = Armed(fault)
        with self.lock:
            self.faults.append(armed)
        return armed

    def heal(self) -> None:
        """Disarm all faults; what was recorded stays."""
        with self.lock:
            self.faults.clear()

    def reset(self) -> None:
        """Forget all requests and disarm all faults."""
        with self.lock:
            self.requests.clear()
            self.faults.clear()

    def seen(self, operation: Operation | None = None, key: str = "") -> list[Request]:
        """The requests of this operation, or of any, whose key matches the regular expression."""
        with self.lock:
            return [r for r in self.requests if operation in (None, r.operation) and re.search(key, r.key)]

    def count(self, operation: Operation | None = None, key: str = "") -> int:
        """How many requests these are."""
        return len(self.seen(operation, key))

    def request_bytes(self, operation: Operation | None = None, key: str = "") -> int:
        """How many bytes they carried to the proxy."""
        return sum(r.request_bytes for r in self.seen(operation, key))

    def response_bytes(self, operation: Operation | None = None, key: str = "") -> int:
        """How many bytes of replies they got."""
        return sum(r.response_bytes for r in self.seen(operation, key))

    def answer(self, call: Call) -> Reply | None:
        """Take a request through the faults that strike it to the store, and record it."""
        forward = around(compare_crc32c, self.forward)
        with self.lock:
            struck = [armed.fault.kind for armed in self.faults if armed.strikes(call.request)]
        for kind in reversed(struck):
            forward = around(kind, forward)
        reply = forward(call)
        done = call.request
        if reply:
            sent = 0 if done.method == "HEAD" else len(reply.body)
            done = replace(done, status=reply.status, response_bytes=sent)
        with self.lock:
            self.requests.append(done)
        return reply

    def forward(self, call: Call) -> Reply:
        """Send a request to the store."""
        answer = self.store(call)
        kept = [(name, value) for name, value in answer.headers if name.lower() not in HOP_BY_HOP]
        if call.request.method == "HEAD":
            kept += [(name, value) for name, value in answer.headers if name.lower() == "content-length"]
        elif answer.status not in {204, 304}:
            kept.append(("Content-Length", str(len(answer.body))))
        return Reply(answer.status, tuple(kept), answer.body)


def compare_crc32c(call: Call, forward: Forward) -> Reply | None:
    """Refuse a body with another CRC-32C than its header says, as AWS does, and moto does not."""
    told = next((value for name, value in call.headers if name.lower() == "x-amz-checksum-crc32c"), "")
    is_right = not told or base64.b64encode(google_crc32c.value(call.body).to_bytes(4, "big")).decode() == told
    return (_plain if is_right else status(400, "BadDigest"))(call, forward)


def around(kind: Kind, forward: Forward) -> Forward:
    return lambda call: kind(call, forward)


def describe(method: str, target: str, headers: Message, size: int) -> Request:
    """Name what is asked for."""
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
    query = set(parse_qs(parts.query, keep_blank_values=True))
    operation: Operation = "other"
    if key and "uploadId" in query:
        operation = ON_UPLOADS.get(method, "other")
    elif key and method == "POST" and "uploads" in query:
        operation = "create_upload"
    elif key and all(name in OF_A_KEY or name.startswith("response-") for name in query):
        operation = ON_OBJECTS.get(method, "other")
    elif bucket and not key and method == "GET":
        operation = "list_uploads" if "uploads" in query else "list" if query <= LISTING else "other"
    elif bucket and not key and method == "POST" and "delete" in query:
        operation = "delete_many"
    if "x-amz-copy-source" in headers:
        operation = "copy" if operation == "put" else "upload_part_copy"
    conditions = (headers.get(name) for name in ("Range", "If-Match", "If-None-Match"))
    return Request(method, key, operation, size, 0, None, *conditions)


class Server(ThreadingHTTPServer):
    """Accepts connections, each with a thread of its own, and can end them all."""

    daemon_threads = False  # so that server_close joins them
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept, and remember the connection."""
        accepted, address = super().get_request()
        self.open.add(accepted)
        return accepted, address

    def close_request(self, request: Any) -> None:
        """Close, and forget the connection."""
        self.open.discard(request)
        super().close_request(request)

    def hang_up(self) -> None:
        """End the connections that clients keep alive; their threads read the end of the stream."""
        for connection in tuple(self.open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # ended by itself
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong for the test; nothing is printed."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):  # the client went away, as clients do
            self.proxy.errors.append(error)


class Handler(BaseHTTPRequestHandler):
    """One connection of a client; `Expect: 100-continue` is answered by the base class."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def relay(self) -> None:
        """Read one request, have it answered, send the reply."""
        body = self.read_body()
        call = Call(
            describe(self.command, self.path, self.headers, len(body)),
            self.path,
            tuple(self.headers.items()),
            body,
            self.server.proxy.stopping,
        )
        reply = self.server.proxy.answer(call)
        if reply is None:
            self.reset()
            return
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        self.close_connection = self.close_connection or reply.cut

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = relay  # noqa: N815 - the names http.server looks for

    def read_body(self) -> bytes:
        """Read the whole body, of a known length or in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.read_exactly(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.read_line().partition(b";")[0], 16):
            pieces.append(self.read_exactly(size))
            self.read_line()
        while self.read_line().strip():  # trailers of HTTP, which S3 does not use
            pass
        return b"".join(pieces)

    def read_line(self) -> bytes:
        """Read a line of the framing."""
        return self.rfile.readline() or self.gone()

    def read_exactly(self, size: int) -> bytes:
        """Read this many bytes; a request that ends early is never forwarded."""
        data = self.rfile.read(size)
        return data if len(data) == size else self.gone()

    def gone(self) -> NoReturn:
        """End the connection."""
        raise ConnectionError("the client went away in the middle of a body")

    def reset(self) -> None:
        """Close with RST: lingering for no time does that, once nothing else holds the socket."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()
