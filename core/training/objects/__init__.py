"""Objects of a program saved and restored by the names of their attributes, as `tf.train` does it."""

from edl_ckpt.core.training.objects.checkpoint import ObjectCheckpoint as ObjectCheckpoint
from edl_ckpt.core.training.objects.checkpoint import VersionRef as VersionRef
from edl_ckpt.core.training.objects.checkpoint import list_variables as list_variables
from edl_ckpt.core.training.objects.checkpoint import load_variable as load_variable
from edl_ckpt.core.training.objects.manager import CheckpointManager as CheckpointManager
from edl_ckpt.core.training.objects.restoration import LoadStatus as LoadStatus
from edl_ckpt.core.training.objects.restoration import UnrestoredWarning as UnrestoredWarning
from edl_ckpt.core.training.objects.tracking import EmbeddingTable as EmbeddingTable
from edl_ckpt.core.training.objects.tracking import Trackable as Trackable
from edl_ckpt.core.training.objects.variable import Variable as Variable
