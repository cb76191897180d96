"""Versions of systems that do not say when a save has ended: only evidence makes them count."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from edl_ckpt.core import (
    checkpoints_iterator,
    convert_version,
    list_versions,
    plan_prune,
    resolve,
    verify_version,
    wait_for_version,
)
from edl_ckpt.core.base.errors import EdlCkptWarning
from edl_ckpt.core.model.versions import BEING_WRITTEN
from edl_ckpt.core.operations.follow.observe import EventKind
from edl_ckpt.core.operations.follow.watch import watch_location
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.verify.check import verify_and_seal, verify_versions
from edl_ckpt.core.operations.verify.newest import newest_good
from stranger_files import NOW, age
from system_runs import SYSTEMS

FIXTURES = {"tfra": "tfra/step_3", "dynamicemb": "dynamicemb/step_2", "safetensors": "safetensors/checkpoint-100"}
ONE = Policy((Latest(1),))


def run_of(system: str, place: Path, numbers: tuple[int, ...] = (10, 20, 30)) -> Path:
    """Return a location with old versions of a system."""
    for number in numbers:
        shutil.copytree(SYSTEMS / FIXTURES[system], place / f"step_{number}")
    age(place)
    return place


def touch(step: Path) -> None:
    """Let a version be as if a job were writing it just now."""
    for path in (*step.rglob("*"), step):
        os.utime(path)


def states(run: Path) -> list[str]:
    """Return the states of all versions, as people are told."""
    return [version.shown_state for version in list_versions(run).versions]


@pytest.fixture(params=FIXTURES)
def system(request: pytest.FixtureRequest) -> str:
    """Return a system without a mark at the end of a save."""
    return str(request.param)


def test_a_young_version_is_being_written(system: str, tmp_path: Path) -> None:
    """It does not count until the grace period is over: not for `latest`, and not for a prune."""
    run = run_of(system, tmp_path / "run")
    touch(run / "step_30")
    assert states(run) == ["complete", "complete", "writing"]
    with pytest.warns(EdlCkptWarning, match="@30 is passed over: a job may still be writing it"):
        assert resolve(str(run)).version == 20
    assert resolve(f"{run}@30").version == 30
    plan = plan_prune([run], ONE, now=time.time())
    assert [entry.version for entry in plan.deletions] == [10]


def test_where_all_are_young_the_newest_is_the_latest_with_a_warning(system: str, tmp_path: Path) -> None:
    """After `cp -r` all versions are young: `latest` is the newest one, and says that it may not be whole."""
    run = run_of(system, tmp_path / "run")
    for step in run.iterdir():
        touch(step)
    with pytest.warns(EdlCkptWarning, match="@30: a job may still be writing it"):
        assert resolve(str(run)).version == 30
    assert not plan_prune([run], ONE, now=time.time()).deletions


def test_a_seal_is_evidence(system: str, tmp_path: Path) -> None:
    """A version whose seal matches its files is whole, however young it is."""
    run = run_of(system, tmp_path / "run")
    touch(run / "step_30")
    verify_and_seal(resolve(f"{run}@30"))
    assert states(run)[-1] == "complete"


@pytest.mark.parametrize("system", ["tfra", "dynamicemb"])
def test_files_without_a_byte_are_no_version_to_keep(system: str, tmp_path: Path) -> None:
    """All files are empty after a power cut: the version is suspect, and the one before it stays."""
    run = run_of(system, tmp_path / "run")
    for path in (run / "step_30").rglob("*"):
        if path.is_file() and path.suffix != ".json":
            path.write_bytes(b"")
    age(run)
    assert states(run) == ["complete", "complete", "suspect"]
    with pytest.warns(EdlCkptWarning, match="@30 is passed over: none of its tables has a row"):
        assert resolve(str(run)).version == 20
    plan = plan_prune([run], ONE, now=NOW)
    assert [entry.version for entry in plan.deletions] == [10]
    assert any("none of its tables has a row" in reason for reason in plan.entries[-1].reasons)


def test_half_of_the_values_is_suspect(tmp_path: Path) -> None:
    """Values that were cut off at a whole number of elements for each row look like shorter rows."""
    run = run_of("tfra", tmp_path / "run")
    for path in (run / "step_30").rglob("*-values"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    age(run)
    version = list_versions(run).versions[-1]
    assert version.shown_state == "suspect"
    assert "has rows of" in version.doubts[0]


def test_what_the_version_before_had_is_missed(tmp_path: Path) -> None:
    """Scores that are not there yet, and an optimizer that was not saved, make a version suspect."""
    run = run_of("dynamicemb", tmp_path / "run")
    for path in (run / "step_30").rglob("*_scores.*"):
        path.unlink()
    age(run)
    version = list_versions(run).versions[-1]
    assert version.shown_state == "suspect"
    assert "of version 20" in version.doubts[0]


def test_an_optimizer_that_was_not_saved(tmp_path: Path) -> None:
    """A step of a Trainer without the files that earlier ones have does not cost the last one with them."""
    run = run_of("safetensors", tmp_path / "run")
    for number in (10, 20):
        (run / f"step_{number}/optimizer.pt").write_bytes(b"x")
        (run / f"step_{number}/rng_state_0.pth").write_bytes(b"x")
    age(run)
    assert list_versions(run).versions[-1].doubts == ("it lacks optimizer.pt, rng_state_0.pth of version 20",)
    assert [entry.version for entry in plan_prune([run], ONE, now=NOW).deletions] == [10]
    (run / "step_30/optimizer.pt").write_bytes(b"x")
    (run / "step_30/rng_state_3.pth").write_bytes(b"x")
    age(run)
    assert states(run) == ["complete"] * 3


def test_a_trainer_says_when_it_has_ended(tmp_path: Path) -> None:
    """A Trainer writes its state last, so a step with it is whole at once."""
    run = run_of("safetensors", tmp_path / "run")
    touch(run / "step_30")
    (run / "step_30/trainer_state.json").write_text("{}")
    assert states(run) == ["complete"] * 3


def test_a_suspect_version_is_read_by_its_number(tmp_path: Path) -> None:
    """A doubt is no damage: whoever names the version gets it."""
    run = run_of("tfra", tmp_path / "run")
    touch(run / "step_30")
    assert verify_version(resolve(f"{run}@30", grace_seconds=0), level="deep").ok


def test_who_waits_gets_no_version_that_may_not_be_whole(system: str, tmp_path: Path) -> None:
    """`wait`, `watch` and the iterator pass over versions that a listing calls writing or suspect."""
    run = run_of(system, tmp_path / "run")
    touch(run / "step_30")
    assert wait_for_version(run, timeout_seconds=0).version == list_versions(run).versions[1]
    late = wait_for_version(run, version_ge=30, timeout_seconds=0)
    assert (late.version, late.newest_complete) == (None, 20)
    assert late.why == f"timed out: version 30: {BEING_WRITTEN}"
    assert [version.version for version in checkpoints_iterator(run, timeout_seconds=0)] == [10, 20]
    events = watch_location(run, after=0, timeout_seconds=0)
    assert [event.version.version for event in events if event.kind is EventKind.COMPLETE] == [10, 20]


def test_a_version_of_empty_files_is_not_waited_for(tmp_path: Path) -> None:
    """What lost its bytes in a power cut is no version to load, to resume from, or to call ok without a word."""
    run = run_of("tfra", tmp_path / "run")
    for path in (run / "step_30").rglob("*-*"):
        path.write_bytes(b"")
    age(run)
    waited = wait_for_version(run, version_ge=30, timeout_seconds=0)
    assert waited.version is None
    assert "none of its tables has a row" in waited.why
    assert [version.version for version in checkpoints_iterator(run, timeout_seconds=0)] == [10, 20]
    result = verify_version(resolve(f"{run}@30"), level="deep")
    assert [(finding.code, finding.severity) for finding in result.findings] == [("suspect", "warning")]
    versions = list_versions(run).versions
    newest = newest_good(versions, lambda version: verify_versions([version], level="deep"), level="deep")
    assert newest.version == versions[1]
    assert [(passed.ref, passed.state) for passed in newest.passed_over] == [(f"{run}@30", "suspect")]


def test_a_sealed_version_is_waited_for_at_once(system: str, tmp_path: Path) -> None:
    """A seal is evidence for those who wait, too."""
    run = run_of(system, tmp_path / "run")
    verify_and_seal(f"{run}@30")
    touch(run / "step_30")
    found = wait_for_version(run, version_ge=30, timeout_seconds=0).version
    assert found is not None
    assert found.version == 30


def test_a_rewritten_bundle_makes_no_later_one_suspect(tmp_path: Path) -> None:
    """A reshard adds the file `checkpoint` to one step: the others, which never had one, are as good as before."""
    run = tmp_path / "run"
    for number in (1, 2):
        shutil.copytree(SYSTEMS / "bundle/deeprec", run / f"step_{number}")
    age(run)
    convert_version(f"{run}@1", 3)
    assert (run / "step_1/checkpoint").exists()
    assert states(run) == ["complete", "complete"]
    assert resolve(str(run)).version == 2
