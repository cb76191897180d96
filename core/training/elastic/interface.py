"""What a job brings along or replaces: its coordinator, its state, and where its checkpoints are kept.

The coordinator says who belongs to the job now, which rank each member has, and when all must meet again. Its interface
is that of TorchElastic v0.1, without torch. `rendezvous_barrier` and `init_process_group` are one step here, and a
coordinator also carries the few messages that `State.sync` needs. Checkpoints and their manager are interfaces, so that
a job can keep its checkpoints wherever it likes.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
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

    Two rules that TorchElastic did not have. **Rank 0 is the member that has been there longest**, so whoever joins
    gets the state of the others, and never the reverse. **`should_rendezvous` is a barrier with one answer for all**,
    so a step counts only when every member has finished it.
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
