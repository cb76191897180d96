"""S3 services that differ from AWS pass the store contract, and the main commands work on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import lists_marks
from edl_ckpt.core.storage.s3 import client
from places import GOLDEN
from program import inside
from s3_fixtures import Bucket
from s3_proxy import (
    DIALECTS,
    Call,
    Fault,
    Forward,
    Kind,
    Reply,
    ignore_conditions,
    ignore_if_none_match,
    lose_reply,
    status,
)
from store_contract import RemoteContract


def speak(s3: Bucket, *names: str) -> Bucket:
    """Let the service speak these dialects from now on; a client learns them anew."""
    client._connection.cache_clear()
    for name in names:
        s3.proxy.fail(Fault(DIALECTS[name], times=None))
    return s3


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest, s3: Bucket) -> Bucket:
    """Return a bucket of a service that speaks another dialect."""
    return speak(s3, request.param)


class TestAllDialectsAtOnce(RemoteContract):
    """The store contract on a service that differs from AWS in every respect."""

    bucket: Bucket

    @pytest.fixture(autouse=True)
    def _place(self, s3: Bucket) -> None:
        self._put(speak(s3, *DIALECTS))

    def _put(self, dialect: Bucket) -> None:
        for path in (GOLDEN / "multi").rglob("*.ckpt"):
            dialect.put(f"run/{path.relative_to(GOLDEN / 'multi')}", path.read_bytes())
        self.location, self.bucket = dialect.url, dialect

    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes in a file's place."""
        self.bucket.put(path.partition(f"{self.bucket.name}/")[2], data)

    def test_never_over_another(self) -> None:
        """A name that was taken meanwhile is refused, but where If-None-Match is ignored (the lock keeps order)."""
        if ignore_if_none_match not in {armed.fault.kind for armed in self.bucket.proxy.faults}:
            super().test_never_over_another()


@pytest.mark.slow
class TestEachDialect(TestAllDialectsAtOnce):
    """The same with each dialect alone."""

    @pytest.fixture(autouse=True)
    def _place(self, dialect: Bucket) -> None:
        self._put(dialect)


@pytest.mark.parametrize(
    "names",
    [pytest.param((*DIALECTS,), id="all"), *(pytest.param((n,), marks=pytest.mark.slow, id=n) for n in DIALECTS)],
)
def test_main_commands(s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]) -> None:
    """list, reshard in place and --output, copy, tag, verify, prune, recover and unlock do what they do on AWS."""
    dialect = speak(s3, *names)
    dialect.upload(GOLDEN / "multi")
    run, other, third = dialect.url, f"s3://{dialect.name}/other", f"s3://{dialect.name}/third"

    def edl(*arguments: str | Path, code: int = 0) -> Any:
        return inside(capsys, *arguments, code=code)

    listed = edl("list", run)["locations"][0]["versions"]
    assert [(v["version"], v["shards"]) for v in listed] == [(9, 2), (20, 2), (100, 1)]
    text = edl("verify", f"{run}@20", "--seal")["fingerprint"]
    assert edl("reshard", f"{run}@20", "--ps", "3", "--output", other)["fingerprint"] == text
    assert edl("reshard", f"{other}@20", "--ps", "2", "--output", other, code=16)["id"] == "refused"
    assert edl("reshard", f"{run}@20", "--ps", "5")["fingerprint"] == text
    assert edl("copy", f"{run}@20", third)["copied"][0]["fingerprint"] == text
    assert edl("copy", f"{run}@20", tmp_path / "disk")["copied"][0]["fingerprint"] == text
    edl("tag", "add", f"{run}@20", "good")
    assert edl("list", run)["locations"][0]["versions"][1]["tags"] == ["good"]
    for place in (run, other, third):
        check = edl("verify", f"{place}@20", "--deep")
        assert (check["fingerprint"], check["sealed"], check["findings"]) == (text, True, [])
    assert edl("prune", run, "--keep", "1", "--yes")["deleted"] == 1
    assert edl("recover", run)["done"] == []
    assert edl("unlock", run)["holders"] == []
    assert dialect.open_uploads() == []
    assert not any("stage-0" in key or "lock-0" in key for key in dialect.objects())


def test_large_shards(s3: Bucket, large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards of several parts are written, read by ranges of one generation, and read back."""
    dialect = speak(s3, *DIALECTS)
    dialect.upload(large)
    result = inside(capsys, "reshard", dialect.url, "--ps", "3", "--output", f"s3://{dialect.name}/out")
    check = inside(capsys, "verify", f"s3://{dialect.name}/out", "--deep")
    assert (check["fingerprint"], check["sealed"]) == (result["fingerprint"], True)


@pytest.mark.parametrize("name", ["", *DIALECTS])
def test_a_write_over_what_was_read(s3: Bucket, name: str) -> None:
    """A small object is replaced while it is the one that was read, also when an answer is lost; another one stays."""
    store = open_store(speak(s3, *([name] if name else [])).url)
    assert lists_marks(store)
    for data in (b"one", b"two"):
        s3.proxy.fail(Fault(lose_reply, operation="put"))
        seen = store.stat("x")
        store.write_over("x", data, seen)
        assert s3.get("run/x") == data
    for stale in (seen, None):
        if stale or name != "ignores If-None-Match":
            with pytest.raises(LockedError, match="another process changed it"):
                store.write_over("x", b"three", stale)
        assert s3.get("run/x") == b"two"


@pytest.mark.parametrize("kind", [ignore_conditions, status(501, "NotImplemented"), status(400, "InvalidArgument")])
def test_a_write_without_conditions(s3: Bucket, kind: Kind) -> None:
    """A service that ignores or refuses conditions gets the write without one."""

    def refuse(call: Call, forward: Forward) -> Reply | None:
        return (kind if call.request.if_match or call.request.if_none_match else ignore_conditions)(call, forward)

    store = open_store(s3.url)
    assert lists_marks(store)
    s3.proxy.fail(Fault(refuse, operation="put", times=None))
    for data in (b"one", b"two"):
        store.write_over("x", data, store.stat("x"))
        assert s3.get("run/x") == data
