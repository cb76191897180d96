"""One command at a time changes a location: on the disk, and on S3."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import elasticdl_rules
from checkpoints import save_small
from edl_ckpt.core.base.errors import EdlCkptError, LockedError
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.state.signature import describe
from reporters import Recorder
from s3_fixtures import Bucket
from s3_proxy import Fault, lose_reply


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with one version."""
    save_small(tmp_path / "run", 5)
    return tmp_path / "run"


def _locked(s3: Bucket) -> bool:
    return any(key.startswith("run/.edl-ckpt-0/lock-0") for key in s3.state())


def test_lock_on_s3(multi: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """One holder at a time; a lock that nobody touched for ten minutes is taken over, and that is said."""
    recorder = Recorder()
    told = recorder.warnings
    other = location_lock(multi.url, "b", wait_seconds=0)
    with location_lock(multi.url, "first"), pytest.raises(LockedError, match=f"process {os.getpid()}"), other:
        pass
    assert not _locked(multi)
    multi.put("run/.edl-ckpt-0/lock-0", json.dumps({"pid": 7, "host": "elsewhere", "since": "then"}).encode())
    with pytest.raises(LockedError, match="elsewhere"), location_lock(multi.url, "c", wait_seconds=0):
        pass
    monkeypatch.setattr("edl_ckpt.core.state.owner.STALE_SECONDS", -10.0)
    with location_lock(multi.url, "d", reporter=recorder):
        pass
    assert "took over" in told[0]
    assert not _locked(multi)


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_lock_with_a_lost_reply(multi: Bucket, operation: Any) -> None:
    """A lock that was taken or given back though the reply was lost is known for ours."""
    armed = multi.proxy.fail(Fault(lose_reply, operation=operation, key="lock-0"))
    with location_lock(multi.url, "mine", wait_seconds=0):
        pass
    assert armed.hits == 1
    assert not _locked(multi)


def test_lock(run: Path) -> None:
    """One of our commands at a time: the second waits, then gives up with who holds the lock; a free one is taken."""
    with location_lock(str(run), "first"):
        owner = json.loads((run / ".edl-ckpt-0/lock-0").read_text())
        assert (owner["pid"], owner["purpose"]) == (os.getpid(), "first")
        assert elasticdl_rules.latest_valid(run) == "version-5"
        with pytest.raises(LockedError, match=f"process {os.getpid()}"), location_lock(str(run), "b", wait_seconds=0.1):
            pass
    assert not (run / ".edl-ckpt-0/lock-0").exists()
    with location_lock(str(run), "second", wait_seconds=0):
        pass


@pytest.mark.parametrize("has_other", [False, True])
def test_a_directory_that_was_made_with_an_error(run: Path, monkeypatch: pytest.MonkeyPatch, has_other: bool) -> None:
    """An error for a directory that was made all the same leaves no empty one behind, and nothing of others goes."""
    state = run / ".edl-ckpt-0"
    shutil.rmtree(state, ignore_errors=True)
    if has_other:
        (state / "meta-0").mkdir(parents=True)
    real = os.mkdir

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with suppress(FileExistsError):
            real(path, mode, dir_fd=dir_fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(EdlCkptError, match="input/output error"), location_lock(run, "first"):
        pass
    assert state.exists() == has_other


@pytest.mark.parametrize(("host", "age", "taken"), [(None, 0, True), ("elsewhere", 0, False), ("elsewhere", 900, True)])
def test_stale_lock(run: Path, host: str | None, age: float, taken: bool) -> None:
    """A lock left by a killed process is taken over and said so; one of another host only when it was not touched."""
    path = run / ".edl-ckpt-0/lock-0"
    owner = {**describe("prune"), "pid": 1}
    path.write_text(json.dumps({**owner, "host": host or owner["host"]}))
    os.utime(path, (time.time() - age, time.time() - age))
    recorder = Recorder()
    told = recorder.warnings
    lock = location_lock(str(run), "mine", wait_seconds=0.1, reporter=recorder)
    if taken:
        with lock:
            pass
        assert "took over" in told[0]
    else:
        with pytest.raises(LockedError, match="elsewhere"), lock:
            pass


def test_who_waits_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is interrupted while it waits for the lock leaves it to its holder."""
    save_small(tmp_path, 1)

    with location_lock(str(tmp_path), "holder"):
        with monkeypatch.context() as patched:
            patched.setattr("fcntl.flock", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt), location_lock(str(tmp_path), "waiting"):
                pass
        with pytest.raises(LockedError, match="holder"), location_lock(str(tmp_path), "third", wait_seconds=0):
            pass
