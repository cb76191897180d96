"""Reshards on S3: whatever fails, and wherever they are killed, no version looks whole that is not."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at, only
from edl_ckpt.core import list_versions, reshard_version, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.commit.repair.recovery import recover
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.save import Table
from places import GOLDEN
from program import PROGRAM
from s3_fixtures import Bucket
from s3_proxy import Fault, Operation, Request, hook, stall, status
from waiting import wait_until


def orders(names: Sequence[str]) -> Iterator[list[str]]:
    """Every name first once: ElasticDL looks at the first of a listing and at how many there are."""
    yield from ([name, *(n for n in names if n != name)] for name in names)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (4, 8),
        (5, 4),
        (2, 1),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in [(8, 4), (4, 5), (1, 2), (3, 7)]),
    ],
)
def test_in_place_never_looks_whole_when_it_is_not(s3: Bucket, tmp_path: Path, before: int, after: int) -> None:
    """At each step ElasticDL's rule, in any order of listing, finds the old set whole, the new one, or neither."""
    ids = np.arange(40)
    table = Table(ids, ids.reshape(-1, 1).astype(np.float32))
    save_checkpoint(
        str(tmp_path / "run"), 30, before, variables={}, tables={"t": table},
        layout="elasticdl",
    )  # fmt: skip
    s3.upload(tmp_path / "run")
    sets: list[set[str]] = []

    def look(_request: Request) -> None:
        sets.append({k.rpartition("/")[2] for k in s3.objects() if k.startswith("run/version-30/")})

    for operation in ("put", "delete", "delete_many", "get", "head", "complete"):
        s3.proxy.fail(Fault(hook(look), operation=operation, times=None))
    result = reshard_version(at(s3.url), after)
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
    with pytest.raises(RefusedError, match="cannot replace a version with one of the same shard count"):
        reshard_version(at(s3.url), after)


def disturb_in_place(s3: Bucket, operations: Sequence[Operation]) -> int:
    """Let the n-th request of each kind and all after it fail in a reshard in place; return how often that hit.

    Its values that are not finite are errors to verify, so it is not the newest good version.
    """
    text = verify_version(only(s3.url), level="deep").fingerprint
    tried = 0
    for operation in operations:
        for nth in itertools.count(1):
            s3.proxy.reset()
            armed = s3.proxy.fail(Fault(status(403, "AccessDenied"), operation=operation, nth=nth, times=None))
            with suppress(EdlCkptError):
                reshard_version(only(s3.url), 3 - (only(s3.url).ps_num or 0))
            s3.proxy.heal()
            s3.delete("run/.edl-ckpt-0/lock-0")  # as when it was left long ago
            recover(s3.url)
            whole = only(s3.url)
            assert whole.state is State.COMPLETE
            assert whole.extra == ()
            assert verify_version(whole, level="deep").fingerprint == text, (operation, nth)
            assert s3.open_uploads() == []
            assert not any("stage-0" in key for key in s3.objects()), (operation, nth)
            if not armed.hits:
                break
            tried += 1
    return tried


@pytest.mark.parametrize(
    ("operations", "least"),
    [
        pytest.param(("delete_many", "delete"), 3, id="removals"),
        pytest.param(("put", "get", "head"), 10, id="others", marks=pytest.mark.slow),
    ],
)
def test_in_place_comes_back_whole(s3: Bucket, operations: Sequence[Operation], least: int) -> None:
    """Whatever request fails for good in a reshard in place, the old version or the new is whole after `recover`."""
    s3.upload(GOLDEN / "current/ps2")
    assert disturb_in_place(s3, operations) > least


@pytest.mark.slow
def test_in_place_with_parts_comes_back_whole(s3: Bucket, large: Path) -> None:
    """The same for shards of several parts, when uploads cannot be completed."""
    s3.upload(large)
    assert disturb_in_place(s3, ("complete", "abort")) >= 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(s3: Bucket, large: Path, number: int, code: int) -> None:
    """A signal in the middle of an upload that stalls: over before the answer comes, nothing visible or left open."""
    armed = s3.proxy.fail(Fault(stall(120), operation="upload_part", times=None))
    command = [*PROGRAM, "reshard", str(large), "--ps", "1", "--output", s3.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: armed.hits)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said
    assert s3.keys() == []
    assert s3.open_uploads() == []


def test_interrupted_without_a_network(s3: Bucket, large: Path) -> None:
    """A signal while nothing answers any more: over in seconds, not in the minutes of all attempts to clean up."""
    armed = s3.proxy.fail(Fault(stall(600), operation="upload_part", times=None))
    command = [*PROGRAM, "reshard", str(large), "--ps", "1", "--output", s3.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: armed.hits)
        dead = s3.proxy.fail(Fault(stall(600), times=None))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)  # each attempt takes 60 seconds, and there are several
    assert (process.returncode, "Traceback" in said) == (130, False)
    assert dead.hits
    s3.proxy.heal()
    assert recover(s3.url).done == ("removed the unfinished version 7",)
    assert (s3.open_uploads(), s3.objects()) == ([], {})


def test_killed(s3: Bucket, large: Path) -> None:
    """What a killed reshard left on S3 is gone after the next command that takes the lock."""
    armed = s3.proxy.fail(Fault(stall(120), operation="upload_part", times=None))
    command = [*PROGRAM, "reshard", str(large), "--ps", "1", "--output", s3.url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: armed.hits and any("journal" in key for key in s3.objects()))
        process.kill()
    s3.proxy.heal()
    assert s3.open_uploads() != []
    assert "was killed while it did; if none is running: edl-ckpt recover" in "".join(list_versions(s3.url).problems)
    assert recover(s3.url).done == ("removed the unfinished version 7",)
    assert s3.open_uploads() == []
    assert s3.objects() == {}


@pytest.mark.parametrize(
    ("operation", "key", "whole"),
    [
        ("complete", "variables-1-of-3", 2),
        ("get", "variables-0-of-3", 2),
        ("delete_many", "", 3),
        ("put", "20.seal", 3),
        ("delete", "journal", 3),
    ],
)
def test_killed_in_place(multi: Bucket, operation: Any, key: str, whole: int) -> None:
    """A reshard in place that is killed at any of its steps: at once the next command leaves one whole version."""
    text = verify_version(at(multi.url, 20), level="deep").fingerprint
    armed = multi.proxy.fail(Fault(stall(120), operation=operation, key=key, times=None))
    command = [*PROGRAM, "reshard", f"{multi.url}@20", "--ps", "3"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: armed.hits)
        process.kill()
    multi.proxy.heal()
    held = recover(multi.url, wait_seconds=0)
    assert held.done == (
        "finished the replacement of version 20; the new version is in place"
        if whole == 3
        else "rolled back the replacement of version 20; the old version is in place",
    )
    version = at(multi.url, 20)
    assert (version.ps_num, version.extra) == (whole, ())
    check = verify_version(version, level="deep")
    assert (check.fingerprint, check.findings, check.sealed) == (text, (), whole == 3)
    assert not any("stage-0" in k or "lock-0" in k for k in multi.objects())
