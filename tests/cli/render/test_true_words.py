"""Words that count shards, and that say what was read or is left: only what is true."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import Table, execute_copy, list_versions, parse_ref, plan_copy, recover, resolve, save_checkpoint
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from places import GOLDEN
from program import document, edl, inside
from s3_fixtures import Bucket

MISSING = "shard 0 of 2 (numbered 0 to 1) is missing"


@pytest.mark.parametrize(
    ("command", "code"), [("list {}", 0), ("inspect {}@7", 4), ("verify {}@7", 3), ("get {}@7 --table e --id 4", 4)]
)
def test_missing_shard(command: str, code: int, tmp_path: Path) -> None:
    """Every command that names a missing shard counts as the files do, and says so."""
    shutil.copytree(GOLDEN / "bad/missing-shard", tmp_path / "run")
    words = [word.format(tmp_path / "run") for word in command.split()]
    done = edl(*words)
    assert (done.returncode, MISSING in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


def spoiled(run: Path, how: str) -> Path:
    """Write version 1 for two servers and spoil it; return its location."""
    save_checkpoint(str(run), 1, 2, variables={}, tables={"t": Table(np.arange(2), np.ones((2, 1), np.float32))})
    shutil.rmtree(run / ".edl-ckpt-0")
    shards = sorted((run / "version_1").iterdir())
    for shard in {"none": [], "missing": shards[:1], "cut": shards[:1], "empty": shards}[how]:
        if how == "missing":
            shard.unlink()
        else:
            os.truncate(shard, 0 if how == "empty" else shard.stat().st_size // 2)
    return run


@pytest.mark.parametrize(
    ("how", "level", "line"),
    [
        ("none", "--deep", "Checked every value; not sealed"),
        ("missing", "--deep", "1 of 2 shards could be read: checked every value; not sealed"),
        ("cut", "--deep", "1 of 2 shards could be read: checked every value; not sealed"),
        ("missing", "--quick", "1 of 2 shards could be read: checked names and headers, not ids and values"),
        ("empty", "--deep", "No shard could be read."),
        ("empty", "--quick", "No shard could be read."),
    ],
)
def test_what_was_read(how: str, level: str, line: str, tmp_path: Path) -> None:
    """`verify` says what it read of the shards that it could read, and nothing of the others."""
    run = spoiled(tmp_path / "run", how)
    said = edl("verify", run / "version_1", level).stdout.splitlines()
    assert [one for one in said if one.startswith(line)], said
    result = document("verify", run / "version_1", level, code=0 if how == "none" else 3)
    assert (result["shards"], result["shards_read"]) == (2, {"none": 2, "empty": 0}.get(how, 1))


def test_damaged_ids(tmp_path: Path) -> None:
    """Ids that cannot be decoded were not read, nor were the values of their rows."""
    run = spoiled(tmp_path / "run", "none")
    shard = run / "version_1/variables-0-of-2.chkpt"
    data = shard.read_bytes()
    assert data.count(b"\x12\x01\x00") == 1  # field 2 of IndexedSlicesProto: one packed id, 0
    shard.write_bytes(data.replace(b"\x12\x01\x00", b"\x12\x01\xff"))
    said = edl("verify", run / "version_1", "--deep").stdout
    assert "Checked every value, except in tables whose ids are damaged; not sealed" in said
    assert document("verify", run / "version_1", code=3)["ids_read"] is False


def test_several_versions(tmp_path: Path) -> None:
    """With --all the words count the shards of all versions."""
    spoiled(tmp_path / "run", "missing")
    save_checkpoint(str(tmp_path / "run"), 2, 3, variables={}, tables={})
    said = edl("verify", tmp_path / "run", "--all").stdout
    assert "4 of 5 shards in 2 versions could be read: checked names, headers and ids, not values;" in said


def test_copy_that_failed(tmp_path: Path) -> None:
    """A copy of which every version failed does not say that there was nothing to copy."""
    for name in ("run", "out"):
        for number in (1, 2):
            save_checkpoint(
                str(tmp_path / name), number, 1, variables={"v": np.array([float(len(name))], np.float32)}, tables={}
            )
    save_checkpoint(str(tmp_path / "other"), 1, 1, variables={"v": np.array([9.0], np.float32)}, tables={})
    save_checkpoint(str(tmp_path / "other"), 2, 1, variables={"v": np.array([9.0], np.float32)}, tables={})
    done = edl("copy", tmp_path / "run", tmp_path / "other", "--all")
    assert done.returncode == 16
    assert "nothing to copy" not in done.stdout


def interrupt(patch: pytest.MonkeyPatch, kind: type, run: Path, target: str) -> None:
    """Copy a version and interrupt the copy when all is written and nothing published."""
    seen: list[tuple[int, ...]] = []

    def publish(*_: object) -> None:
        seen.append(list_versions(target).interrupted_copies)
        raise KeyboardInterrupt

    with patch.context() as patched:
        patched.setattr(kind, "publish", publish)
        with pytest.raises(KeyboardInterrupt):
            execute_copy(plan_copy([resolve(parse_ref(f"{run}@7"))], target))
    assert seen == [()]  # it was at work then


def test_interrupted_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`list` names an interrupted copy that waits, and no longer once it is resumed or discarded."""
    save_checkpoint(str(tmp_path / "run"), 7, 2, variables={"v": np.array([1.0, 2.0], np.float32)}, tables={})
    out = str(tmp_path / "out")
    interrupt(monkeypatch, LocalOutput, tmp_path / "run", out)
    done = edl("list", out)
    assert done.returncode == 0
    assert done.stderr == (
        f"warning: {out}: an interrupted copy of version 7 is waiting: the same copy resumes it;"
        f" to discard it: edl-ckpt recover --drop-copies {out}\n"
    )
    assert inside(capsys, "list", out)["locations"][0]["interrupted_copies"] == [7]
    inside(capsys, "copy", f"{tmp_path}/run@7", out)
    assert edl("list", out).stderr == ""
    shutil.rmtree(out)
    interrupt(monkeypatch, LocalOutput, tmp_path / "run", out)
    recover(out, drop_copies=True)
    assert list_versions(out).interrupted_copies == ()


def test_interrupted_copy_to_s3(s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on S3."""
    interrupt(monkeypatch, RemoteOutput, large, s3.url)
    assert list_versions(s3.url).interrupted_copies == (7,)
    recover(s3.url, drop_copies=True)
    assert s3.keys() == []
