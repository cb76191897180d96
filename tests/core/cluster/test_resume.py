"""A move on a cluster that was interrupted goes on with the tasks that are left, and behind a fence of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at, save_large
from edl_ckpt.core import (
    LockedError,
    NotFoundError,
    Table,
    WriteResult,
    convert_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.progress import Progress
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.moving import legs, write
from edl_ckpt.core.moving.tasks import MoveDone
from elasticdl_rules import leftovers
from system_runs import tree

Move = Callable[[Path], WriteResult]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each move be large enough to resume, and have many tasks, each of them a leg."""
    monkeypatch.setattr(write, "RESUMABLE_BYTES", 0)
    monkeypatch.setattr(legs, "LEG_SECONDS", 0.0)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 64 << 10)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.TASKS_A_THREAD", 1000)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location of ElasticDL with version 7."""
    place = tmp_path_factory.mktemp("run")
    save_large(place)
    return place


def interrupted(move: Callable[[], object], tasks: int) -> None:
    """Begin a move, and interrupt it after the results of so many tasks."""
    real, taken = legs.TaskLegs.take, [0]

    def take(self: legs.TaskLegs, done: MoveDone) -> None:
        if taken[0] == tasks:
            raise KeyboardInterrupt
        taken[0] += 1
        real(self, done)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(legs.TaskLegs, "take", take)
        with pytest.raises(KeyboardInterrupt):
            move()


@pytest.mark.parametrize("system", ["elasticdl", "dcp", "tensorflow"])
def test_resumes(tmp_path: Path, client: Any, system: str) -> None:
    """The files are those of a move that nothing interrupts, and of one by threads."""
    random, first, out = np.random.default_rng(5), tmp_path / "first", tmp_path / "out"
    rows = random.standard_normal((90_000, 16), np.float32)
    variables = {"kernel": random.standard_normal((600, 500), np.float32)}
    save_checkpoint(first, 7, 2, variables=variables, tables={"users": Table(np.arange(90_000), rows)})
    source = first if system == "elasticdl" else tmp_path / "source"
    if system != "elasticdl":
        convert_version(f"{first}@7", 2, output=source, system=system)
    convert_version(f"{source}@7", 3, output=tmp_path / "whole")

    def move() -> WriteResult:
        return convert_version(f"{source}@7", 3, output=out, executor=client)

    interrupted(move, 3)
    interrupted(move, 3)
    done = move()
    assert done.resumed_bytes > 0
    assert tree(out) == tree(tmp_path / "whole")
    assert leftovers(out) == []


def test_another_number_of_threads(run: Path, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks, and pieces in place of tasks, begin anew."""
    out = tmp_path / "out"
    interrupted(lambda: convert_version(f"{run}@7", 3, output=out, executor=client), 2)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 8 << 20)
    interrupted(lambda: convert_version(f"{run}@7", 3, output=out, executor=client), 2)
    assert convert_version(f"{run}@7", 3, output=out).resumed_bytes == 0
    assert leftovers(out) == []


def test_a_task_of_the_interrupted_run(run: Path, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that wakes up in the next run opens no file, and what it has open becomes a file without a name."""
    out, shared, refused = tmp_path / "out", list[StagedTargets](), list[str]()
    real = LocalOutput.share

    def share(self: LocalOutput, **options: Any) -> StagedTargets:
        shared.append(real(self, **options))
        if len(shared) == 2:
            files[0].write(0, b"late" * 100)
            with pytest.raises(LockedError, match="is over") as caught:
                files[1].write(0, b"late")
            refused.append(str(caught.value))
        return shared[-1]

    monkeypatch.setattr(LocalOutput, "share", share)

    def move() -> WriteResult:
        return convert_version(f"{run}@7", 3, output=out, executor=client)

    interrupted(move, 2)
    with suppress(NotFoundError), shared[0].opened([0, 1]) as files:  # its record is gone
        files[0].write(0, b"")
        done = move()
    assert refused
    assert done.resumed_bytes > 0
    assert verify_version(at(out, 7), level="deep").findings == ()
    assert leftovers(out) == []


def test_lost_data(run: Path, tmp_path: Path, client: Any) -> None:
    """Staged bytes that were lost are found by the proof, and everything is written anew, by the cluster again."""
    out, warned = tmp_path / "out", list[str]()
    interrupted(lambda: convert_version(f"{run}@7", 3, output=out, executor=client), 2)
    (stage,) = (out / ".edl-ckpt-0/stage-0").iterdir()
    for staged in (stage / "version_7").iterdir():
        staged.write_bytes(bytes(staged.stat().st_size))
    reporter = Progress(lambda *_: None, on_warning=warned.append)
    assert convert_version(f"{run}@7", 3, output=out, executor=client, reporter=reporter).resumed_bytes == 0
    assert any("begins anew" in text for text in warned)
    assert verify_version(at(out, 7), level="deep").findings == ()
    assert leftovers(out) == []
