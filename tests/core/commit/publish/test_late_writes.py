"""What a job writes into a version while a command rewrites it stays: the command looks again right before the act."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, only, save_small
from edl_ckpt.core import convert_version, prune, recover, reshard_version, verify_version
from edl_ckpt.core.base.errors import LockedError, RefusedError
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.operations import repair as repairs
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.repair import repair_version
from raw_trees import RawEntry, raw_tree
from s3_fixtures import Bucket
from system_runs import settled, step_run
from waiting import paused

COMMANDS = {
    "reshard": ["reshard", "run@10", "--ps", "3"],
    "keep-old": ["reshard", "run@10", "--ps", "3", "--keep-old"],
    "strip": ["prune", "run", "--keep", "9", "--strip-after", "1", "--yes"],
}


def _save_again(step: Path) -> None:
    """Write a step again as torch does: the files of ranks first, its index last."""
    for path in sorted(step.glob("__*")):
        path.write_bytes(path.read_bytes()[::-1])
    (step / ".metadata").write_bytes((step / ".metadata").read_bytes())


def _add(step: Path) -> None:
    (step / ".hydra").mkdir()
    (step / ".hydra/config.yaml").write_text("lr: 1")


def _remove(step: Path) -> None:
    (step / "huggingface/config.json").unlink()


@pytest.mark.parametrize("change", [_save_again, _add, _remove])
@pytest.mark.parametrize("stop", ["fsync:3", "fsync:5"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_save_during_the_flush_and_the_proof_stays(
    tmp_path: Path, name: str, stop: str, change: Callable[[Path], None]
) -> None:
    """A command that is stopped while it flushes finds what came meanwhile: 11, and the new save is what is there."""
    place = step_run(tmp_path / "run", (10, 20))
    with paused(*COMMANDS[name], at=stop, cwd=tmp_path) as program:
        change(place / "step_10")
        before = raw_tree(place / "step_10")
        program.resume()
        code = program.process.wait(300)
    assert code == (3 if name == "strip" else 11)  # a prune goes on with the other versions
    assert raw_tree(place / "step_10") == before
    recover(str(place))
    assert raw_tree(place / "step_10") == before


def test_a_save_of_elasticdl_stays(tmp_path: Path) -> None:
    """The same holds for shards of ElasticDL, which are rewritten by another way."""
    save_small(tmp_path / "run", 7)
    with paused("reshard", "run@7", "--ps", "3", at="fsync:2", cwd=tmp_path) as program:
        shard = Path(only(tmp_path / "run").shards[0].path)
        shard.write_bytes(shard.read_bytes())
        before = raw_tree(shard.parent)
        program.resume()
        assert program.process.wait(300) == 11
    assert raw_tree(shard.parent) == before
    assert verify_version(at(tmp_path / "run", 7)).ok


def test_a_save_on_object_storage_stays(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On S3 an old shard that was written again before its removal stays, and the new shards go."""
    save_small(tmp_path / "run", 7)
    s3.upload(tmp_path / "run")
    key = next(key for key in s3.keys("run/") if key.endswith("0-of-2.chkpt") or "-0-of-2" in key)
    real = RemoteOutput.written

    def written(self: RemoteOutput) -> object:
        s3.put(key, s3.get(key) + b"")
        s3.put("run/version-7/late.txt", b"mine")
        return real(self)

    monkeypatch.setattr(RemoteOutput, "written", written)
    with pytest.raises(LockedError, match="changed while"):
        reshard_version(at(s3.url, 7), 3)
    names = [k for k in s3.keys("run/") if "version-7/" in k]
    assert sorted(name.rpartition("/")[2] for name in names) == sorted(
        [*(p.name for p in (tmp_path / "run/version-7").iterdir()), "late.txt"]
    )


@pytest.mark.parametrize("trash", [False, True])
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_prune_looks_at_what_it_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trash: bool, is_taken: bool
) -> None:
    """What comes into a step between the last look and the rename brings it back, or stays in the trash.

    It stays there where a job has made another directory of that name meanwhile.
    """
    place = step_run(tmp_path / "run", (10, 20))
    step, real = place / "step_10", os.rename
    seen: list[dict[str, RawEntry]] = []

    def rename(old: Any, new: Any, **more: Any) -> None:
        if old == "step_10" and not seen:
            (step / "late.bin").write_text("mine")
            seen.append(raw_tree(step))
            real(old, new, **more)
            if is_taken:
                step.mkdir()
            return
        real(old, new, **more)

    monkeypatch.setattr(os, "rename", rename)
    result = prune([place], Policy((Latest(1),)), trash=trash)
    monkeypatch.undo()
    assert [error.exit_code for _, error in result.failed] == [16]
    (found,) = place.glob(".edl-ckpt-0/trash-0/*/step_10") if is_taken else (step,)
    assert raw_tree(found) == seen[0]
    recover(str(place))
    prune([place], Policy((Latest(1),)))
    assert raw_tree(found) == seen[0]


def test_a_repair_stops_at_a_file_that_a_job_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair looks at the version again before each file; what a job has saved by then is not replaced."""
    place = step_run(tmp_path / "run", (10,))
    shutil.copytree(place, tmp_path / "copy")
    damaged = place / "step_10/__1_0.distcp"
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    settled(place)
    real = repairs.BothCopies.compare

    def compare(self: repairs.BothCopies, *words: object) -> None:
        real(self, *words)  # type: ignore[arg-type]
        damaged.write_bytes(b"a newer save")

    monkeypatch.setattr(repairs.BothCopies, "compare", compare)
    with pytest.raises(LockedError, match="__1_0"):
        repair_version(at(place, 10), at(tmp_path / "copy", 10), mix=True)
    assert damaged.read_bytes() == b"a newer save"


def test_a_mount_in_a_step_is_refused(tmp_path: Path) -> None:
    """A step in which a directory is mounted is not rewritten, and nothing in the mounted directory is touched."""
    place = step_run(tmp_path / "run", (10, 20))
    (place / "step_10/data").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/mine").write_text("mine")
    settled(place)
    program = Path(sys.executable).with_name("edl-ckpt")
    script = f"mount --bind {tmp_path}/outside {place}/step_10/data && {program} reshard {place}@10 --ps 3"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr[:80]}")
    assert done.returncode == 16, done.stderr
    assert "a mount point (data)" in done.stderr
    assert (tmp_path / "outside/mine").read_text() == "mine"


def test_state_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Where our state is a link, commands that write end with 16, and call no seal damaged."""
    save_small(tmp_path / "run", 7)
    (tmp_path / "run/.edl-ckpt-0").rename(tmp_path / "state")
    (tmp_path / "run/.edl-ckpt-0").symlink_to(tmp_path / "state")
    place = step_run(tmp_path / "steps", (10,))
    (place / ".edl-ckpt-0").symlink_to(tmp_path / "state")
    with pytest.raises(RefusedError, match="is a symbolic link"):
        reshard_version(only(tmp_path / "run"), 3)
    with pytest.raises(RefusedError, match="is a symbolic link"):
        convert_version(at(place, 10), 3)
