"""Waiting for a version: what counts, and how a wait ends without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bundle_files import write_bundle
from checkpoints import at
from edl_ckpt.core import (
    CheckpointSaver,
    NotFoundError,
    UsageError,
    WaitResult,
    checkpoints_iterator,
    set_metrics,
    set_modes,
    wait_for_version,
)
from edl_ckpt.core.operations.follow import observe
from edl_ckpt.core.operations.follow.wait import Outcome
from following import Job, Script, script
from reporters import Recorder


def wait(run: Path, steps: Script, seconds: float | None = 100.0, **wanted: object) -> WaitResult:
    """Wait for a version on the clock of a script, with a look each second."""
    return wait_for_version(run, interval_seconds=1.0, timeout_seconds=seconds, clock=steps.clock, **wanted)  # type: ignore[arg-type]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that has saved two versions, and a third in part."""
    job = Job(tmp_path / "run")
    job.save(10, 20)
    job.shard(30, 0)
    return job


def test_any_version(job: Job) -> None:
    """Without a condition the newest version that is complete and can be read does, at once."""
    found = wait(job.run, script())
    assert (found.outcome, found.version and found.version.version, found.waited_seconds) == (Outcome.FOUND, 20, 0)
    job.shard(20, 1, part=0.5)
    found = wait(job.run, script())
    assert found.version is not None
    assert found.version.version == 10


def test_a_number_or_above(job: Job) -> None:
    """A version of that number or a higher one is waited for until its last byte is there."""
    steps = script(
        lambda: job.shard(30, 1, part=0.1),
        lambda: job.shard(30, 1, part=0.9),
        lambda: job.shard(30, 1),
    )
    found = wait(job.run, steps, version_ge=25)
    assert found.version is not None
    assert (found.version.ref, found.waited_seconds) == (f"{job.run}@30", 3)


def test_a_location_that_is_not_there_yet(tmp_path: Path) -> None:
    """A job that has not begun is waited for; a warning says that there is nothing, for a typo looks the same."""
    job, reporter = Job(tmp_path / "run"), Recorder()
    found = wait(job.run, script(lambda: None, lambda: job.save(10)), reporter=reporter)
    assert found.version is not None
    assert reporter.warnings == [f"{job.run}: does not exist; waiting for it"]
    assert wait(job.run, script(), version_ge=11).why == "timed out: the newest complete version is 10"
    shutil.rmtree(job.run)
    assert wait(job.run, script()).why == "timed out: the location does not exist"
    job.run.mkdir()
    assert wait(job.run, script(), 3.0, stall_seconds=2.0).why == "stalled: nothing has changed: there is no version"


def test_the_newest_complete_version_is_named(job: Job) -> None:
    """A wait in vain for a higher number names the newest complete version, and not a higher one that lacks a shard."""
    assert wait(job.run, script(), version_ge=31).why == "timed out: the newest complete version is 20"
    for number in (10, 20):
        job.path(number, 1).unlink()
    assert wait(job.run, script(), version_ge=31).why == "timed out: no version is complete"


def test_the_best(job: Job) -> None:
    """The best version by a metric comes as soon as one has it, and only if it can be read."""
    steps = script(lambda: set_metrics(at(job.run, 10), {"auc": 0.7}))
    found = wait(job.run, steps, best="auc")
    assert found.version is not None
    assert (found.version.version, dict(found.version.metrics)) == (10, {"auc": 0.7})
    set_metrics(at(job.run, 20), {"auc": 0.9})
    found = wait(job.run, script(), best="auc", version_ge=15)
    assert found.version is not None
    assert found.version.version == 20
    job.shard(20, 1, part=0.5)
    found = wait(job.run, script(), best="auc")
    assert found.version is not None
    assert found.version.version == 10


def test_a_metric_without_a_direction(job: Job) -> None:
    """Whether more is better is asked at once, and not when the wait is over."""
    with pytest.raises(UsageError, match="higher or lower"):
        wait(job.run, script(), best="f1")
    set_modes(str(job.run), {"f1": "max"})
    assert (
        wait(job.run, script(), best="f1").why
        == "timed out: version 30: it has 1 of 2 shards (2 other versions unfinished)"
    )


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 1), (0.5, 2), (3.0, 4)])
def test_a_time_out(job: Job, seconds: float, looks: int) -> None:
    """A wait ends with its time, not before and not an interval later; no time means one look."""
    steps = script()
    done = wait(job.run, steps, seconds, version_ge=30)
    assert (done.outcome, done.version, done.waited_seconds) == (Outcome.TIMED_OUT, None, seconds)
    assert len(steps.waits) == looks - 1
    assert done.why == "timed out: version 30: it has 1 of 2 shards"


def test_a_stall(job: Job) -> None:
    """A wait ends when nothing at the location changes any more; any change begins the time anew."""
    steps = script(
        *[lambda: None] * 8, lambda: job.shard(30, 1, part=0.2), lambda: shutil.rmtree(job.run / "version-10")
    )
    done = wait(job.run, steps, None, version_ge=30, stall_seconds=9.5)
    assert (done.outcome, done.waited_seconds) == (Outcome.STALLED, 19.5)
    assert done.why.startswith("stalled: nothing has changed: version 30: ")
    assert "variables-1-of-2" in done.why


def test_the_grace_period_is_no_change(tmp_path: Path) -> None:
    """That a version no longer counts as being written is not a sign of life."""
    job = Job(tmp_path / "run")
    steps = script()
    job.shard(10, 0)
    (job.run / "version-10").touch()
    assert wait(job.run, steps, None, stall_seconds=2000.0).waited_seconds == 2000


def test_what_cannot_be_waited_for(job: Job) -> None:
    """Numbers and times that make no sense are refused before anything is looked at."""
    with pytest.raises(UsageError, match="at least 0"):
        wait(job.run, script(), version_ge=-1)
    with pytest.raises(UsageError, match="more than 0 seconds"):
        wait_for_version(job.run, interval_seconds=0.0)
    with pytest.raises(NotFoundError, match="a file"):
        wait_for_version(job.path(10, 0))


def test_a_version_of_two_runs_does_not_count(tmp_path: Path) -> None:
    """A version that a restarted job has replaced in part is waited for until all servers have replaced it."""
    run = tmp_path / "run"

    def save(ps_id: int, job: str) -> None:
        with CheckpointSaver(run, ps_id=ps_id, ps_num=2, run=job, layout="elasticdl") as saver:
            saver.save(10, {}, {"t": (np.arange(ps_id, 8, 2), np.zeros((4, 2), np.float32))})

    save(0, "first")
    save(1, "second")
    found = wait(run, script(*[lambda: None] * 40, lambda: save(0, "second")))
    assert (found.outcome, found.waited_seconds) == (Outcome.FOUND, 41)


def test_a_fault_that_goes_by_itself(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong beside the shards, such as a note that is still to come, is looked at again for a while."""
    faults = iter(["a note is missing", "a note is missing", None])
    monkeypatch.setattr(observe, "read_fault", lambda _: next(faults))
    assert wait(job.run, script(), version_ge=20).waited_seconds == 2


@pytest.fixture
def keras(tmp_path: Path) -> Path:
    """Return a directory with bundles of Keras' own names, by epoch and loss, and the record of the newest."""
    for number, name in enumerate(("weights.01-0.71", "weights.02-0.35", "weights.10-0.32")):
        write_bundle(tmp_path / name, {"w": np.full(3, number, "<f4")})
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "weights.10-0.32"\n'
        'all_model_checkpoint_paths: "weights.01-0.71"\n'
        'all_model_checkpoint_paths: "weights.02-0.35"\n'
        'all_model_checkpoint_paths: "weights.10-0.32"\n'
    )
    return tmp_path


def test_a_version_without_a_number_is_waited_for(keras: Path) -> None:
    """It is the newest by the record of its system; no number is one that was asked for."""
    found = wait(keras, script(), seconds=0).version
    assert found is not None
    assert found.key == "weights.10-0.32"
    assert wait(keras, script(), version_ge=0, seconds=0).outcome is Outcome.TIMED_OUT


def test_the_best_of_versions_without_a_number(keras: Path) -> None:
    """Their metrics are kept by their names."""
    for name, loss in (("weights.02-0.35", 0.35), ("weights.10-0.32", 0.5)):
        set_metrics(f"{keras}@{name}", {"loss": loss})
    found = wait(keras, script(), best="loss", mode="min", seconds=0).version
    assert found is not None
    assert (found.key, found.metrics) == ("weights.02-0.35", {"loss": 0.35})


def test_all_versions_without_a_number_are_yielded(keras: Path) -> None:
    """Each comes once, by its name."""
    assert [v.key for v in checkpoints_iterator(keras, timeout_seconds=0)] == [
        "weights.01-0.71",
        "weights.02-0.35",
        "weights.10-0.32",
    ]
