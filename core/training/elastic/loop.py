"""The training loop: rollback, checkpoints and changes of membership around the train step of a user.

The outer loop begins a round: all members meet, rank 0 loads the latest checkpoint if it has not done so, and all sync.
The inner loop makes steps until a process wants to join or a member is lost. It is the loop of TorchElastic v0.1, with
these differences. A step counts when all members have finished it, so no member is ever a step ahead after a rollback.
Without a snapshot, an error in a step ends the job, because nothing says what is left of the state. Errors of loading
and saving are no errors of the step: they end the job too, and are never retried as such.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.training.elastic.interface import (
    Coordinator,
    ElasticCheckpointManager,
    ElasticState,
    MembershipError,
    StopException,
    get_checkpoint_manager,
)

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
