"""S3 as a home: every command there, requests counted, generations pinned, nothing visible that is not whole."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import (
    execute_reshard,
    list_versions,
    open_checkpoint,
    parse_ref,
    plan_reshard,
    resolve,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.commit.local import forget_seal
from edl_ckpt.core.commit.recovery import recover
from edl_ckpt.core.commit.remote import open_memory
from edl_ckpt.core.errors import EdlCkptError, LockedError, RefusedError, UnavailableError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.operations.copy import execute_copy, plan_copy
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.state.lock import LocationLock
from edl_ckpt.core.storage import open_remote
from places import GOLDEN
from program import PROGRAM, inside
from s3_fixtures import Bucket
from s3_proxy import (
    Fault,
    Operation,
    Request,
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


def at(location: str | Path, version: int | str = "latest") -> Version:
    return resolve(parse_ref(f"{location}@{version}"))


def upload(s3: Bucket, source: Path, prefix: str = "run") -> None:
    for path in source.rglob("*"):
        if path.is_file():
            s3.put(f"{prefix}/{path.relative_to(source)}", path.read_bytes())


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two shards, each of several parts of an upload: nobody sealed it, as jobs do not."""
    location = tmp_path_factory.mktemp("large") / "run"
    random = np.random.default_rng(3)
    ids = np.unique(random.integers(0, 2**40, 220_000))
    save_checkpoint(
        str(location),
        7,
        2,
        variables={"kernel:0": random.standard_normal((300, 200), np.float32), "step:0": np.array(7, np.int64)},
        tables={"users": Table(ids, random.standard_normal((len(ids), 16), np.float32))},
    )
    forget_seal(str(location), 7)
    return location


@pytest.fixture
def multi(s3: Bucket) -> Bucket:
    """The golden checkpoint with three versions, on S3."""
    upload(s3, GOLDEN / "multi")
    return s3


def keys(s3: Bucket, prefix: str = "run/") -> list[str]:
    return [key for key in s3.objects() if key.startswith(prefix) and "/meta-0/" not in key]


def test_every_command(s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command set works on S3, and each command that writes leaves what verify finds nothing wrong with."""
    upload(s3, GOLDEN / "multi")
    run, other = s3.url, f"s3://{s3.name}/other"

    def edl(*arguments: str | Path, code: int = 0) -> Any:
        return inside(capsys, *arguments, code=code)

    held = edl("list", run)["locations"][0]["versions"]
    assert [(v["version"], v["shards"]) for v in held] == [(9, 2), (20, 2), (100, 1)]
    assert edl("inspect", f"{run}@20", "--stats")["ps_num"] == 2
    text = edl("verify", f"{run}@20", "--seal")["fingerprint"]
    assert edl("verify", f"{run}@20", "--deep")["sealed"] is True
    assert edl("list", run)["locations"][0]["versions"][1]["fingerprint"] == text
    assert edl("reshard", f"{run}@20", "--ps", "3", "--output", other)["fingerprint"] == text
    assert edl("reshard", f"{run}@20", "--ps", "4", "--output", tmp_path / "disk")["fingerprint"] == text
    assert (
        edl("reshard", f"{tmp_path}/disk@20", "--ps", "5", "--output", f"s3://{s3.name}/third")["fingerprint"] == text
    )
    assert edl("reshard", f"{run}@20", "--ps", "5")["fingerprint"] == text
    assert edl("verify", f"{run}@20", "--deep")["fingerprint"] == text
    edl("metrics", "set", f"{run}@20", "auc=0.7")
    edl("metrics", "set", f"{run}@9", "auc=0.6")
    edl("tag", "add", f"{run}@20", "good")
    edl("note", f"{run}@20", "words")
    edl("policy", "set", run, "--keep", "1")
    shown = edl("list", run)["locations"][0]["versions"]
    assert (shown[1]["metrics"], shown[1]["tags"], shown[1]["note"]) == ({"auc": 0.7}, ["good"], "words")
    assert edl("diff", f"{run}@good", f"{other}@20")["equal"] is True
    table = edl("inspect", f"{run}@20")["tables"][0]["name"]
    assert edl("get", f"{run}@20", "--table", table, "--id", "0")["ref"] == f"{run}@20"
    exported = edl("export", f"{run}@best:auc", f"s3://{s3.name}/out/m.safetensors")
    assert [f["path"] for f in exported["files"]] == [f"s3://{s3.name}/out/m.safetensors"]
    assert edl("export", f"{run}@20", f"s3://{s3.name}/out/m.safetensors", code=16)["id"] == "refused"
    edl("export", f"{run}@20", f"s3://{s3.name}/out/m.safetensors", "--force")
    edl("export", f"{run}@20", f"s3://{s3.name}/out/arrays", "--format", "npy")
    assert edl("export", f"{run}@20", f"{run}/m.npz", code=16)["id"] == "refused"
    for source in ("m.safetensors", "arrays"):
        number = len(source)
        new = edl("import", f"s3://{s3.name}/out/{source}", f"s3://{s3.name}/in@{number}", "--ps", "3")
        assert new["fingerprint"] == text
        assert edl("verify", f"s3://{s3.name}/in@{number}", "--deep")["findings"] == []
    assert edl("copy", f"{run}@20", f"s3://{s3.name}/copied")["copied"][0]["fingerprint"] == text
    assert edl("list", f"s3://{s3.name}/copied")["locations"][0]["versions"][0]["tags"] == ["good"]
    pruned = edl("prune", run, "--yes")
    assert [p["version"] for p in pruned["plan"] if p["action"] == "delete"] == [9]
    assert not any("version-9/" in key or "/9.json" in key for key in s3.objects())
    assert edl("undo", run, code=15)["id"] == "unsupported"
    assert edl("recover", run) == {"schema": "edl-ckpt/recover/1", "location": run, "done": [], "kept": []}
    assert s3.open_uploads() == []
    assert not any("stage-0" in key or "lock-0" in key for key in s3.objects())


def test_listing_is_cheap(s3: Bucket) -> None:
    """A thousand versions of eight shards are listed in at most ten requests, none of them a GET."""
    from moto.s3.models import s3_backends

    backend = next(b for b in s3_backends.values() if s3.name in b["aws"].buckets)["aws"]
    for version, shard in itertools.product(range(1000), range(8)):
        backend.put_object(s3.name, f"run/version-{version}/variables-{shard}-of-8.ckpt", b"x")
    listed = list_versions(s3.url).versions
    assert len(listed) == 1000
    assert all(len(v.shards) == 8 for v in listed)
    assert s3.proxy.count("list") == s3.proxy.count() <= 10


def test_looking_is_cheap(s3: Bucket, large: Path) -> None:
    """A shard of ten megabytes is inspected with a few ranged GETs, of less than a megabyte in all."""
    upload(s3, large)
    version = at(s3.url)
    s3.proxy.reset()
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.table_names == ["users"]
    for shard in version.shards:
        seen = s3.proxy.seen("get", key=shard.path.rpartition("/")[2])
        assert len(seen) <= 4
        assert all(request.range for request in seen)
    assert s3.proxy.response_bytes("get") < 1 << 20


@pytest.mark.parametrize("to_s3", [False, True])
def test_each_value_is_read_once(s3: Bucket, large: Path, tmp_path: Path, to_s3: bool) -> None:
    """A reshard from S3 gets each value byte once, its ids twice, and little else."""
    upload(s3, large)
    version = at(s3.url)
    with open_checkpoint(version) as checkpoint:
        entries = [t for s in checkpoint.shards for t in s.tables]
        values = sum(t.values.size_bytes for t in entries)
        values += sum(v.size_bytes for s in checkpoint.shards for v in s.variables)
        ids = sum(run.end - run.start for t in entries for run in t.ids)
    s3.proxy.reset()
    output = f"s3://{s3.name}/out" if to_s3 else str(tmp_path / "out")
    execute_reshard(plan_reshard(version, 3, output=output))
    got = s3.proxy.response_bytes("get", key=r"run/version_7/")
    assert values + 2 * ids <= got < values + 2 * ids + (1 << 20)


def test_memory_is_the_open_parts(s3: Bucket, large: Path) -> None:
    """Parts are uploaded as they fill, whatever the order; too little memory spools to the disk, and says so."""
    from edl_ckpt.core.storage.s3 import upload as module

    peaks: list[int] = []
    real = module.Upload.finish

    def finish(self: module.Upload) -> None:
        peaks.append(self.peak_bytes)
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Upload, "finish", finish)
        plan = plan_reshard(at(large), 1, output=s3.url, workers=1)
        assert not plan.spool
        result = execute_reshard(plan)
        assert peaks[0] <= 2 * module.MIN_PART_BYTES < result.size_bytes
        assert peaks[0] <= open_memory(open_remote(s3.url), [result.size_bytes], 1)
        assert s3.proxy.count("upload_part") == -(-result.size_bytes // module.MIN_PART_BYTES)
        small = plan_reshard(at(large), 2, output=f"s3://{s3.name}/b", max_memory_bytes=8 << 20)
        assert small.spool
        assert any("spooled" in warning for warning in small.warnings)
        assert execute_reshard(small).fingerprint == result.fingerprint
        assert max(peaks[1:]) <= 2 * module.MIN_PART_BYTES
    assert verify_version(at(s3.url), level="deep").findings == ()
    assert verify_version(at(f"s3://{s3.name}/b"), level="deep").fingerprint == result.fingerprint


def orders(names: Sequence[str]) -> Iterator[list[str]]:
    """Every name first once: ElasticDL looks at the first of a listing and at how many there are."""
    yield from ([name, *(n for n in names if n != name)] for name in names)


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4), (4, 5), (5, 4), (1, 2), (2, 1), (3, 7)])
def test_in_place_never_looks_whole_when_it_is_not(s3: Bucket, tmp_path: Path, before: int, after: int) -> None:
    """At each step ElasticDL's rule, in any order of listing, finds the old set whole, the new one, or neither."""
    ids = np.arange(40)
    table = Table(ids, ids.reshape(-1, 1).astype(np.float32))
    save_checkpoint(
        str(tmp_path / "run"), 30, before, variables={}, tables={"t": table},
        layout="elasticdl",
    )  # fmt: skip
    upload(s3, tmp_path / "run")
    sets: list[set[str]] = []

    def look(_request: Request) -> None:
        sets.append({k.rpartition("/")[2] for k in s3.objects() if k.startswith("run/version-30/")})

    for operation in ("put", "delete", "delete_many", "get", "head", "complete"):
        s3.proxy.fail(Fault(hook(look), operation=operation, times=None))
    result = execute_reshard(plan_reshard(at(s3.url), after))
    look(s3.proxy.requests[0])
    old = {f"variables-{i}-of-{before}.ckpt" for i in range(before)}
    new = {f"variables-{i}-of-{after}.ckpt" for i in range(after)}
    assert sets[0] == old
    assert sets[-1] == new
    assert any(old < names for names in sets)
    for names in sets:
        assert old <= names or new <= names
        for order in orders(sorted(names)):
            if int(order[0].split(".")[0].split("-")[-1]) == len(order):
                assert names in (old, new)
    assert verify_version(at(s3.url), level="deep").fingerprint == result.fingerprint
    with pytest.raises(RefusedError, match="as many shards"):
        execute_reshard(plan_reshard(at(s3.url), after))


def test_one_generation(s3: Bucket, large: Path, tmp_path: Path) -> None:
    """An object that is overwritten while it is read is error 11, never a mixture; nothing is published."""
    upload(s3, large)
    name = "run/version_7/variables-0-of-2.chkpt"
    version = at(s3.url)
    other = bytes(reversed(s3.get(name)))
    for nth in (3, 5):
        s3.put(name, (large / "version_7/variables-0-of-2.chkpt").read_bytes())
        s3.proxy.fail(Fault(hook(lambda _request: s3.put(name, other)), operation="get", key="0-of-2", nth=nth))
        with pytest.raises(LockedError, match="overwritten"):
            execute_reshard(plan_reshard(version, 3, output=str(tmp_path / "out")))
        s3.proxy.heal()
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
    s3.delete(name)
    with pytest.raises(EdlCkptError, match="no such file"):
        open_checkpoint(version)


HARMLESS: list[tuple[str, Callable[..., Any]]] = [
    ("SlowDown", status(503, "SlowDown")),
    ("InternalError", status(500, "InternalError")),
    ("reset", reset),
    ("truncated", truncate),
]


@pytest.mark.parametrize(("name", "kind"), HARMLESS)
@pytest.mark.parametrize(
    "operation", ["list", "get", "put", "create_upload", "upload_part", "complete", "delete", "head"]
)
def test_faults_that_pass(
    s3: Bucket,
    large: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: Any,
    operation: Any,
) -> None:
    """A request that fails once is tried again, and told: a reshard from S3 to S3 gives the same as without."""
    if name == "truncated" and operation not in {"get", "list"}:
        pytest.skip("has no body")
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.time.sleep", lambda _seconds: None)
    upload(s3, large)
    armed = s3.proxy.fail(Fault(kind, operation=operation))
    caplog.set_level("INFO", "edl_ckpt")
    result = execute_reshard(plan_reshard(at(s3.url), 1, output=f"s3://{s3.name}/out"))
    assert armed.hits == 1
    # aiohttp itself goes on with a new connection when one that was kept open is reset.
    assert name == "reset" or any("retry 1 of 4" in record.message for record in caplog.records)
    s3.proxy.heal()
    assert verify_version(at(f"s3://{s3.name}/out"), level="deep").fingerprint == result.fingerprint
    assert s3.open_uploads() == []
    assert not any("stage-0" in key for key in s3.objects())


@pytest.mark.parametrize("operation", ["put", "upload_part", "complete", "create_upload"])
def test_a_lost_reply_is_no_doubt(s3: Bucket, large: Path, operation: Any) -> None:
    """What was done though its reply was lost is recognised as ours: nothing fails, nothing is there twice."""
    armed = s3.proxy.fail(Fault(lose_reply, operation=operation))
    result = execute_reshard(plan_reshard(at(large), 3, output=s3.url))
    assert armed.hits == 1
    assert verify_version(at(s3.url), level="deep").fingerprint == result.fingerprint
    if operation != "create_upload":  # that one left an upload without an owner: `recover` drops it after a day
        assert s3.open_uploads() == []


def test_a_flipped_bit_on_the_way_up(s3: Bucket, large: Path) -> None:
    """What S3 has is compared with what was sent: a part that arrived damaged is sent again."""
    armed = s3.proxy.fail(Fault(corrupt_request, operation="upload_part", times=2))
    result = execute_reshard(plan_reshard(at(large), 1, output=s3.url))
    assert armed.hits == 2
    assert verify_version(at(s3.url), level="deep").fingerprint == result.fingerprint


def test_a_flipped_bit_on_the_way_down(s3: Bucket, large: Path, tmp_path: Path) -> None:
    """Of what is sealed, a damaged answer is found: verify and copy read once more, a reshard publishes nothing."""
    shutil.copytree(large, tmp_path / "sealed")
    version = at(tmp_path / "sealed")
    execute_copy(plan_copy([version], s3.url))
    fault = Fault(corrupt_reply, operation="get", key="0-of-2", nth=3)
    armed = s3.proxy.fail(fault)
    found = verify_version(at(s3.url), level="deep", workers=1)
    assert (armed.hits, found.findings) == (1, ())
    s3.proxy.heal()
    armed = s3.proxy.fail(fault)
    execute_copy(plan_copy([at(s3.url)], str(tmp_path / "back")))
    assert armed.hits == 1
    assert verify_version(at(tmp_path / "back"), level="deep").fingerprint == found.fingerprint
    s3.proxy.heal()
    refused = 0
    for nth in range(2, 9):
        plan = plan_reshard(at(s3.url), 3, output=str(tmp_path / f"out{nth}"))
        s3.proxy.fail(Fault(corrupt_reply, operation="get", key="0-of-2", nth=nth))
        try:
            assert execute_reshard(plan).fingerprint == found.fingerprint  # a byte that is not of the content
        except EdlCkptError:
            refused += 1
            assert list((tmp_path / f"out{nth}").iterdir()) == []
        s3.proxy.heal()
    assert refused >= 1


@pytest.mark.parametrize("operation", ["upload_part", "complete", "create_upload", "put"])
def test_faults_that_stay(s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch, operation: Any) -> None:
    """Storage that does not answer is error 13 after five attempts; nothing is visible, and no upload is open."""
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.time.sleep", lambda _seconds: None)
    plan = plan_reshard(at(large), 1, output=s3.url)
    s3.proxy.fail(Fault(status(503, "SlowDown"), operation=operation, times=None))
    with pytest.raises(UnavailableError):
        execute_reshard(plan)
    assert keys(s3) == []
    assert s3.open_uploads() == []


def disturb_in_place(s3: Bucket, operations: Sequence[Operation]) -> int:
    """Let the n-th request of each kind and all after it fail in a reshard in place; return how often that hit."""
    text = verify_version(at(s3.url), level="deep").fingerprint
    tried = 0
    for operation in operations:
        for nth in itertools.count(1):
            s3.proxy.reset()
            armed = s3.proxy.fail(Fault(status(403, "AccessDenied"), operation=operation, nth=nth, times=None))
            with suppress(EdlCkptError):
                execute_reshard(plan_reshard(at(s3.url), 3 - (at(s3.url).ps_num or 0)))
            s3.proxy.heal()
            s3.delete("run/.edl-ckpt-0/lock-0")  # as when it was left long ago
            recover(s3.url)
            whole = at(s3.url)
            assert whole.extra == ()
            assert verify_version(whole, level="deep").fingerprint == text, (operation, nth)
            assert s3.open_uploads() == []
            assert not any("stage-0" in key for key in s3.objects()), (operation, nth)
            if not armed.hits:
                break
            tried += 1
    return tried


def test_in_place_comes_back_whole(s3: Bucket) -> None:
    """Whatever request fails for good in a reshard in place, the old version or the new is whole after `recover`."""
    upload(s3, GOLDEN / "current/ps2")
    assert disturb_in_place(s3, ("put", "delete_many", "delete", "get", "head")) > 20


def test_in_place_with_parts_comes_back_whole(s3: Bucket, large: Path) -> None:
    """The same for shards of several parts, when uploads cannot be completed."""
    upload(s3, large)
    assert disturb_in_place(s3, ("complete", "abort")) >= 1


def _locked(s3: Bucket) -> bool:
    return "run/.edl-ckpt-0/lock-0" in s3.objects()


def test_lock(multi: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """One holder at a time; a lock that nobody touched for ten minutes is taken over, and that is said."""
    told: list[str] = []
    other = LocationLock(multi.url, "b", wait_seconds=0)
    with LocationLock(multi.url, "first"), pytest.raises(LockedError, match=f"process {os.getpid()}"), other:
        pass
    assert not _locked(multi)
    multi.put("run/.edl-ckpt-0/lock-0", json.dumps({"pid": 7, "host": "elsewhere", "since": "then"}).encode())
    with pytest.raises(LockedError, match="elsewhere"), LocationLock(multi.url, "c", wait_seconds=0):
        pass
    monkeypatch.setattr("edl_ckpt.core.state.lock.STALE_SECONDS", -10.0)
    with LocationLock(multi.url, "d", warn=told.append):
        pass
    assert "took over" in told[0]
    assert not _locked(multi)


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_lock_with_a_lost_reply(multi: Bucket, operation: Any) -> None:
    """A lock that was taken or given back though the reply was lost is known for ours."""
    armed = multi.proxy.fail(Fault(lose_reply, operation=operation, key="lock-0"))
    with LocationLock(multi.url, "mine", wait_seconds=0):
        pass
    assert armed.hits == 1
    assert not _locked(multi)


@pytest.mark.parametrize("kind", [ignore_conditions, status(501, "NotImplemented")])
def test_storage_without_conditions(multi: Bucket, kind: Any) -> None:
    """Storage that ignores conditional writes, or has none, is found out: there is a warning instead of a lock."""
    told: list[str] = []
    multi.proxy.fail(Fault(kind, operation="put", key="lock-0", times=None))
    with LocationLock(multi.url, "mine", warn=told.append):
        pass
    assert "ignores conditional writes" in told[0]
    assert not _locked(multi)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(s3: Bucket, large: Path, number: int, code: int) -> None:
    """A signal in the middle of an upload that stalls: over within two seconds, nothing visible, no upload open."""
    s3.proxy.fail(Fault(stall(30), operation="upload_part", times=None))
    command = [*PROGRAM, "reshard", str(large), "--ps", "1", "--output", s3.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 20
        while not s3.open_uploads() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
        begin = time.monotonic()
        _, said = process.communicate(timeout=20)
        assert time.monotonic() - begin < 2
    assert process.returncode == code
    assert "Traceback" not in said
    assert keys(s3) == []
    assert s3.open_uploads() == []


def test_killed(s3: Bucket, large: Path) -> None:
    """What a killed reshard left on S3 is gone after the next command that takes the lock."""
    s3.proxy.fail(Fault(stall(30), operation="upload_part", times=None))
    command = [*PROGRAM, "reshard", str(large), "--ps", "1", "--output", s3.url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not any("journal" in key for key in s3.objects()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    s3.proxy.heal()
    assert s3.open_uploads() != []
    assert "interrupted" in "".join(list_versions(s3.url).problems)
    assert any("dropped" in done for done in recover(s3.url).done)
    assert s3.open_uploads() == []
    assert s3.objects() == {}


@pytest.mark.parametrize(
    ("operation", "key", "whole"),
    [
        ("put", "variables-1-of-3", 2),
        ("get", "variables-0-of-3", 2),
        ("delete_many", "", 3),
        ("put", "20.seal", 3),
        ("delete", "journal", 3),
    ],
)
def test_killed_in_place(multi: Bucket, operation: Any, key: str, whole: int) -> None:
    """A reshard in place that is killed at any of its steps: at once the next command leaves one whole version."""
    text = verify_version(at(multi.url, 20), level="deep").fingerprint
    armed = multi.proxy.fail(Fault(stall(30), operation=operation, key=key, times=None))
    command = [*PROGRAM, "reshard", f"{multi.url}@20", "--ps", "3"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not armed.hits and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    multi.proxy.heal()
    held = recover(multi.url, wait_seconds=0)
    assert "whole" in held.done[0]
    version = at(multi.url, 20)
    assert (version.ps_num, version.extra) == (whole, ())
    check = verify_version(version, level="deep")
    assert (check.fingerprint, check.findings, check.sealed) == (text, (), whole == 3)
    assert not any("stage-0" in k or "lock-0" in k for k in multi.objects())


def test_stalls(multi: Bucket) -> None:
    """A reply that does not come is waited for as long as is said, then asked for again."""
    armed = multi.proxy.fail(Fault(stall(5), operation="list"))
    begin = time.monotonic()
    assert len(list_versions(multi.url, storage_options={"read_timeout": "0.5"}).versions) == 3
    assert armed.hits == 1
    assert time.monotonic() - begin < 4


def test_secrets_are_never_told(s3: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    """No option of storage is in any output, whether the command succeeds, fails, or says more."""
    from edl_ckpt.cli import app

    options = ("key=AKIDEXAMPLE", "secret=very-secret-words", "token=session-token-words")
    flags = [word for option in options for word in ("--storage-option", option)]
    for arguments in (
        ["list", s3.url],
        ["list", s3.url, "--storage-option", "nosuch=very-secret-words"],
        ["verify", s3.url],
    ):
        for more in ([], ["--json"], ["-v"]):
            with pytest.raises(SystemExit):
                app.run([*arguments, *flags, *more])
    said = "".join(capfd.readouterr())
    assert "nosuch" in said
    for option in options:
        assert option.partition("=")[2] not in said
    s3.proxy.fail(Fault(status(403, "InvalidAccessKeyId"), operation="list"))
    with pytest.raises(SystemExit) as end:
        app.run(["list", s3.url, *flags])
    assert end.value.code == 12


def test_retries_are_told_with_v(multi: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    """With -v each request that is tried again is a line on stderr; without it there is silence."""
    from edl_ckpt.cli import app

    for flag in ("-v", "--no-color"):
        multi.proxy.fail(Fault(status(503, "SlowDown"), operation="list"))
        with pytest.raises(SystemExit):
            app.run(["list", multi.url, flag])
        assert ("retry 1 of 4: list_objects_v2" in capsys.readouterr().err) is (flag == "-v")
