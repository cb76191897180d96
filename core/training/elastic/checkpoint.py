"""Checkpoints and their manager as interfaces, so that a job can keep its checkpoints wherever it likes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import BinaryIO, Final

DEFAULT_KEY: Final = "state"
"""The key under which `train` saves the state."""


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
