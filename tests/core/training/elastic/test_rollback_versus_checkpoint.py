"""TorchElastic's table "Rollback versus Checkpoint", line by line: one test for each, named by the line.

    | Item                     | Rollback                             | Checkpoint                           |
    |--------------------------|--------------------------------------|--------------------------------------|
    | Persistence              | in memory                            | store                                |
    | Failure Recovery         | non-process terminating exceptions   | total loss of all workers            |
    | Relevant `state` methods | `snapshot`, `apply`                  | `save`, `load`                       |
    | Applied/Loaded onto      | existing `state` object              | Initial `state` object               |
    | Enabled by               | providing non-trivial `snapshot`     | `set_checkpoint_manager` and return  |
    |                          | and `apply` implementations          | `should_save_checkpoint == True`     |
    | Performance expectation  | light weight                         | writing to store can take long       |
    | `snapshot`/`save`        | before each `train_step`             | before each `train_step` **if**      |
    |  called on               |                                      | `should_save_checkpoint` is `True`   |
    | `apply`/`load` called on | on `train_step` exception            | beginning of the *outer_loop*        |

Its source is torchelastic/checkpoint/README.md in pytorch/elastic. In one place it contradicts the code and the text
around it, which ask for a checkpoint after a step: so do we.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from edl_ckpt.core import EdlCkptError, list_versions
from edl_ckpt.core.training.elastic import (
    FileSystemCheckpointManager,
    LocalCoordinator,
    State,
    TrainResult,
    set_checkpoint_manager,
    train,
)
from members import Members


class Counter(State):
    """Counts steps, and writes down which of its methods are called."""

    def __init__(self, *, last: int = 4, save_at: tuple[int, ...] = (), rolls_back: bool = True) -> None:
        self.count = 0
        self.last = last
        self.save_at = save_at
        self.rolls_back = rolls_back
        self.calls: list[str] = []

    def snapshot(self) -> dict[str, int] | None:
        """Return what changes."""
        self.calls.append("snapshot")
        return {"count": self.count} if self.rolls_back else None

    def apply(self, snapshot: dict[str, int]) -> None:
        """Bring it back."""
        self.calls.append("apply")
        self.count = snapshot["count"]

    def sync(self) -> None:
        """Agree with the others."""
        self.calls.append("sync")

    def save(self, stream: BinaryIO) -> None:
        """Write it."""
        self.calls.append("save")
        stream.write(str(self.count).encode())

    def load(self, stream: BinaryIO) -> None:
        """Read it."""
        self.calls.append("load")
        self.count = int(stream.read())

    def should_save_checkpoint(self) -> bool:
        """Say whether a checkpoint is due."""
        return self.count in self.save_at


def step(state: Counter) -> None:
    """Count, or find no more data."""
    if state.count == state.last:
        raise StopIteration
    state.calls.append("step")
    state.count += 1


def failing_once(at: int, error: Exception) -> Callable[[Counter], None]:
    """Return a step that fails at one count, once, when it has changed the state already."""
    left = [error]

    def failing(state: Counter) -> None:
        step(state)
        if state.count == at and left:
            raise left.pop()

    return failing


class Second(LocalCoordinator):
    """A coordinator that says that this member has rank 1."""

    def rendezvous_barrier(self) -> None:
        """Meet nobody."""
        super().rendezvous_barrier()
        self.rank = 1

    def should_rendezvous(self, state: object) -> bool:
        """Return False: there is nobody to ask."""
        return False

    def barrier(self) -> None:
        """Wait for nobody."""


@pytest.fixture(autouse=True)
def no_manager() -> Iterator[None]:
    yield
    set_checkpoint_manager(None)


@pytest.fixture
def manager(tmp_path: Path) -> FileSystemCheckpointManager:
    made = FileSystemCheckpointManager(tmp_path / "run")
    set_checkpoint_manager(made)
    return made


def run(tmp_path: Path, state: State, train_step: Callable[[Counter], None] = step, name: str = "job") -> TrainResult:
    """Train as the only member of a job."""
    with LocalCoordinator(tmp_path / name) as coordinator:
        return train(coordinator, train_step, state)


def test_persistence(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """A rollback writes nothing to the store; a checkpoint is a version there, which a new process can read."""
    run(tmp_path, Counter(), failing_once(3, RuntimeError()))
    assert not (tmp_path / "run").exists()
    run(tmp_path, Counter(save_at=(2,)), name="other")
    assert [v.version for v in list_versions(tmp_path / "run").versions] == [1]
    with Members(tmp_path) as members:
        reader = members.start("reader", lambda note: note(str(manager.get_latest_checkpoint())))
        assert members.wait(reader) == [0]
        assert "committed" in members.lines("reader")[0]


def test_failure_recovery(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """A rollback repeats the failed step alone; after the loss of all workers, a job goes on from its last save."""
    done = run(tmp_path, Counter(), failing_once(3, RuntimeError("recoverable")))
    assert (done.steps, done.rollbacks, done.failures) == (4, 1, 1)
    lost = Counter(save_at=(2,))
    with pytest.raises(KeyError):
        run(tmp_path, lost, failing_once(4, KeyError("terminates the process")), name="lost")
    again = Counter()
    assert run(tmp_path, again, name="again").steps == 2
    assert (lost.count, again.count) == (4, 4)


def test_relevant_state_methods(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """A rollback calls `apply` alone; checkpoints call `save` and `load` alone."""
    state = Counter()
    run(tmp_path, state, failing_once(2, RuntimeError()))
    assert set(state.calls) == {"snapshot", "sync", "step", "apply"}
    saved, loaded = Counter(save_at=(2,), rolls_back=False), Counter(rolls_back=False)
    run(tmp_path, saved, name="saved")
    run(tmp_path, loaded, name="loaded")
    assert "save" in saved.calls
    assert "load" in loaded.calls
    assert "apply" not in saved.calls + loaded.calls


def test_applied_or_loaded_onto(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """A snapshot is applied to the very object that failed; a checkpoint is loaded onto a new, initial state."""
    state = Counter(save_at=(3,))
    done = run(tmp_path, state, failing_once(3, RuntimeError()))
    assert done.state is state
    assert state.calls.count("apply") == 1
    assert "load" not in state.calls
    new = Counter(last=3)
    new.should_save_checkpoint = lambda: False  # type: ignore[method-assign]
    assert run(tmp_path, new, name="new").state is new
    assert (new.count, new.calls[1]) == (3, "load")


def test_enabled_by(tmp_path: Path) -> None:
    """Without a snapshot an error of a step is final; without a manager or the state's wish, nothing is saved."""
    trivial = Counter(rolls_back=False)
    with pytest.raises(RuntimeError, match="final"):
        run(tmp_path, trivial, failing_once(3, RuntimeError("final")))
    assert "apply" not in trivial.calls
    unmanaged = Counter(save_at=(2,))
    run(tmp_path, unmanaged, name="unmanaged")
    assert "save" not in unmanaged.calls
    set_checkpoint_manager(FileSystemCheckpointManager(tmp_path / "run"))
    unwilling = Counter()
    assert run(tmp_path, unwilling, name="unwilling").checkpoints == 0
    assert not (tmp_path / "run").exists()
    assert run(tmp_path, Counter(save_at=(1, 3)), name="willing").checkpoints == 2


def test_performance_expectation(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """A snapshot costs the loop its own call and no more; the loop waits for a save until it is committed."""
    seen: list[int] = []

    def look(state: Counter) -> None:
        seen.append(len(list_versions(tmp_path / "run").versions) if state.count else 0)
        step(state)

    state = Counter(save_at=(1, 2, 3))
    run(tmp_path, state, look)
    assert seen == [0, 1, 2, 3, 3]
    assert state.calls.count("snapshot") == 1 + 5  # at the start of the round, and before each step and the end


def test_snapshot_or_save_called_on(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """A snapshot is taken before each step; a save follows a step if the state asks for it, on rank 0 only."""
    state = Counter(last=3, save_at=(2,))
    run(tmp_path, state)
    steps = ["snapshot", "step", "snapshot", "step", "save", "snapshot", "step", "snapshot"]
    assert state.calls == ["snapshot", "sync", *steps]
    other = Counter(last=3, save_at=(2,))
    with Second(tmp_path / "other") as coordinator:
        train(coordinator, step, other)
    assert "save" not in other.calls
    assert "load" not in other.calls


def test_apply_or_load_called_on(tmp_path: Path, manager: FileSystemCheckpointManager) -> None:
    """`apply` follows the exception, and then comes `sync`; `load` is first in the outer loop, and only once."""
    run(tmp_path, Counter(save_at=(2,)))
    state = Counter()
    done = run(tmp_path, state, failing_once(3, RuntimeError()), name="next")
    begin = ["snapshot", "load", "sync", "snapshot", "step", "apply"]
    assert state.calls == [*begin, "snapshot", "sync", "snapshot", "step", "snapshot", "step", "snapshot"]
    assert (done.rounds, done.rollbacks) == (2, 1)


def test_rollbacks_are_bounded(tmp_path: Path) -> None:
    """A step that fails for ever ends the job after `max_rollbacks` rollbacks, with its own error as the cause."""

    def broken(state: Counter) -> None:
        state.count += 1
        raise RuntimeError("always")

    state = Counter()
    with LocalCoordinator(tmp_path / "job") as coordinator, pytest.raises(EdlCkptError, match="always") as caught:
        train(coordinator, broken, state, max_rollbacks=3)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert state.calls.count("apply") == 3
