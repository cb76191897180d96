"""The training loop: rollback, checkpoints and changes of membership around the train step of a user.

The outer loop begins a round: all members meet, rank 0 loads the latest checkpoint if it has not done so, and all sync.
The inner loop makes steps until a process wants to join or a member is lost. It is the loop of TorchElastic v0.1, with
these differences. A step counts when all members have finished it, so no member is ever a step ahead after a rollback.
Without a snapshot, an error in a step ends the job, because nothing says what is left of the state. Errors of loading
and saving are no errors of the step: they end the job too, and are never retried as such.

What a job brings along or replaces: its coordinator, its state, and where its checkpoints are kept.

The coordinator says who belongs to the job now, which rank each member has, and when all must meet again. Its interface
is that of TorchElastic v0.1, without torch. `rendezvous_barrier` and `init_process_group` are one step here, and a
coordinator also carries the few messages that `State.sync` needs. Checkpoints and their manager are interfaces, so that
a job can keep its checkpoints wherever it likes.
"""

from __future__ import annotations

import io
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.training.elastic.snapshots import read_snapshot, write_snapshot

DEFAULT_KEY: Final = "state"
"""The key under which `train` saves the state."""


class StopException(Exception):  # noqa: N818 - TorchElastic's name
    """The run has ended: `train` returns, and nothing failed."""


class MembershipError(EdlCkptError, RuntimeError):
    """A member was lost, or left the round: the others roll back and meet again.

    It is a RuntimeError, as the errors of collective operations in PyTorch are.
    """


class Coordinator(Protocol):
    """What `train` asks of a coordinator; methods with a body may stay as they are.

    Two rules that TorchElastic did not have. **Rank 0 is the member that has been there longest**, so a member that
    joins gets the state of the others, and never the reverse. **`should_rendezvous` is a barrier with one answer for
    all**, so a step counts only when every member has finished it.
    """

    rank: int
    """The rank of this process in the present round."""
    world_size: int
    """The number of members of the present round."""

    @abstractmethod
    def rendezvous_barrier(self) -> None:
        """Leave the present round, wait for the members of the next one, and set `rank` and `world_size`.

        Raises StopException when the run has ended, MembershipError to be called again.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every member of the round is here; MembershipError when one is lost."""

    @abstractmethod
    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """Return the `data` of the member with rank `root` on every member; MembershipError when one is lost."""

    @abstractmethod
    def should_rendezvous(self, state: object) -> bool:
        """Wait until every member has finished the step; return True on all when they must meet again.

        That is so when a process waits to join. Raises MembershipError when a member is lost.
        """

    @abstractmethod
    def should_stop_training(self) -> bool:
        """Return True when the run has ended."""

    @abstractmethod
    def signal_training_done(self) -> None:
        """End the run for all members: this one has no more data."""

    def should_save_checkpoint(self) -> bool:
        """Return True when the platform wants a checkpoint now, for instance before it takes the machine away."""
        return False

    def monitor_progress(self, state: object, worker_stats: object) -> None:
        """Take the return value of `train_step`, after every step."""
        del state, worker_stats  # a method of a protocol with an empty body is abstract

    def report_progress(self, state: object) -> None:
        """Report that the job has made a step that counts."""
        del state  # a method of a protocol with an empty body is abstract

    def on_error(self, error: Exception) -> None:
        """Take an error of this member. The others must learn that it has left the round."""
        del error  # a method of a protocol with an empty body is abstract


class ElasticState(Protocol):
    """The state of one member. Its constructor makes the initial state, which every member can make by itself.

    `snapshot` and `apply` are one pair, `save` and `load` another. Each captures all that changes, so that it restores
    any state object, and not only the one that it came from: they set, they do not update. A class that inherits from
    this one must define `sync`; a class that does not must define all six.
    """

    @abstractmethod
    def sync(self) -> None:
        """Make the states of all members equal, usually to that of rank 0, and make this one ready to go on.

        All members call it together: at the start, when members come or go, and after a rollback. It may be called
        again when it was interrupted.
        """

    def snapshot(self) -> Any:
        """Return what `apply` needs to bring this moment back; None, the default, means that there is no rollback.

        Called before every step, so it should be light. Arrays that a step changes in place must be copied.
        """
        return None

    def apply(self, snapshot: Any) -> None:
        """Bring back the moment of a snapshot, in this object; `sync` follows. Never called with None."""
        raise NotImplementedError(f"{type(self).__name__} has a snapshot, and does not say how to apply it")

    def save(self, stream: BinaryIO) -> None:
        """Write this state to a stream; by default the snapshot, as `write_snapshot` does. Nothing is pickled."""
        snapshot = self.snapshot()
        if snapshot is None:
            raise UsageError(
                f"{type(self).__name__} has neither a snapshot nor a method to save it; nothing was saved",
                hint="define snapshot and apply, or save and load",
            )
        write_snapshot(stream, snapshot)

    def load(self, stream: BinaryIO) -> None:
        """Read what `save` wrote into this state; `sync` follows."""
        self.apply(read_snapshot(stream))

    def should_save_checkpoint(self) -> bool:
        """Return True when a checkpoint is due; asked after each step, on rank 0 only."""
        return False


def sync_from_rank_0(state: ElasticState, coordinator: Coordinator) -> None:
    """Give every member the state of rank 0: one way to write `State.sync`. The whole of it is in memory meanwhile."""
    if coordinator.world_size == 1:
        return
    stream = io.BytesIO()
    if coordinator.rank == 0:
        state.save(stream)
    data = coordinator.broadcast(stream.getvalue())
    if coordinator.rank != 0:
        state.load(io.BytesIO(data))


class ElasticCheckpoint(ABC):
    """One checkpoint: a stream of bytes for each key. It exists for readers from `commit` on, and not before."""

    @abstractmethod
    def open_output_stream(self, key: str = DEFAULT_KEY) -> BinaryIO:
        """Return a stream to write to; use it as a context manager. The same key again replaces what was written."""

    @abstractmethod
    def open_input_stream(self, key: str = DEFAULT_KEY) -> BinaryIO:
        """Return a stream that reads what was committed under a key; use it as a context manager."""

    @abstractmethod
    def commit(self) -> None:
        """Make the checkpoint visible, whole. A second call does nothing."""

    @abstractmethod
    def discard(self) -> None:
        """Drop a checkpoint that was not committed: nothing of it remains. A second call does nothing."""


class ElasticCheckpointManager(ABC):
    """Makes checkpoints and finds them again; `set_checkpoint_manager` takes any class that inherits from this one."""

    @abstractmethod
    def create_checkpoint(self) -> ElasticCheckpoint:
        """Return a new checkpoint, which is invisible until it is committed."""

    @abstractmethod
    def get_checkpoint(self, sequence_id: int) -> ElasticCheckpoint | None:
        """Return a committed checkpoint by its number, None when there is none."""

    @abstractmethod
    def get_latest_checkpoint(self) -> ElasticCheckpoint | None:
        """Return the newest committed checkpoint that can be read, None when there is none."""

    @abstractmethod
    def list_checkpoints(self) -> list[ElasticCheckpoint]:
        """Return all committed checkpoints, the newest first."""


_manager: ElasticCheckpointManager | None = None


def set_checkpoint_manager(manager: ElasticCheckpointManager | None) -> None:
    """Set the manager of this process: from now on `train` saves and loads checkpoints; None turns them off."""
    global _manager  # noqa: PLW0603 - TorchElastic's interface: one manager for each process
    _manager = manager


def get_checkpoint_manager() -> ElasticCheckpointManager | None:
    """Return the manager of this process, None when checkpoints are off."""
    return _manager


MAX_ROLLBACKS: Final = 100
"""As many failures as TorchElastic allows."""
RECOVERABLE: Final[tuple[type[Exception], ...]] = (RuntimeError,)
"""What TorchElastic recovers from; the errors of PyTorch's collective operations are of this class."""
_STATE_METHODS: Final = ("snapshot", "apply", "sync", "save", "load", "should_save_checkpoint")
_LOG: Final = logging.getLogger("edl_ckpt")
_READY: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
"""By id, the states that were loaded or synced in this process, and not in doubt since."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What `train` did; `state` is the object that it was given, or the last one that a step returned."""

    state: ElasticState
    steps: int
    """Steps that counted on this member."""
    rounds: int
    """How often the members met."""
    rollbacks: int
    """How often a snapshot was applied, because of an error here or of a lost member."""
    failures: int
    """Recoverable errors of this member's own steps: what `max_rollbacks` limits."""
    checkpoints: int
    """Checkpoints that this member saved."""


def train(
    coordinator: Coordinator,
    train_step: Callable[[Any], object],
    state: ElasticState,
    *,
    max_rollbacks: int = MAX_ROLLBACKS,
    recoverable: tuple[type[Exception], ...] = RECOVERABLE,
    max_failed_saves: int = 0,
    trust_sync: bool = False,
    checkpoint_manager: ElasticCheckpointManager | None = None,
) -> TrainResult:
    """Call `train_step(state)` until it raises StopIteration, the end of its data, or another member has ended the run.

    A step changes its state in place and returns stats of any kind, or None. Or it returns a pair, (state, stats), as
    in TorchElastic: from then on, that state takes the place of the other. Raises UsageError for a state that is
    returned in any other way, because it would be lost.

    A `recoverable` error rolls this member back, and it goes on with the others; NotImplementedError and RecursionError
    are mistakes in the program and never recoverable. After `max_rollbacks` of them the next is raised as EdlCkptError.
    Lost members are not counted, because the coordinator decides how few may go on. Every other error is raised, after
    `Coordinator.on_error` has it. Without a snapshot every error is raised, unless `trust_sync` says that `State.sync`
    makes good for half a step on any member, rank 0 included: TorchElastic relied on that.

    Checkpoints are those of `checkpoint_manager`, or else of `set_checkpoint_manager`. A save that fails is discarded,
    and its error is raised; `max_failed_saves` failures in a row are only warnings in the log `edl_ckpt`.
    """
    _check(state, "state", _STATE_METHODS)
    _check(coordinator, "coordinator", ("rendezvous_barrier", "barrier", "should_rendezvous", "signal_training_done"))
    if max_rollbacks < 0 or max_failed_saves < 0:
        raise UsageError("max_rollbacks and max_failed_saves must be at least 0")
    manager = get_checkpoint_manager() if checkpoint_manager is None else checkpoint_manager
    return _TrainingLoop(
        coordinator, train_step, state, manager, recoverable, max_rollbacks, max_failed_saves, trust_sync
    ).run()


def _check(value: object, what: str, names: tuple[str, ...]) -> None:
    absent = _absent(value, names)
    if absent:
        raise UsageError(f"the {what}, {type(value).__qualname__}, has no method {', '.join(absent)}")


def _absent(value: object, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not callable(getattr(value, name, None))]


def _parted(result: object) -> tuple[Any, object]:
    """Return the state that a step returned, None without one, and its stats; see `train`."""
    first = result[0] if isinstance(result, tuple | list) and result else result
    if isinstance(first, type) or _absent(first, _STATE_METHODS):
        return None, result
    if first is result or len(result) != 2:  # type: ignore[arg-type]
        how = "without stats" if first is result else f"among {len(result)} values"  # type: ignore[arg-type]
        raise UsageError(f"train_step returned a state {how} (expected (state, stats), stats or None)")
    return result  # type: ignore[return-value]


@dataclass(slots=True)
class _TrainingLoop:
    """One call of `train`: what that is given, and what it counts."""

    coordinator: Coordinator
    train_step: Callable[[Any], object]
    state: ElasticState
    manager: ElasticCheckpointManager | None
    recoverable: tuple[type[Exception], ...]
    max_rollbacks: int
    max_failed_saves: int
    trust_sync: bool
    is_ready: bool = False
    """True when the state was loaded or synced in this process, and is not in doubt since."""
    failed_saves: int = 0
    steps: int = 0
    rounds: int = 0
    rollbacks: int = 0
    failures: int = 0
    checkpoints: int = 0

    def run(self) -> TrainResult:
        """Run the outer loop; a state that an error leaves behind is in doubt."""
        self.is_ready = _READY.get(id(self.state)) is self.state
        try:
            while not self.coordinator.should_stop_training():
                if self._begin_round():
                    self._make_steps()
        except StopException:
            pass
        except BaseException as error:
            self._set_ready(ready=False)
            if isinstance(error, Exception):
                self.coordinator.on_error(error)
            raise
        return TrainResult(self.state, self.steps, self.rounds, self.rollbacks, self.failures, self.checkpoints)

    def _begin_round(self) -> bool:
        """Meet, load and sync; False when a member was lost on the way."""
        snapshot = self.state.snapshot()
        try:
            self.coordinator.rendezvous_barrier()
        except self.recoverable as error:
            self._note(error)
            return False
        self.rounds += 1
        if self.manager is not None and self.coordinator.rank == 0 and not self.is_ready:
            checkpoint = self.manager.get_latest_checkpoint()
            if checkpoint is not None:
                with checkpoint.open_input_stream() as stream:
                    self.state.load(stream)
        try:
            self.state.sync()
            self.coordinator.barrier()
        except self.recoverable as error:
            self._roll_back(error, snapshot)  # the state may be half of one member and half of another
            if snapshot is None and self.coordinator.rank != 0 and self.is_ready and not self.trust_sync:
                if self.manager is None:
                    raise
                self._set_ready(ready=False)  # should it be rank 0 next, it loads the latest checkpoint
            return False
        self._set_ready(ready=True)
        return True

    def _make_steps(self) -> None:
        """Run the inner loop until the members must meet again or the run has ended."""
        while not self.coordinator.should_stop_training():
            snapshot = self.state.snapshot()
            try:
                result = self.train_step(self.state)
            except StopIteration:
                self.coordinator.signal_training_done()
                return
            except self.recoverable as error:
                if snapshot is None and not self.trust_sync:
                    raise
                self._roll_back(error, snapshot)
                return
            new, worker_stats = _parted(result)
            if new is not None:
                self._set_ready(ready=False)
                self.state = new
                self._set_ready(ready=True)
            self.coordinator.monitor_progress(self.state, worker_stats)
            try:
                again = self.coordinator.should_rendezvous(self.state)
            except self.recoverable as error:
                self._roll_back(error, snapshot)  # without a snapshot, this state is whole, and the step counts here
                return
            self.steps += 1
            self._save_if_due()
            self.coordinator.report_progress(self.state)
            if again:
                return

    def _roll_back(self, error: Exception, snapshot: Any) -> None:
        """Make good for a step or a sync that was interrupted, if there is a snapshot."""
        self._note(error)
        if snapshot is not None:
            self.state.apply(snapshot)
            self.rollbacks += 1

    def _note(self, error: Exception) -> None:
        """Count an error and tell the coordinator; raise it when it is a mistake. Lost members do not count."""
        if isinstance(error, NotImplementedError | RecursionError):
            raise error
        if not isinstance(error, MembershipError):
            self.failures += 1
            if self.failures > self.max_rollbacks:
                raise EdlCkptError(f"{self.failures} recoverable errors, the last: {error}") from error
        self.coordinator.on_error(error)

    def _save_if_due(self) -> None:
        if self.manager is None or self.coordinator.rank != 0:
            return
        if not (self.coordinator.should_save_checkpoint() or self.state.should_save_checkpoint()):
            return
        try:
            checkpoint = self.manager.create_checkpoint()
            try:
                with checkpoint.open_output_stream() as stream:
                    self.state.save(stream)
                checkpoint.commit()
            except BaseException:
                checkpoint.discard()
                raise
        except Exception as error:
            self.failed_saves += 1
            if self.failed_saves > self.max_failed_saves:
                raise
            _LOG.warning("a checkpoint was not saved (%d in a row): %s", self.failed_saves, error)
        else:
            self.failed_saves = 0
            self.checkpoints += 1

    def _set_ready(self, *, ready: bool) -> None:
        self.is_ready = ready
        with suppress(TypeError):  # of a state that allows no weak reference; another call of `train` loads again
            if ready:
                _READY[id(self.state)] = self.state
            else:
                _READY.pop(id(self.state), None)
