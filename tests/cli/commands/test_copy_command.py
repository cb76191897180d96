"""`copy` and `recover` as scripts meet them, and what a second signal does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import elasticdl_rules
from edl_ckpt.core import list_versions, verify_version
from places import GOLDEN
from program import PROGRAM, document, edl, inside
from s3_fixtures import Bucket


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The golden location with two complete versions and one that lacks a shard."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    return tmp_path / "run"


def test_documents(run: Path, tmp_path: Path) -> None:
    """A dry run shows its plan and writes nothing; the run, and a second one, show their results."""
    out = tmp_path / "out"
    planned = document("copy", run, out, "--all", "--dry-run")
    assert [(c["ref"], c["to"], c["skipped"]) for c in planned["copied"]] == [
        (f"{run}@{n}", f"{out}@{n}", False) for n in (9, 20)
    ]
    assert planned["dry_run"] is True
    assert not out.exists()
    done = document("copy", run, out, "--since", "10")
    assert list(done)[:4] == ["schema", "copied", "bytes_copied", "seconds"]
    assert done["schema"] == "edl-ckpt/copy/1"
    (copied,) = done["copied"]
    assert {"ref", "to", "size_bytes", "fingerprint", "skipped"} <= set(copied)
    assert copied["fingerprint"] == document("verify", f"{out}@20", "--deep")["fingerprint"]
    again = document("copy", run, out, "--all")
    assert [(c["to"], c["skipped"]) for c in again["copied"]] == [(f"{out}@9", False), (f"{out}@20", True)]
    words = edl("copy", run, out, "--all")
    assert "other complete" not in words.stderr
    assert words.stdout.splitlines()[-1] == "nothing to copy"
    assert f"warning: {run}@100: " in words.stderr
    assert "so not copied" in words.stderr
    assert "copy" in edl("copy", run, tmp_path / "third", "--all", "--dry-run").stdout
    one = edl("copy", run, tmp_path / "third").stderr
    assert "1 other complete version not copied; --all copies every one\n" in one
    assert edl("copy", f"{run}@20", tmp_path / "third").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run@20"], 2),
        (["run@20", "out@20"], 2),
        (["run@20", "out", "--all"], 2),
        (["run@20", "run"], 2),
        (["run@100", "out"], 4),
        (["run@77", "out"], 10),
        (["nowhere", "out"], 10),
        (["run@20", "file"], 10),
        (["run@20", "taken"], 16),
        (["run", "taken", "--all"], 16),
    ],
)
def test_failures(run: Path, tmp_path: Path, arguments: list[str], code: int) -> None:
    """Every wrong copy ends with its code and a plain sentence; existing files stay as they were."""
    (tmp_path / "file").write_text("x")
    shutil.copytree(run / "version-9", tmp_path / "taken/version-20")  # of equal values, and yet another version
    before = sorted(p.name for p in (tmp_path / "taken").rglob("*"))
    done = edl("copy", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr or "Error" in done.stderr
    assert (tmp_path / "file").read_text() == "x"
    if "--all" not in arguments:
        assert sorted(p.name for p in (tmp_path / "taken").rglob("*")) == before


def kill_in_place(location: Path, call: str) -> None:
    """Reshard in place, killed at a system call that comes after the journal."""
    traced = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"inject={call}:signal=KILL:when=1", *PROGRAM]
    subprocess.run(
        [*traced, "reshard", f"{location}@20", "--ps", "3", "--workers", "1"], capture_output=True, check=False
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_recover(run: Path) -> None:
    """After a kill during a swap, `list` warns of it, and `recover` finishes the swap and reports that."""
    before = elasticdl_rules.answer(run)
    kill_in_place(run, "renameat2")
    if not elasticdl_rules.leftovers(run):
        pytest.skip("processes cannot be traced here")
    assert "edl-ckpt recover" in edl("list", run).stderr
    result = document("recover", run)
    assert result["schema"] == "edl-ckpt/recover/1"
    assert result["done"] == ["rolled back the replacement of version 20; the old version is in place"]
    assert elasticdl_rules.leftovers(run) == []
    assert elasticdl_rules.answer(run) == before
    assert verify_version(list_versions(str(run)).versions[1], level="deep").ok
    assert document("recover", run) == {**result, "done": [], "kept": []}
    assert edl("recover", run).stdout == f"{run}: nothing to recover\n"
    assert edl("recover", f"{run}-not").returncode == 10


@pytest.mark.parametrize("option", [["--all"], ["--since", "3"]])
def test_from_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    """A copy from a place without a checkpoint is error 10, never "nothing to copy"; nothing is made."""
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "missing", tmp_path / "empty"):
        error = inside(capsys, "copy", source, tmp_path / "out", *option, code=10)
        assert str(source) in error["path"]
    assert not (tmp_path / "out").exists()


def test_from_nowhere_on_s3(s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for an empty prefix of a bucket."""
    inside(capsys, "copy", s3.url, tmp_path / "out", "--all", code=10)
    assert not (tmp_path / "out").exists()
