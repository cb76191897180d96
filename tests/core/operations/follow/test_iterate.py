"""Each complete version once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from checkpoints import at
from edl_ckpt.core import UsageError, Version, checkpoints_iterator, set_metrics
from following import Job, Script, script


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that has saved nothing."""
    return Job(tmp_path / "run")


def iterate(job: Job, steps: Script, seconds: float | None = 20.0, **more: object) -> Iterator[Version]:
    """Iterate on the clock of a script, with a look each second."""
    return checkpoints_iterator(
        job.run,
        interval_seconds=1.0,
        timeout_seconds=seconds,
        clock=steps.clock,
        **more,  # type: ignore[arg-type]
    )


def numbers(versions: Iterator[Version]) -> list[int]:
    """Return the numbers of versions."""
    return [version.version for version in versions]


def test_each_once_in_order(job: Job) -> None:
    """Versions come by number, the half written one when it is whole, and each of them once."""
    job.save(9, 100)
    job.shard(110, 0)
    steps = script(lambda: job.shard(110, 1, part=0.5), lambda: job.shard(110, 1), lambda: job.save(130, 120))
    assert numbers(iterate(job, steps)) == [9, 100, 110, 120, 130]


def test_what_came_while_the_caller_was_busy(job: Job) -> None:
    """A slow evaluator sees every version that is still there, in order, and none that is gone by its turn."""
    job.save(1, 2, 3)
    seen, steps = [], script()
    for version in iterate(job, steps):
        seen.append(version.version)
        assert steps.waits == []
        if version.version == 1:
            shutil.rmtree(job.run / "version-2")
            job.save(4, 5)
    assert seen == [1, 3, 4, 5]


def test_resumed(job: Job) -> None:
    """An evaluator that was stopped after a version goes on behind it."""
    job.save(100, 200, 300)
    first = list(islice(iterate(job, script()), 2))
    assert numbers(iter(first)) == [100, 200]
    assert numbers(iterate(job, script(lambda: job.save(400)), after=200)) == [300, 400]


@pytest.mark.parametrize(("replaced", "expected"), [(False, [10, 20]), (True, [10, 10, 20])])
def test_a_restarted_job(job: Job, replaced: bool, expected: list[int]) -> None:
    """A number that is written again comes again only for those who ask for it."""
    job.save(10)
    steps = script(lambda: job.shard(10, 0, part=0.5), lambda: job.shard(10, 0), lambda: job.save(20))
    assert numbers(iterate(job, steps, replaced=replaced)) == expected


def test_a_number_below(job: Job) -> None:
    """A version that becomes complete after a higher one is late, and not lost."""
    job.save(20)
    assert numbers(iterate(job, script(lambda: job.save(10)))) == [20, 10]


def test_metadata(job: Job) -> None:
    """A version comes with the metrics that it has when it comes."""
    job.save(10)
    set_metrics(at(job.run, 10), {"auc": 0.5})
    (version,) = iterate(job, script())
    assert dict(version.metrics) == {"auc": 0.5}


def test_the_timeout_of_tensorflow(job: Job) -> None:
    """The time counts from when the caller wants the next version; `timeout_fn` may extend it."""
    job.save(10)
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        return len(asked) == 3

    steps = script()
    assert numbers(iterate(job, steps, 5.0, timeout_fn=is_over)) == [10]
    assert steps.seconds == 15
    with pytest.raises(UsageError, match="needs timeout_seconds"):
        iterate(job, script(), None, timeout_fn=is_over)


def test_a_pause_between_two_versions(job: Job) -> None:
    """No two versions come within `min_interval_seconds`."""
    job.save(1, 2, 3)
    steps = script()
    times = [steps.seconds for _ in iterate(job, steps, min_interval_seconds=7.0)]
    assert times == [0, 7, 14]
