"""Rollback and checkpoints of elastic training in the sense of TorchElastic: a state, a manager, one training loop."""

from edl_ckpt.core.training.elastic.file_system import FileSystemCheckpoint as FileSystemCheckpoint
from edl_ckpt.core.training.elastic.file_system import FileSystemCheckpointManager as FileSystemCheckpointManager
from edl_ckpt.core.training.elastic.local import LocalCoordinator as LocalCoordinator
from edl_ckpt.core.training.elastic.loop import Coordinator as Coordinator
from edl_ckpt.core.training.elastic.loop import ElasticCheckpoint, ElasticCheckpointManager, ElasticState
from edl_ckpt.core.training.elastic.loop import MembershipError as MembershipError
from edl_ckpt.core.training.elastic.loop import StopException as StopException
from edl_ckpt.core.training.elastic.loop import TrainResult as TrainResult
from edl_ckpt.core.training.elastic.loop import get_checkpoint_manager as get_checkpoint_manager
from edl_ckpt.core.training.elastic.loop import set_checkpoint_manager as set_checkpoint_manager
from edl_ckpt.core.training.elastic.loop import sync_from_rank_0 as sync_from_rank_0
from edl_ckpt.core.training.elastic.loop import train as train
from edl_ckpt.core.training.elastic.snapshots import read_snapshot as read_snapshot
from edl_ckpt.core.training.elastic.snapshots import write_snapshot as write_snapshot

Checkpoint = ElasticCheckpoint
CheckpointManager = ElasticCheckpointManager
State = ElasticState
