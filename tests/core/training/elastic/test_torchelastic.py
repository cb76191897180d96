"""The figures of TorchElastic's own tests of its trainer, for the same scenarios over our loop and coordinator.

They are those of test/p2p/elastic_trainer_test_base.py in pytorch/elastic. Up to four workers share samples 11 to 30,
and a step adds up the samples of all. A hook disturbs some workers in their third step. 11 + 12 + ... + 30 = 410.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import numbers
from edl_ckpt.core.training.elastic import (
    FileSystemCheckpointManager,
    LocalCoordinator,
    State,
    sync_from_rank_0,
    train,
)
from members import Members
from waiting import wait_until

Hook = Callable[[], None]
SAMPLES = range(11, 31)


class Samples(State):
    """A sum, and the position in the samples; `nums` is no part of the state: it has every sample that was seen."""

    def __init__(self, coordinator: LocalCoordinator, samples: range = SAMPLES) -> None:
        self.coordinator = coordinator
        self.samples = samples
        self.total = 0
        self.position = 0
        self.nums: list[int] = []
        self.calls = 0
        self.hook: Hook | None = None

    def snapshot(self) -> Any:
        """Return the sum and the position."""
        return {"total": self.total, "position": self.position}

    def apply(self, snapshot: Any) -> None:
        """Set both."""
        self.total, self.position = snapshot["total"], snapshot["position"]

    def sync(self) -> None:
        """Take the state of rank 0."""
        sync_from_rank_0(self, self.coordinator)

    def should_save_checkpoint(self) -> bool:
        """Save after each step."""
        return True


class SyncFails(Samples):
    """Fails once, in its second sync."""

    syncs = 0

    def sync(self) -> None:
        """Fail, or take the state of rank 0."""
        self.syncs += 1
        if self.syncs == 2:
            raise RuntimeError("sync fails once")
        super().sync()


class NoRollback(Samples):
    """Has no snapshot, and saves itself."""

    def snapshot(self) -> Any:
        """Return nothing."""
        return None

    def save(self, stream: Any) -> None:
        """Write both numbers."""
        stream.write(b"%d %d" % (self.total, self.position))

    def load(self, stream: Any) -> None:
        """Read both numbers."""
        self.total, self.position = map(int, stream.read().split())


def step(state: Samples) -> None:
    """Take the sample of this rank, and add the samples of all; then a hook may disturb."""
    at = state.position + state.coordinator.rank
    if at >= len(state.samples):
        raise StopIteration
    state.total += int(state.coordinator.all_reduce(np.int64(state.samples[at])))
    state.position += state.coordinator.world_size
    state.nums.append(state.samples[at])
    state.calls += 1
    if state.hook is not None and state.calls >= 3:
        state.hook()


class Every(LocalCoordinator):
    """Wants all members to meet again after each step."""

    def should_rendezvous(self, state: object) -> bool:
        """Wait for the others, and say yes."""
        super().should_rendezvous(state)
        return True


class Job:
    """Four workers, which begin when all have registered."""

    def __init__(self, directory: Path, members: Members) -> None:
        self.directory = directory
        self.members = members
        self.number = 0
        self.codes: list[int] = []

    def run(
        self,
        *,
        hooks: dict[int, Callable[[Samples], Hook]] | None = None,
        count: int = 4,
        kind: Callable[[int], Callable[[LocalCoordinator], Samples]] = lambda number: Samples,
        coordinator: type[LocalCoordinator] = LocalCoordinator,
        checkpoints: bool = False,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Run a job to its end, and return what each worker that came to its end has to say."""
        self.number += 1
        place, name = self.directory / f"job{self.number}", f"{self.number}-"
        manager = FileSystemCheckpointManager(self.directory / "run") if checkpoints else None

        def work(number: int, note: Callable[[str], None]) -> None:
            with coordinator(place, min_members=min(2, count), max_members=4, straggler_seconds=600.0) as mine:
                mine._registry.join()
                wait_until((place / f"member-{count}").exists, seconds=300)
                state = kind(number)(mine)
                state.hook = (hooks or {}).get(number, lambda state: None)(state)
                try:
                    train(mine, step, state, checkpoint_manager=manager, **options)
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    note(json.dumps({"error": type(error).__name__, "text": str(error)}))
                else:
                    note(json.dumps({"rank": mine.rank, "nums": state.nums, "total": state.total}))

        pids = [
            self.members.start(f"{name}{number}", lambda note, number=number: work(number, note))  # type: ignore[misc]
            for number in range(count)
        ]
        self.codes = self.members.wait(*pids)
        lines = [self.members.lines(f"{name}{number}") for number in range(count)]
        return [json.loads(line[0]) for line in lines if line]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Members(tmp_path) as members:
        yield Job(tmp_path, members)


def raise_in_third(state: Samples) -> Hook:
    """Return a hook that fails in the third step only."""

    def hook() -> None:
        if state.calls == 3:
            raise RuntimeError("retryable")

    return hook


def test_normal_flow(job: Job) -> None:
    """Four workers see five samples each, in the order of their ranks; two see ten."""
    found = {each["rank"]: each for each in job.run()}
    assert [found[rank]["nums"] for rank in range(4)] == [list(range(11 + rank, 31, 4)) for rank in range(4)]
    assert [found[rank]["total"] for rank in range(4)] == [410] * 4
    found = {each["rank"]: each for each in job.run(count=2)}
    assert [found[rank]["nums"] for rank in range(2)] == [list(range(11 + rank, 31, 2)) for rank in range(2)]
    assert [found[rank]["total"] for rank in range(2)] == [410] * 2


def test_rerendezvous(job: Job) -> None:
    """A rendezvous after every step changes nothing."""
    found = job.run(coordinator=Every)
    assert [(len(each["nums"]), each["total"]) for each in found] == [(5, 410)] * 4


def test_data_that_cannot_be_divided(job: Job) -> None:
    """With 22 samples for four workers, two find no sixth: the run ends for all after five."""
    found = job.run(kind=lambda number: lambda coordinator: Samples(coordinator, range(11, 33)))
    assert [each["total"] for each in found] == [410] * 4


def test_retryable_exception(job: Job) -> None:
    """Two of four fail once: all see one sample more, which is rolled back."""
    found = job.run(hooks=dict.fromkeys([2, 3], raise_in_third))
    assert [(len(each["nums"]), each["total"]) for each in found] == [(6, 410)] * 4


def test_non_retryable_exception(job: Job) -> None:
    """Two of four end with their own error, and the other two do all the work that remains."""

    def fail(state: Samples) -> Hook:
        def hook() -> None:
            raise KeyError("non-retryable")

        return hook

    found = job.run(hooks=dict.fromkeys([2, 3], fail))
    assert sorted(each.get("error", "") for each in found) == ["", "", "KeyError", "KeyError"]
    assert [each["total"] for each in found if "total" in each] == [410, 410]


def test_max_retryable_failures(job: Job) -> None:
    """Two of four fail for ever, and end with their fifth failure; the others see five samples too many."""

    def fail(state: Samples) -> Hook:
        def hook() -> None:
            raise RuntimeError("always")

        return hook

    found = job.run(hooks=dict.fromkeys([2, 3], fail), max_rollbacks=4)
    assert [each["text"] for each in found if "text" in each] == ["5 recoverable errors, the last: always"] * 2
    assert [(len(each["nums"]), each["total"]) for each in found if "nums" in each] == [(13, 410)] * 2


def test_sync_retryable_exception(job: Job) -> None:
    """Two of four fail in a sync: all try again, and no sample is seen twice."""
    found = job.run(coordinator=Every, kind=lambda number: Samples if number < 2 else SyncFails)
    assert [(len(each["nums"]), each["total"]) for each in found] == [(5, 410)] * 4


@pytest.mark.parametrize("kind", [Samples, NoRollback])
def test_checkpoint(job: Job, kind: type[Samples]) -> None:
    """All are killed in their third step: two checkpoints are there, and a new job sees three samples each."""

    def die(state: Samples) -> Hook:
        return lambda: os.kill(os.getpid(), signal.SIGKILL)

    assert job.run(hooks=dict.fromkeys(range(4), die), checkpoints=True, kind=lambda number: kind) == []
    assert job.codes == [-signal.SIGKILL] * 4
    assert numbers(job.directory / "run") == [1, 2]
    found = job.run(checkpoints=True, kind=lambda number: kind)
    assert [(len(each["nums"]), each["total"]) for each in found] == [(3, 410)] * 4


def test_process_crash(job: Job) -> None:
    """Two of four are killed: the other two recover completely."""

    def die(state: Samples) -> Hook:
        return lambda: os.kill(os.getpid(), signal.SIGKILL)

    found = job.run(hooks=dict.fromkeys([0, 3], die))
    assert [each["total"] for each in found] == [410, 410]


def test_rollback_not_supported(job: Job) -> None:
    """Without snapshots, and with `trust_sync`, two of four that fail at the end of a step go on: five samples each."""
    found = job.run(hooks=dict.fromkeys([2, 3], raise_in_third), kind=lambda number: NoRollback, trust_sync=True)
    assert [(len(each["nums"]), each["total"]) for each in found] == [(5, 410)] * 4
