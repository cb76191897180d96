"""`unlock` shows the holder of a lock, checks that it is dead, and asks before it removes the lock."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from checkpoints import save_small
from edl_ckpt.cli import app
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations import unlock
from edl_ckpt.core.state.holder import Holder
from edl_ckpt.core.state.signature import describe
from program import PROGRAM, document, edl, inside
from s3_fixtures import Bucket

CLAIM = "20260101T000000-elsewhere_00000000-7-00000001"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with one version."""
    save_small(tmp_path / "run", 5)
    return tmp_path / "run"


def left_by(run: Path, age: float = 0.0, **owner: Any) -> Path:
    """Write the lock's file as a dead process leaves it."""
    path = run / ".edl-ckpt-0/lock-0"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**describe("prune"), **owner}))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_nothing_to_unlock(run: Path) -> None:
    """Without a lock the command ends with 0 and says so; a location that is not there is 10."""
    assert document("unlock", run) == {
        "schema": "edl-ckpt/unlock/1", "location": str(run), "unlocked": False, "holders": [],
    }  # fmt: skip
    assert edl("unlock", run).stdout == f"{run}: not locked\n"
    assert edl("unlock", f"{run}-not").returncode == 10


def test_hostile_holder(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A holder's words cannot control a terminal, and a lock without any is shown too."""
    hostile = {"pid": 7, "host": "a\x1b[31m", "since": "2026-11-21", "purpose": "copy"}
    holders = [
        Holder(hostile, is_alive=False, silent_seconds=720.0),
        Holder({}, is_alive=False, silent_seconds=None),
    ]
    monkeypatch.setattr(unlock, "unlock", lambda *_, **__: holders)
    with pytest.raises(SystemExit):
        app.run(["unlock", str(run)])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert [line.partition(" of ")[0] for line in shown.splitlines()[:2]] == [f"{run}: removed the lock"] * 2
    assert shown.splitlines()[2] == f"to finish or roll back its work: edl-ckpt recover {run}"
    found = inside(capsys, "unlock", run, "--json")
    assert [(h["pid"], h["host"], h["silent_seconds"]) for h in found["holders"]] == [
        (7, "a\x1b[31m", 720.0), (None, None, None),
    ]  # fmt: skip


def test_dead_holder(run: Path) -> None:
    """In a script the lock stays without --yes (16), which names the holder; with it the lock goes (0)."""
    path = left_by(run, pid=1)
    refused = edl("unlock", run)
    assert (refused.returncode, path.exists()) == (16, True)
    assert "not confirmed; the lock of process 1 on" in refused.stderr
    done = document("unlock", run, "--yes")
    assert done["unlocked"] is True
    assert [(h["pid"], h["purpose"], h["alive"]) for h in done["holders"]] == [(1, "prune", False)]
    assert not path.exists()


def test_a_clock_that_is_ahead(run: Path) -> None:
    """A sign of life from the future, by another host's clock, counts as one of this moment."""
    left_by(run, age=-100.0, pid=1)
    assert [holder["silent_seconds"] for holder in document("unlock", run, "--yes")["holders"]] == [0.0]


def test_yes_is_for_the_command_line_only(run: Path) -> None:
    """Neither the environment nor a file can confirm."""
    path = left_by(run)
    assert edl("unlock", run, EDL_CKPT_YES="1").returncode == 16
    assert path.exists()


def test_asks_on_a_terminal(run: Path) -> None:
    """On a terminal the holder is shown and the command asks; anything but yes leaves the lock."""
    for answer, code in ((b"n\n", 16), (b"y\n", 0)):
        path = left_by(run)
        parent, child = pty.openpty()
        with subprocess.Popen(
            [*PROGRAM, "unlock", str(run)], stdin=child, stderr=child, stdout=subprocess.PIPE, text=True
        ) as process:
            os.close(child)
            os.write(parent, answer)
            assert process.wait(300) == code
        asked = os.read(parent, 4096).decode()
        os.close(parent)
        assert f"locked by process {os.getpid()}" in asked
        assert "Remove this lock? [y/N]" in asked
        assert path.exists() == (code == 16)


def test_living_holder(run: Path) -> None:
    """While the holder is alive the command ends with 11, whatever is confirmed; the lock stays."""
    with location_lock(str(run), "reshard"):
        refused = edl("unlock", run, "--yes")
        assert refused.returncode == 11
        assert f"the lock holder is alive: process {os.getpid()}" in refused.stderr
        assert f"kill {os.getpid()}" in refused.stderr
        assert (run / ".edl-ckpt-0/lock-0").exists()


def test_holder_on_another_host(run: Path) -> None:
    """A holder on another host is alive for minutes after its last sign of life; then a person may remove its lock."""
    path = left_by(run, host="elsewhere", age=60)
    assert edl("unlock", run, "--yes").returncode == 11
    assert path.exists()
    left_by(run, host="elsewhere", age=200)
    assert document("unlock", run, "--yes")["holders"][0]["host"] == "elsewhere"
    assert not path.exists()


def test_what_is_said_of_a_holder_on_another_host(run: Path) -> None:
    """It may be alive, and is never called so; the last sign of life is said, and from when on `unlock` works."""
    left_by(run, host="pod-7", pid=10886, purpose="copy", age=63)
    for command in (["unlock", run, "--yes"], ["tag", "add", f"{run}@5", "good", "--lock-wait", "0s"]):
        refused = edl(*command)
        assert refused.returncode == 11
        assert re.search(r"process 10886 on pod-7 since \S+ \(copy\), last sign of life 6\ds ago", refused.stderr)
        assert re.search(r"works from \d\d:\d\d:\d\d UTC on, 150s after its last sign of life", refused.stderr)
        assert "is alive" not in refused.stderr
    assert f"if pod-7 is gone: edl-ckpt unlock {run}" in refused.stderr
    left_by(run, host="pod-7", age=200)
    waiting = edl("tag", "add", f"{run}@5", "good", "--lock-wait", "0s")
    assert waiting.returncode == 11
    assert f"edl-ckpt unlock {run}, which works now" in waiting.stderr
    assert edl("unlock", run, "--yes").returncode == 0


def test_on_s3(s3: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on S3, where an object stands for the lock: 11 while it is fresh, 16 without --yes, then 0."""
    s3.put(f"run/.edl-ckpt-0/lock-0/{CLAIM}", json.dumps({"pid": 7, "host": "elsewhere", "purpose": "copy"}).encode())
    assert inside(capsys, "unlock", s3.url, "--yes", code=11)["id"] == "locked"
    monkeypatch.setattr("edl_ckpt.core.state.remote_lock.MISSED_SECONDS", -1.0)
    refused = inside(capsys, "unlock", s3.url, code=16)
    assert "process 7 on elsewhere" in refused["message"]
    done = inside(capsys, "unlock", s3.url, "--yes")
    assert (done["unlocked"], done["holders"][0]["host"]) == (True, "elsewhere")
    assert s3.state() == []
    assert inside(capsys, "unlock", s3.url)["unlocked"] is False
