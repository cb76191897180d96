"""Objects of a program saved and restored by the names of their attributes, as `tf.train` does it."""

from edl_ckpt.core.training.objects.checkpoint import ObjectCheckpoint, VersionRef, list_variables, load_variable
from edl_ckpt.core.training.objects.manager import CheckpointManager
from edl_ckpt.core.training.objects.restoration import LoadStatus, UnrestoredWarning
from edl_ckpt.core.training.objects.tracking import Trackable
from edl_ckpt.core.training.objects.variables import EmbeddingTable, Variable

__all__ = [
    "CheckpointManager",
    "EmbeddingTable",
    "LoadStatus",
    "ObjectCheckpoint",
    "Trackable",
    "UnrestoredWarning",
    "Variable",
    "VersionRef",
    "list_variables",
    "load_variable",
]
