"""Blocking requests: a signal ends the waiting at once, a fork begins anew, bytes are counted."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace

import pytest

from edl_ckpt.core import list_versions
from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.location import Location
from forked import run_forked
from s3_fixtures import Bucket
from s3_proxy import Call, Fault, Forward, Reply, hook, stall
from waiting import wait_until

_BYTES = bytes(range(256)) * 4096


@pytest.mark.parametrize("workers", [1, 4])
def test_a_signal_ends_the_waiting(s3: Bucket, workers: int) -> None:
    """Ctrl-C while no answer comes ends a read before it comes, in the main thread and in workers."""
    s3.put("run/x", _BYTES)
    reader = open_store(s3.url).open(f"{s3.url}/x")
    main = threading.main_thread().ident
    assert main is not None
    s3.proxy.fail(Fault(hook(lambda _request: signal.pthread_kill(main, signal.SIGINT)), operation="get"))
    s3.proxy.fail(Fault(stall(120), operation="get", times=None))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(run_parallel(lambda k: reader.read(k << 17, 1 << 17), range(8), workers))
    assert time.monotonic() - begin < 60


def test_a_fork_has_connections_of_its_own(s3: Bucket) -> None:
    """A child of a process that has used S3 makes its own client, and the parent's goes on."""
    s3.put("run/version-1/variables-0-of-1.ckpt", b"x")
    store = open_store(s3.url)
    assert store.read_small("version-1/variables-0-of-1.ckpt") == b"x"

    def child() -> None:
        assert store.read_small("version-1/variables-0-of-1.ckpt") == b"x"
        assert len(list_versions(s3.url).versions) == 1

    assert run_forked(child) == 0
    assert store.read_small("version-1/variables-0-of-1.ckpt") == b"x"


def test_threads_end(s3: Bucket) -> None:
    """No thread outlives the request or the connection that it was started for, and connections are used again."""
    s3.put("run/x", _BYTES)
    before = {each for each in threading.enumerate() if each.name == "edl-ckpt-s3"}
    reader = open_store(s3.url).open(f"{s3.url}/x")
    for _ in range(20):
        assert list(run_parallel(lambda k: reader.read(k << 17, 8), range(8), 4)) == [_BYTES[:8]] * 8
    wait_until(lambda: {each for each in threading.enumerate() if each.name == "edl-ckpt-s3"} <= before)
    assert len(reader.read(0, 1 << 19)) == 1 << 19


def _longer(call: Call, forward: Forward) -> Reply | None:
    """Answer with a byte too many."""
    reply = forward(call)
    if reply is None:
        return None
    headers = tuple((n, str(len(reply.body) + 1) if n.lower() == "content-length" else v) for n, v in reply.headers)
    return replace(reply, headers=headers, body=reply.body + b"!")


def _shorter(call: Call, forward: Forward) -> Reply | None:
    """Answer without the last byte, and say so."""
    reply = forward(call)
    if reply is None:
        return None
    headers = tuple((n, str(len(reply.body) - 1) if n.lower() == "content-length" else v) for n, v in reply.headers)
    return replace(reply, headers=headers, body=reply.body[:-1])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries follow each other without a pause."""
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.pause", lambda _seconds: None)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", [_longer, _shorter])
def test_an_answer_of_another_size_is_damaged(s3: Bucket, kind: object) -> None:
    """A range with a byte too many or too few is asked for again; five times wrong is error 13."""
    s3.put("run/x", _BYTES)
    reader = open_store(s3.url).open(f"{s3.url}/x")
    buffer = bytearray(1 << 19)
    armed = s3.proxy.fail(Fault(kind, operation="get"))  # type: ignore[arg-type]
    reader.read_into(1 << 18, memoryview(buffer))
    assert (armed.hits, bytes(buffer)) == (1, _BYTES[1 << 18 : 3 << 18])
    s3.proxy.fail(Fault(kind, operation="get", times=None))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="damaged"):
        reader.read_into(1 << 18, memoryview(buffer))


@pytest.mark.usefixtures("at_once")
def test_the_usual_environment(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies come from the environment, and an error shows neither their password nor a key."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://service.invalid")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", s3.proxy.endpoint.replace("http://", "http://someone:proxy-password@"))
    options = {"key": "AKIDEXAMPLE", "secret": "very-secret-words"}
    with pytest.raises(EdlCkptError) as error:
        open_store(Location("s3://bucket/run", options)).read_small("x")
    assert s3.proxy.count() >= 1  # it was asked, for a host that does not exist
    shown = f"{error.value} {error.value.hint} {error.value!r}"
    assert not any(secret in shown for secret in ("proxy-password", "AKIDEXAMPLE", "very-secret"))
