"""Rollback and checkpoints of elastic training in the sense of TorchElastic: a state, a manager, one training loop."""

from edl_ckpt.core.training.elastic.file_system import FileSystemCheckpoint, FileSystemCheckpointManager
from edl_ckpt.core.training.elastic.interface import (
    Coordinator,
    MembershipError,
    StopException,
    get_checkpoint_manager,
    set_checkpoint_manager,
    sync_from_rank_0,
)
from edl_ckpt.core.training.elastic.interface import ElasticCheckpoint as Checkpoint
from edl_ckpt.core.training.elastic.interface import ElasticCheckpointManager as CheckpointManager
from edl_ckpt.core.training.elastic.interface import ElasticState as State
from edl_ckpt.core.training.elastic.local import LocalCoordinator
from edl_ckpt.core.training.elastic.loop import TrainResult, train
from edl_ckpt.core.training.elastic.snapshots import read_snapshot, write_snapshot

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "Coordinator",
    "FileSystemCheckpoint",
    "FileSystemCheckpointManager",
    "LocalCoordinator",
    "MembershipError",
    "State",
    "StopException",
    "TrainResult",
    "get_checkpoint_manager",
    "read_snapshot",
    "set_checkpoint_manager",
    "sync_from_rank_0",
    "train",
    "write_snapshot",
]
