"""What `train` does with errors of saving and loading, with managers of others, and with a state that it knows."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from checkpoints import numbers
from edl_ckpt.core.base.errors import NoSpaceError, UsageError
from edl_ckpt.core.training.elastic import (
    Checkpoint,
    CheckpointManager,
    FileSystemCheckpointManager,
    LocalCoordinator,
    State,
    TrainResult,
    train,
)


class Numbers(State):
    """Counts; a snapshot is all that it defines beside `sync`."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 4
        self.synced = 0

    def snapshot(self) -> dict[str, int]:
        """Return the count."""
        return {"count": self.count}

    def apply(self, snapshot: dict[str, int]) -> None:
        """Set the count."""
        self.count = snapshot["count"]

    def sync(self) -> None:
        """Count these calls."""
        self.synced += 1

    def should_save_checkpoint(self) -> bool:
        """Say that each step is worth a checkpoint."""
        return True


class Memory(CheckpointManager, Checkpoint):
    """A manager of somebody else: one checkpoint in memory, which can fail; it notes what is called."""

    def __init__(self, *failures: Exception) -> None:
        self.content = b""
        self.calls: list[str] = []
        self.failures = list(failures)
        self.stream = io.BytesIO()

    def create_checkpoint(self) -> Checkpoint:
        """Begin anew."""
        self.calls.append("create")
        return self

    def get_checkpoint(self, sequence_id: int) -> Checkpoint | None:
        """Return nothing: there are no numbers here."""
        return None

    def get_latest_checkpoint(self) -> Checkpoint | None:
        """Return itself."""
        return self if self.content else None

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return itself."""
        return [self]

    def open_output_stream(self, key: str = "") -> BinaryIO:
        """Return a stream that stays readable."""
        self.stream = io.BytesIO()
        self.stream.close = lambda: None  # type: ignore[method-assign]
        return self.stream

    def open_input_stream(self, key: str = "") -> BinaryIO:
        """Return the content."""
        return io.BytesIO(self.content)

    def commit(self) -> None:
        """Keep the content, or fail."""
        self.calls.append("commit")
        if self.failures:
            raise self.failures.pop(0)
        self.content = self.stream.getvalue()

    def discard(self) -> None:
        """Note it."""
        self.calls.append("discard")


def step(state: Numbers) -> None:
    """Count to the last."""
    if state.count >= state.last:
        raise StopIteration
    state.count += 1


def returning(result: object) -> Callable[[Numbers], object]:
    """Return a step that counts and returns something."""

    def counted(state: Numbers) -> object:
        step(state)
        return result

    return counted


def run(tmp_path: Path, state: State, name: str = "job", train_step: Any = step, **options: Any) -> TrainResult:
    """Train as the only member of a job."""
    with LocalCoordinator(tmp_path / name) as coordinator:
        return train(coordinator, train_step, state, **options)


def test_anybody_can_write_a_manager(tmp_path: Path) -> None:
    """`train` needs nothing but the abstract methods, and saves by the snapshot alone."""
    manager = Memory()
    assert run(tmp_path, Numbers(), checkpoint_manager=manager).checkpoints == 4
    assert manager.calls == ["create", "commit"] * 4
    again = Numbers()
    again.last = 6
    assert run(tmp_path, again, "again", checkpoint_manager=manager).steps == 2


def test_a_save_that_fails_is_discarded_and_raised(tmp_path: Path) -> None:
    """TorchElastic discarded only what it had not created. The error is raised, and it is no error of the step."""
    for error in (NoSpaceError("full"), RuntimeError("recoverable in a step")):
        manager, state = Memory(error), Numbers()
        with pytest.raises(type(error), match=str(error)):
            run(tmp_path, state, type(error).__name__, checkpoint_manager=manager)
        assert manager.calls == ["create", "commit", "discard"]
        assert state.count == 1


def test_saves_may_fail_some_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Up to max_failed_saves in a row are warnings; a save that succeeds begins the count anew."""
    full = NoSpaceError("full")
    with caplog.at_level(logging.WARNING, "edl_ckpt"):
        assert run(tmp_path, Numbers(), checkpoint_manager=Memory(full), max_failed_saves=1).checkpoints == 3
    assert "a checkpoint was not saved (1 in a row): full" in caplog.text
    with pytest.raises(NoSpaceError):
        run(tmp_path, Numbers(), "other", checkpoint_manager=Memory(full, full), max_failed_saves=1)


def test_an_error_of_loading_is_raised(tmp_path: Path) -> None:
    """A checkpoint that the state cannot load ends the job at once, also by an error that a step could recover from."""

    class Picky(Numbers):
        def load(self, stream: BinaryIO) -> None:
            """Refuse."""
            raise RuntimeError("another architecture")

    manager = Memory()
    manager.content = b"x"
    with pytest.raises(RuntimeError, match="another architecture"):
        run(tmp_path, Picky(), checkpoint_manager=manager)


def test_a_state_is_loaded_once_in_a_process(tmp_path: Path) -> None:
    """A second `train` with the same state goes on from it; after an error, the state is in doubt, and is loaded."""
    state, manager = Numbers(), Memory()
    run(tmp_path, state, checkpoint_manager=manager)
    manager.content = b"not to be loaded"
    state.last = 6
    run(tmp_path, state, "second", checkpoint_manager=manager)
    assert state.count == 6

    def broken(state: Numbers) -> None:
        state.count = -1
        raise KeyError

    with pytest.raises(KeyError):
        run(tmp_path, state, "third", broken, checkpoint_manager=manager)
    state.last = 7
    assert (run(tmp_path, state, "fourth", checkpoint_manager=manager).steps, state.count) == (1, 7)


def test_a_save_without_anything_to_save_is_an_error(tmp_path: Path) -> None:
    """A state that has neither a snapshot nor `save` would save nothing, and load nothing: that is an error."""

    class Empty(Numbers):
        def snapshot(self) -> Any:
            """Return nothing."""
            return None

    manager = FileSystemCheckpointManager(tmp_path / "run")
    with pytest.raises(UsageError, match="Empty has neither a snapshot nor a method to save it"):
        run(tmp_path, Empty(), checkpoint_manager=manager)
    assert not (tmp_path / "run").exists()


def test_mistakes_in_a_program_are_not_repeated(tmp_path: Path) -> None:
    """NotImplementedError and RecursionError are RuntimeErrors, and are raised at once."""

    def unfinished(state: Numbers) -> None:
        state.synced += 100
        raise NotImplementedError

    state = Numbers()
    with pytest.raises(NotImplementedError):
        run(tmp_path, state, train_step=unfinished)
    assert state.synced == 101


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    """A state need not inherit from State; what lacks methods is an error that names them, before anybody waits."""
    with LocalCoordinator(tmp_path / "job") as coordinator:
        with pytest.raises(UsageError, match="the state, dict, has no method snapshot, apply, sync, save, load"):
            train(coordinator, step, {})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the coordinator, Numbers, has no method rendezvous_barrier, barrier"):
            train(Numbers(), step, Numbers())  # type: ignore[arg-type]


def test_a_step_may_return_a_new_state(tmp_path: Path) -> None:
    """`state, stats = train_step(state)`: the next step, a rollback, a checkpoint and the result have that state."""
    seen: list[object] = []

    class Watched(LocalCoordinator):
        def monitor_progress(self, state: object, worker_stats: object) -> None:
            """Note what came."""
            seen.append((state, worker_stats))

    def renew(state: Numbers) -> Any:
        if state.count == 2 and len(seen) == 2:
            seen.append("failed")
            state.count = -1
            raise RuntimeError("once")
        step(state)
        new = Numbers()
        new.count = state.count
        return new, {"count": new.count}

    first, manager = Numbers(), Memory()
    with Watched(tmp_path / "job") as coordinator:
        done = train(coordinator, renew, first, checkpoint_manager=manager)
    assert isinstance(done.state, Numbers)
    assert (done.steps, done.rollbacks, done.state.count, first.count) == (4, 1, 4, 1)
    assert (done.state is first, done.state.synced, first.synced) == (False, 0, 1)
    assert [each if isinstance(each, str) else each[1]["count"] for each in seen] == [1, 2, "failed", 3, 4]  # type: ignore[index]
    assert seen[-1][0] is done.state  # type: ignore[index]
    loaded = Numbers()
    loaded.load(io.BytesIO(manager.content))
    assert loaded.count == 4
    manager.content = b"not to be loaded"  # the new state is as ready as the one that it came from
    done.state.last = 5
    assert run(tmp_path, done.state, "again", checkpoint_manager=manager).steps == 1


@pytest.mark.parametrize("stats", [None, 0.5, {"loss": 0.5}, (0.5, 0.9), (None, Numbers()), [], ()])
def test_stats_alone_are_no_state(tmp_path: Path, stats: object) -> None:
    """A step that changes its state in place may return stats of any kind, also a pair of numbers."""
    seen: list[object] = []

    class Watched(LocalCoordinator):
        def monitor_progress(self, state: object, worker_stats: object) -> None:
            """Note the stats."""
            seen.append(worker_stats)

    state = Numbers()
    with Watched(tmp_path / "job") as coordinator:
        done = train(coordinator, returning(stats), state)
    assert (done.state is state, state.count, seen) == (True, 4, [stats] * 4)


@pytest.mark.parametrize("wrong", [Numbers(), (Numbers(),), (Numbers(), 1, 2), [Numbers(), 1, 2]])
def test_a_state_that_is_no_pair_is_refused(tmp_path: Path, wrong: object) -> None:
    """A state that would be dropped is an error at once, whatever is recoverable, and names the two ways."""
    with pytest.raises(UsageError, match=r"train_step returned .*expected \(state, stats\), stats or None"):
        run(tmp_path, Numbers(), train_step=returning(wrong), recoverable=(ValueError,))


def test_the_platform_can_ask_for_a_checkpoint(tmp_path: Path) -> None:
    """`Coordinator.should_save_checkpoint` has the same effect as the state's own."""

    class Preempted(LocalCoordinator):
        def should_save_checkpoint(self) -> bool:
            """Say yes."""
            return True

    class Modest(Numbers):
        def should_save_checkpoint(self) -> bool:
            """Say no."""
            return False

    manager = FileSystemCheckpointManager(tmp_path / "run", keep_checkpoint_max=2)
    with Preempted(tmp_path / "job") as coordinator:
        assert train(coordinator, step, Modest(), checkpoint_manager=manager).checkpoints == 4
    assert numbers(tmp_path / "run") == [3, 4]
