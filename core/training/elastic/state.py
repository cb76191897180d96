"""The state of a trainer: what is rolled back, what is saved, and what all members must agree on."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any, BinaryIO, Protocol

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.training.elastic.coordinator import Coordinator
from edl_ckpt.core.training.elastic.snapshots import read_snapshot, write_snapshot


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
