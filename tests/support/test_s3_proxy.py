"""The fault proxy does to requests what each fault says, and nothing to any other; the fixtures around it hold."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from s3_fixtures import Bucket
from s3_proxy import (
    Fault,
    FaultProxy,
    Kind,
    Operation,
    Request,
    Store,
    corrupt_reply,
    corrupt_request,
    hook,
    ignore_conditions,
    lose_reply,
    reset,
    stall,
    status,
    truncate,
)
from s3_stores import over_http
from waiting import wait_until

DATA = bytes(range(256)) * 64
SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
SLOW_DOWN = status(503, "SlowDown")


class Echo(BaseHTTPRequestHandler):
    """A store that replies with what it was sent."""

    protocol_version = "HTTP/1.1"

    def echo(self) -> None:
        """Reply with the path, the headers and the body."""
        size = int(self.headers.get("Content-Length", 0))
        held = {"path": self.path, "headers": self.headers.items(), "body": self.rfile.read(size).decode("latin-1")}
        reply = json.dumps(held).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_PUT = echo  # noqa: N815 - the names http.server looks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Print nothing."""


@pytest.fixture
def echo() -> Iterator[FaultProxy]:
    """Return a proxy before a store that replies with what it was sent."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as store:
        thread = threading.Thread(target=store.serve_forever, args=(0.02,))
        thread.start()
        try:
            with FaultProxy(over_http("127.0.0.1", store.server_address[1])) as proxy:
                yield proxy
        finally:
            store.shutdown()
            thread.join()


@pytest.fixture
def fs(s3: Bucket) -> Any:
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


def address(proxy: FaultProxy) -> tuple[str, int]:
    return "127.0.0.1", proxy.server.server_address[1]


def connect(proxy: FaultProxy, timeout: float = 30) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*address(proxy), timeout=timeout)


def ask(proxy: FaultProxy, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """Send one request, as it stands, and return the status and the body of the reply."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connect(proxy)) as connection:
        connection.request(method, path, body, {"Authorization": SIGNED, **named})
        with connection.getresponse() as reply:
            return reply.status, reply.read()


def echoed(proxy: FaultProxy, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
    """Return the path, the headers (by lower-case name) and the body that reached the store."""
    _, reply = ask(proxy, method, path, body, **headers)
    held: dict[str, Any] = json.loads(reply)
    return {**held, "headers": {name.lower(): value for name, value in held["headers"]}}


def bits_apart(one: bytes, other: bytes) -> int:
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def statuses(proxy: FaultProxy) -> list[int | None]:
    return [request.status for request in proxy.requests]


# --- what no fault touches


def test_bytes_come_through(s3: Bucket, fs: Any) -> None:
    """What is written and read through the proxy is what is in the store, whatever the key, empty objects too."""
    for key, data in [("run/a b/ü%2Fx+y", DATA), ("run/empty", b""), ("run/one", b"1")]:
        fs.pipe_file(f"{s3.name}/{key}", data)
        assert s3.get(key) == fs.cat_file(f"{s3.name}/{key}") == data
        assert s3.proxy.count("put", f"^{key.replace('+', '.')}$") == 1
    assert s3.objects() == {"run/a b/ü%2Fx+y": len(DATA), "run/empty": 0, "run/one": 1}


def test_headers_come_through(echo: FaultProxy) -> None:
    """The path reaches the store as it was sent, and so does every header, Host included."""
    held = echoed(echo, "GET", "/b/k%20%2B?x-id=GetObject", Host="store.example:9", x_amz_meta_a="b", Range="bytes=3-")
    assert held["path"] == "/b/k%20%2B?x-id=GetObject"
    assert held["headers"] == {
        "host": "store.example:9",
        "x-amz-meta-a": "b",
        "range": "bytes=3-",
        "authorization": SIGNED,
        "accept-encoding": "identity",
    }


def test_bodies_of_known_length_and_in_chunks(echo: FaultProxy) -> None:
    """A body reaches the store whole, sent with its length or in chunks of HTTP."""
    for body in (b"hello world", iter([b"hello", b" ", b"world"])):
        held = echoed(echo, "PUT", "/b/k", body)
        assert (held["body"], held["headers"]["content-length"]) == ("hello world", "11")
        assert "transfer-encoding" not in held["headers"]
    assert [request.request_bytes for request in echo.requests] == [11, 11]


def test_expect_continue(echo: FaultProxy) -> None:
    """A client that asks before it sends its body is told to go on, and its body is forwarded."""
    with closing(socket.create_connection(address(echo), timeout=30)) as client:
        client.sendall(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        reply = client.recv(10_000)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert echo.requests[0].request_bytes == 5


AWS_CHUNKED = {
    "Content_Encoding": "aws-chunked",
    "x_amz_content_sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x_amz_decoded_content_length": "5",
    "x_amz_trailer": "x-amz-checksum-crc32",
}
FRAMED = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"


@pytest.mark.parametrize("in_chunks", [False, True])
def test_aws_chunked(s3: Bucket, in_chunks: bool) -> None:
    """A body framed as aws-chunked arrives with its frame, and the object is what was inside."""
    path = f"/{s3.name}/run/k"
    body: Any = iter([FRAMED[:7], FRAMED[7:]]) if in_chunks else FRAMED
    assert ask(s3.proxy, "PUT", path, body, **AWS_CHUNKED)[0] == 200
    assert s3.get("run/k") == b"hello"
    s3.proxy.fail(Fault(corrupt_request))
    assert ask(s3.proxy, "PUT", path, FRAMED, **AWS_CHUNKED)[0] == 200  # as moto does not compare checksums
    assert bits_apart(s3.get("run/k"), b"hello") == 1


def test_connection_is_kept(s3: Bucket) -> None:
    """Requests of every kind follow each other on one connection, errors injected among them."""
    s3.put("run/k", DATA)
    s3.proxy.fail(Fault(SLOW_DOWN, nth=3))
    with closing(connect(s3.proxy)) as connection:
        sockets = set()
        for method, key in [("GET", "run/k"), ("HEAD", "run/k"), ("GET", "run/k"), ("GET", "no"), ("DELETE", "run/k")]:
            connection.request(method, f"/{s3.name}/{key}", headers={"Authorization": SIGNED})
            with connection.getresponse() as reply:
                reply.read()
            sockets.add(connection.sock)
    assert len(sockets) == 1
    assert statuses(s3.proxy) == [200, 200, 503, 404, 204]


def test_many_at_once(s3: Bucket) -> None:
    """Requests at the same time are all answered and all recorded."""
    for number in range(20):
        s3.put(f"run/{number}", DATA[:number])

    def read(number: int) -> int:
        return len(ask(s3.proxy, "GET", f"/{s3.name}/run/{number % 20}")[1])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(read, range(100))) == list(range(20)) * 5
    assert s3.proxy.count("get") == 100
    assert s3.proxy.response_bytes("get") == sum(range(20)) * 5


# --- what is recorded


def test_operations(s3: Bucket, fs: Any) -> None:
    """Every request S3 knows has its name."""
    here = {"Bucket": s3.name, "Key": "run/k"}
    source = {"Bucket": s3.name, "Key": "run/k"}

    def call(expected: Operation, method: str, **settings: Any) -> Any:
        s3.proxy.reset()
        reply = fs.call_s3(method, **settings)
        assert [(r.operation, r.key) for r in s3.proxy.requests] == [(expected, settings.get("Key", ""))]
        return reply

    call("put", "put_object", **here, Body=DATA)
    call("get", "get_object", **here, PartNumber=1)
    call("head", "head_object", **here)
    call("copy", "copy_object", **here | {"Key": "run/copy"}, CopySource=source)
    call("list", "list_objects_v2", Bucket=s3.name, Prefix="run/", Delimiter="/", MaxKeys=3)
    call("list", "list_objects", Bucket=s3.name)
    upload = {"UploadId": call("create_upload", "create_multipart_upload", **here)["UploadId"]}
    call("upload_part_copy", "upload_part_copy", **here, **upload, PartNumber=2, CopySource=source)
    part = call("upload_part", "upload_part", **here, **upload, PartNumber=1, Body=DATA)
    call("list_uploads", "list_multipart_uploads", Bucket=s3.name)
    call("list_parts", "list_parts", **here, **upload)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    call("complete", "complete_multipart_upload", **here, **upload, MultipartUpload=parts)
    upload = {"UploadId": call("create_upload", "create_multipart_upload", **here)["UploadId"]}
    call("abort", "abort_multipart_upload", **here, **upload)
    call("delete", "delete_object", **here)
    call("delete_many", "delete_objects", Bucket=s3.name, Delete={"Objects": [{"Key": "run/copy"}]})
    call("other", "get_bucket_location", Bucket=s3.name)
    call("other", "head_bucket", Bucket=s3.name)
    call("other", "list_buckets")


def test_records(s3: Bucket) -> None:
    """A record holds the conditions and the range asked for, the bytes both ways and the status; reset forgets all."""
    path = f"/{s3.name}/run/k"
    ask(s3.proxy, "PUT", path, DATA, If_None_Match="*")
    ask(s3.proxy, "GET", path, Range="bytes=3-9")
    ask(s3.proxy, "HEAD", path, If_Match='"x"')
    assert s3.proxy.requests == [
        Request("PUT", "run/k", "put", len(DATA), 0, 200, if_none_match="*"),
        Request("GET", "run/k", "get", 0, 7, 206, range="bytes=3-9"),
        Request("HEAD", "run/k", "head", 0, 0, 412, if_match='"x"'),
    ]
    assert (s3.proxy.count(), s3.proxy.count("get"), s3.proxy.count("get", "z$"), s3.proxy.count("list")) == (
        3,
        1,
        0,
        0,
    )
    assert (s3.proxy.request_bytes(), s3.proxy.response_bytes()) == (len(DATA), 7)
    s3.proxy.fail(Fault(reset, times=None))
    s3.proxy.reset()
    assert s3.proxy.requests == []
    assert ask(s3.proxy, "GET", path) == (200, DATA)


# --- when a fault strikes


def test_nth_and_times(s3: Bucket) -> None:
    """A fault strikes from the nth match on, as often as told, counted from when it was armed."""
    s3.put("run/k", DATA)
    for _ in range(2):
        armed = s3.proxy.fail(Fault(SLOW_DOWN, nth=2, times=2))
        for _ in range(5):
            ask(s3.proxy, "GET", f"/{s3.name}/run/k")
        assert (armed.seen, armed.hits) == (5, 2)
    assert statuses(s3.proxy) == [200, 503, 503, 200, 200] * 2


def test_for_ever_until_healed(s3: Bucket) -> None:
    """A fault without a number of times strikes until it is healed, and healing keeps the records."""
    s3.put("run/k", DATA)
    s3.proxy.fail(Fault(SLOW_DOWN, times=None))
    for _ in range(3):
        ask(s3.proxy, "GET", f"/{s3.name}/run/k")
    s3.proxy.heal()
    ask(s3.proxy, "GET", f"/{s3.name}/run/k")
    assert statuses(s3.proxy) == [503, 503, 503, 200]


def test_only_what_matches(s3: Bucket) -> None:
    """A fault strikes its operation and its keys only; the others neither suffer nor count."""
    for key in ("run/a-0", "run/a-1"):
        s3.put(key, DATA)
    s3.proxy.fail(Fault(SLOW_DOWN, operation="get", key=r"-1$", nth=2))
    for method, key in [
        ("GET", "a-0"),
        ("GET", "a-1"),
        ("HEAD", "a-1"),
        ("GET", "a-0"),
        ("GET", "a-1"),
        ("GET", "a-1"),
    ]:
        ask(s3.proxy, method, f"/{s3.name}/run/{key}")
    assert statuses(s3.proxy) == [200, 200, 200, 200, 503, 200]


def test_faults_add_up(s3: Bucket) -> None:
    """Two faults strike one request, the one armed first around the other."""
    s3.put("run/k", DATA)
    s3.proxy.fail(Fault(lose_reply))
    s3.proxy.fail(Fault(ignore_conditions))
    with pytest.raises(ConnectionResetError):
        ask(s3.proxy, "PUT", f"/{s3.name}/run/k", b"new", If_None_Match="*")
    assert s3.get("run/k") == b"new"


@pytest.mark.parametrize("settings", [{"operation": "git"}, {"nth": 0}])
def test_a_fault_that_would_never_strike(settings: dict[str, Any]) -> None:
    """A mistake in a fault is an error at once, not a test that passes without its fault."""
    with pytest.raises(ValueError, match="never strike"):
        Fault(reset, **settings)


# --- what a fault does


@pytest.mark.parametrize(
    ("number", "code"),
    [(500, "InternalError"), (503, "SlowDown"), (403, "AccessDenied"), (412, "PreconditionFailed"),
     (501, "NotImplemented"), (200, "InternalError")],
)  # fmt: skip
def test_status(s3: Bucket, number: int, code: str) -> None:
    """The reply is an error of S3, and the store never hears of the request."""
    s3.proxy.fail(Fault(status(number, code)))
    answer, body = ask(s3.proxy, "PUT", f"/{s3.name}/run/k", DATA)
    assert answer == number
    assert f"<Code>{code}</Code>".encode() in body
    assert s3.objects() == {}
    assert (s3.proxy.requests[0].status, s3.proxy.requests[0].response_bytes) == (number, len(body))


def test_status_as_s3fs_sees_it(s3: Bucket, fs: Any) -> None:
    """SlowDown is tried again by s3fs; a refusal is an error with the name the code asks for."""
    s3.put("run/k", DATA)
    s3.proxy.fail(Fault(SLOW_DOWN, operation="get"))
    assert fs.cat_file(f"{s3.url}/k", start=0, end=9) == DATA[:9]
    assert statuses(s3.proxy) == [503, 206]
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="get"))
    with pytest.raises(PermissionError):
        fs.cat_file(f"{s3.url}/k", start=0, end=9)
    s3.proxy.fail(Fault(status(403, "Forbidden"), operation="head"))
    with pytest.raises(PermissionError):
        fs.info(f"{s3.url}/k")


@pytest.mark.parametrize(("kind", "takes_effect"), [(reset, False), (lose_reply, True)])
def test_reset_and_lose_reply(s3: Bucket, kind: Kind, takes_effect: bool) -> None:
    """The client gets a reset, not the end of a stream; the object is written only where just the reply is lost."""
    s3.proxy.fail(Fault(kind))
    with pytest.raises(ConnectionResetError) as caught:
        ask(s3.proxy, "PUT", f"/{s3.name}/run/k", DATA)
    assert caught.type is ConnectionResetError  # http.client has a class below it for the end of a stream
    assert s3.objects() == ({"run/k": len(DATA)} if takes_effect else {})
    assert [(r.status, r.response_bytes) for r in s3.proxy.requests] == [(None, 0)]


def test_lost_reply_looks_like_exists_already(s3: Bucket, fs: Any) -> None:
    """The client tries a conditional write again whose reply was lost, and meets its own object."""
    s3.proxy.fail(Fault(lose_reply, operation="put"))
    with pytest.raises(OSError, match="pre-conditions") as caught:
        fs.call_s3("put_object", Bucket=s3.name, Key="run/k", Body=DATA, IfNoneMatch="*")
    assert "PreconditionFailed" in repr(caught.value.__cause__)
    assert statuses(s3.proxy) == [None, 412]
    assert s3.get("run/k") == DATA


def test_truncate(s3: Bucket, fs: Any) -> None:
    """Half of the body comes, then the end; s3fs notices and asks again."""
    s3.put("run/k", DATA)
    s3.proxy.fail(Fault(truncate))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(s3.proxy, "GET", f"/{s3.name}/run/k")
    assert caught.value.partial == DATA[: len(DATA) // 2]
    assert caught.value.expected == len(DATA) // 2
    s3.proxy.fail(Fault(truncate, operation="get"))
    assert fs.cat_file(f"{s3.url}/k", start=0, end=100) == DATA[:100]
    assert [r.response_bytes for r in s3.proxy.requests] == [len(DATA) // 2, 50, 100]


def test_corrupt_reply(s3: Bucket, fs: Any) -> None:
    """One bit of the reply is wrong; s3fs returns a range with it and says nothing."""
    s3.put("run/k", DATA)
    s3.proxy.fail(Fault(corrupt_reply, operation="get", times=2))
    assert bits_apart(ask(s3.proxy, "GET", f"/{s3.name}/run/k")[1], DATA) == 1
    assert bits_apart(fs.cat_file(f"{s3.url}/k", start=10, end=20), DATA[10:20]) == 1
    assert s3.get("run/k") == DATA


def test_corrupt_request(s3: Bucket, fs: Any) -> None:
    """One bit is wrong in the store; a body without bytes stays as it is."""
    s3.proxy.fail(Fault(corrupt_request, operation="put", times=2))
    fs.pipe_file(f"{s3.url}/k", DATA)
    fs.pipe_file(f"{s3.url}/empty", b"")
    assert bits_apart(s3.get("run/k"), DATA) == 1
    assert s3.get("run/empty") == b""


def test_stall(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request waits, others do not; a client that gives up finds it done all the same."""
    asked: list[float] = []
    over = threading.Event()

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        return not over.wait(60)

    monkeypatch.setattr(s3.proxy.stopping, "wait", wait)
    s3.proxy.fail(Fault(stall(0.5), operation="put"))
    with closing(connect(s3.proxy)) as connection:
        connection.request("PUT", f"/{s3.name}/run/k", DATA, {"Authorization": SIGNED})
        wait_until(lambda: asked == [0.5])
    assert ask(s3.proxy, "GET", f"/{s3.name}/run/k")[0] == 404
    over.set()
    wait_until(lambda: s3.proxy.count("put"))
    assert s3.get("run/k") == DATA


def test_ignore_conditions(s3: Bucket) -> None:
    """A conditional write is refused, and done where the store knows no conditions; the record keeps the condition."""
    s3.put("run/k", b"old")
    path = f"/{s3.name}/run/k"
    assert ask(s3.proxy, "PUT", path, b"new", If_None_Match="*")[0] == 412
    assert s3.get("run/k") == b"old"
    s3.proxy.fail(Fault(ignore_conditions, times=None))
    assert ask(s3.proxy, "PUT", path, b"new", If_None_Match="*")[0] == 200
    assert s3.get("run/k") == b"new"
    assert ask(s3.proxy, "GET", path, If_Match='"x"') == (200, b"new")
    assert [r.if_none_match for r in s3.proxy.seen("put")] == ["*", "*"]


def test_hook(s3: Bucket, fs: Any) -> None:
    """A hook is called with the request before the store sees it: here it overwrites between two reads."""
    s3.put("run/k", b"a" * 20)
    called: list[Request] = []

    def overwrite(request: Request) -> None:
        called.append(request)
        s3.put("run/k", b"b" * 20)

    s3.proxy.fail(Fault(hook(overwrite), operation="get", nth=2))
    assert [fs.cat_file(f"{s3.url}/k", start=at, end=at + 10) for at in (0, 10)] == [b"a" * 10, b"b" * 10]
    assert [(r.key, r.range, r.status) for r in called] == [("run/k", "bytes=10-19", None)]


# --- the end


def fail_one(store: Store, kind: Kind) -> None:
    with FaultProxy(store) as proxy:
        proxy.fail(Fault(kind))
        with pytest.raises(ConnectionResetError):
            ask(proxy, "GET", "/bucket/run/k")


def test_what_a_hook_raises_is_raised_at_the_end(s3: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    """An assertion in a hook fails the test, and prints nothing."""

    def fails(request: Request) -> None:
        raise AssertionError(f"no {request.operation} was to come")

    with pytest.raises(AssertionError, match="no get was to come"):
        fail_one(s3.proxy.store, hook(fails))
    assert capfd.readouterr() == ("", "")


def test_store_that_does_not_answer() -> None:
    """A store that is not there is an error of the test, not a fault."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RuntimeError, match="GET /bucket/run/k: the store does not answer"):
        fail_one(over_http("127.0.0.1", port), ignore_conditions)


def test_client_that_goes_away(s3: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    """A request that ends in the middle of its body is not forwarded, and is no error."""
    for line in ("Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"):
        with closing(socket.create_connection(address(s3.proxy), timeout=30)) as client:
            client.sendall(f"PUT /{s3.name}/run/k HTTP/1.1\r\nAuthorization: {SIGNED}\r\n{line}".encode())
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b""
    assert s3.objects() == {}
    assert (s3.proxy.requests, s3.proxy.errors) == ([], [])
    assert capfd.readouterr() == ("", "")


def proxy_threads() -> set[threading.Thread]:
    """Return the threads of all proxies of this process."""
    return {each for each in threading.enumerate() if each.name == "s3-proxy" or "process_request" in each.name}


def test_nothing_is_left_running(s3: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    """The end waits neither for a connection kept alive nor for a stalled request, and leaves no thread."""
    before = proxy_threads()
    began = time.monotonic()
    with ExitStack() as clients:
        with FaultProxy(s3.proxy.store) as proxy:
            idle, stalled = (clients.enter_context(closing(connect(proxy))) for _ in range(2))
            idle.request("GET", f"/{s3.name}/run/k")
            idle.getresponse().read()
            armed = proxy.fail(Fault(stall(600)))
            stalled.request("PUT", f"/{s3.name}/run/k", DATA, {"Authorization": SIGNED})
            wait_until(lambda: armed.hits)
            assert proxy_threads() - before
        assert time.monotonic() < began + 300
        assert not proxy_threads() - before
    assert (s3.objects(), capfd.readouterr()) == ({}, ("", ""))


# --- the fixtures


def test_bucket_is_fresh(s3: Bucket) -> None:
    """A bucket is empty at first, and nothing the test looks at is recorded."""
    assert (s3.objects(), s3.open_uploads()) == ({}, [])
    s3.put("run/k", DATA)
    assert (s3.get("run/k"), s3.objects()) == (DATA, {"run/k": len(DATA)})
    s3.delete("run/k")
    upload = s3.backend.create_multipart_upload(s3.name, "run/k", {}, "STANDARD", {}, None, "", "").id
    assert (s3.objects(), s3.open_uploads()) == ({}, [("run/k", upload)])
    assert s3.proxy.requests == []


def test_subprocesses_come_here(s3: Bucket) -> None:
    """A program started by a test goes through the proxy too, with nothing told but the URL."""
    code = "import fsspec, sys; fsspec.open(sys.argv[1], 'wb').open().close()"
    subprocess.run([sys.executable, "-c", code, f"{s3.url}/k"], check=True, timeout=60, env=os.environ)
    assert s3.objects() == {"run/k": 0}
    assert s3.proxy.count("put") == 1
