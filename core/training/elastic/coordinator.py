"""The coordinator: who belongs to the job now, which rank each member has, and when all must meet again.

The interface is that of TorchElastic v0.1, without torch. `rendezvous_barrier` and `init_process_group` are one step
here, and a coordinator also carries the few messages that `State.sync` needs.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from edl_ckpt.core.base.errors import EdlCkptError


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
