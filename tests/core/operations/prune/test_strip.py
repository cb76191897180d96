"""Old versions lose their optimizer state, and the newest whole one never does."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, files_of
from edl_ckpt.core import (
    Fingerprint,
    add_tag,
    fingerprint_checkpoint,
    list_versions,
    open_checkpoint,
    strip_versions,
    verify_version,
)
from edl_ckpt.core.base.errors import UsageError
from foreign import copied
from places import DATA
from program import edl
from reporters import Recorder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with four steps, of which the first has a tag and the last lacks a file."""
    step = copied("dcp/torchrec", 2, tmp_path / "run")
    for number in (1, 3, 4, 5):
        shutil.copytree(step, step.with_name(f"step_{number}"))
    (step.parent / "step_5" / "__1_0.distcp").unlink()
    add_tag(at(step.parent, 1), "serving")
    return step.parent


def sums(run: Path, number: int) -> Fingerprint:
    """Return the fingerprint of a version."""
    with open_checkpoint(at(run, number)) as checkpoint:
        return fingerprint_checkpoint(checkpoint)


def companions(run: Path, number: int) -> list[str]:
    """Return the tables of a version that belong to others."""
    with open_checkpoint(at(run, number)) as checkpoint:
        return [name for name, info in checkpoint.infos.items() if info.companion_of]


def test_all_but_the_newest_whole_versions_lose_companions(run: Path) -> None:
    """Tables and variables stay, value by value; a tagged version and the newest whole ones keep everything."""
    before = {n: sums(run, n) for n in (2, 3)}
    planned = strip_versions([run], 1, dry_run=True)
    assert [result.version for result in planned] == [2, 3]
    assert all(companions(run, number) for number in (1, 2, 3, 4))
    done = strip_versions([run], 1)
    assert [(result.version, result.left_out_bytes) for result in done] == [
        (p.version, p.left_out_bytes) for p in planned
    ]
    assert [bool(companions(run, number)) for number in (1, 2, 3, 4)] == [True, False, False, True]
    for number, old in before.items():
        new = sums(run, number)
        assert new.tables.items() <= old.tables.items()
        assert new.variables == old.variables
        assert verify_version(at(run, number), level="deep").ok
    assert strip_versions([run], 1) == ()


def test_versions_that_stay_as_they_are(run: Path) -> None:
    """Nothing is written for versions that are spared, when too few are whole, or by a number that spares none."""
    before = files_of(run)
    with pytest.raises(UsageError, match="never stripped"):
        strip_versions([run], 0)
    assert strip_versions([run], 4) == ()
    assert strip_versions([run], 1, spared=[v.path for v in list_versions(run).versions]) == ()
    assert files_of(run) == before


def test_what_cannot_be_read_now_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that cannot be read now is not stripped, with a warning that names it; the others are."""
    real = os.open

    def failing(path: Any, *words: Any, **more: Any) -> int:
        if str(path).endswith("step_3/.metadata"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", failing)
    report = Recorder()
    assert [result.version for result in strip_versions([run], 1, reporter=report)] == [2]
    assert any(warning.startswith(f"not stripped: {run}@3: cannot be read now") for warning in report.warnings)


def test_of_the_command(run: Path) -> None:
    """Without a rule it deletes nothing; with one, what is deleted is not rewritten; a plan in a file has no place."""
    planned = json.loads(edl("prune", run, "--strip-after", "1", "--dry-run", "--json").stdout)
    assert [one["ref"] for one in planned["stripped"]] == [f"{run}@2", f"{run}@3"]
    assert not planned["applied"]
    refused = edl("prune", run, "--keep", "2", "--strip-after", "1", "--plan-out", run.parent / "plan.json")
    assert (refused.returncode, "--strip-after" in refused.stderr) == (2, True)
    done = json.loads(edl("prune", run, "--keep", "2", "--strip-after", "1", "--json").stdout)
    assert done["deleted"] == 1
    assert [one["ref"] for one in done["stripped"]] == [f"{run}@3"]
    assert [v.version for v in list_versions(run).versions] == [1, 3, 4, 5]
    assert edl("verify", f"{run}@3", "--deep").returncode == 0
    assert "deleted" in edl("prune", run, "--strip-after", "1").stdout


def test_one_version_does_not_stop_the_others(run: Path) -> None:
    """A version that cannot be stripped has a line of its own and the exit code; the others are stripped."""
    shutil.copytree(run / "step_3", run / "step_6")
    shutil.copytree(run / "step_3", run / "step_7")
    (run / "step_2/extra").mkdir()
    shutil.copy(DATA / "systems/safetensors/checkpoint-100/model.safetensors", run / "step_2/extra")
    before = files_of(run / "step_2")
    done = edl("prune", run, "--strip-after", "1", "--yes", "--json")
    printed = json.loads(done.stdout)
    stripped = {each["ref"].rpartition("@")[2] for each in printed["stripped"]}
    assert stripped == {"3", "4", "6"}
    assert [each["ref"].rpartition("@")[2] for each in printed["failed"]] == ["2"]
    assert done.returncode == 15
    assert "could not be stripped" in done.stderr
    assert files_of(run / "step_2") == before
