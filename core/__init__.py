"""The engine: reads, checks and reshards ElasticDL's parameter-server checkpoints; a library of its own.

Glossary. A *location* (checkpoint_dir) holds *versions*. A version holds one *shard* for each parameter server
(`ps_id` of `ps_num`). A shard holds *dense variables*, whole, and *rows* of *embedding tables*, each with its int64
*id*; a table's *info* is its dim and initializer. A *generation* (v0 to v4) is how a shard's bytes are arranged, a
*layout* how its file is named. A *fingerprint* names a content, however it is sharded.

The public names below are imported when they are first used, so that a listing costs no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl_ckpt.core.checkpoint.catalog import list_versions, parse_ref, resolve
    from edl_ckpt.core.checkpoint.fingerprint import Fingerprint, fingerprint_checkpoint
    from edl_ckpt.core.checkpoint.reader import Checkpoint, Part, Rows, open_checkpoint
    from edl_ckpt.core.checkpoint.target import Target, free_target
    from edl_ckpt.core.commit.recovery import Recovery, recover
    from edl_ckpt.core.errors import EdlCkptError
    from edl_ckpt.core.format.model import CheckpointRef, Listing, ShardIndex, State, Version
    from edl_ckpt.core.format.placement import row_owners, variable_owner
    from edl_ckpt.core.operations.copy import CopyPlan, CopyResult, execute_copy, plan_copy
    from edl_ckpt.core.operations.diff import DiffResult, diff_versions
    from edl_ckpt.core.operations.export import ExportResult, Selection, export_version
    from edl_ckpt.core.operations.importing import import_arrays
    from edl_ckpt.core.operations.lookup import Lookup, look_up
    from edl_ckpt.core.operations.prune.execute import execute_prune
    from edl_ckpt.core.operations.prune.own_shard import remove_own_shard
    from edl_ckpt.core.operations.prune.plan import PrunePlan, make_plan
    from edl_ckpt.core.operations.prune.retention import Policy
    from edl_ckpt.core.operations.reshard.execute import ReshardResult, execute_reshard
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan, plan_reshard
    from edl_ckpt.core.operations.reshard.prepare import prepare_reshard, reshard_version
    from edl_ckpt.core.operations.reshard.settings import ReshardSettings, settings_for
    from edl_ckpt.core.operations.reshard.survey import Survey, survey_ids
    from edl_ckpt.core.operations.save import Table, save_checkpoint
    from edl_ckpt.core.operations.stats import TensorStats, tensor_stats
    from edl_ckpt.core.operations.summary import CheckpointSummary, summarize
    from edl_ckpt.core.operations.undo import undo
    from edl_ckpt.core.operations.verify import seal_version, verify_version
    from edl_ckpt.core.operations.verify.findings import Finding, VerifyResult
    from edl_ckpt.core.progress import Reporter
    from edl_ckpt.core.storage.location import Location

_HOMES = {
    "checkpoint.catalog": ("list_versions", "parse_ref", "resolve"),
    "operations.copy": ("CopyPlan", "CopyResult", "execute_copy", "plan_copy"),
    "operations.diff": ("DiffResult", "diff_versions"),
    "errors": ("EdlCkptError",),
    "operations.export": ("ExportResult", "Selection", "export_version"),
    "checkpoint.fingerprint": ("Fingerprint", "fingerprint_checkpoint"),
    "operations.importing": ("import_arrays",),
    "operations.lookup": ("Lookup", "look_up"),
    "format.model": ("CheckpointRef", "Listing", "ShardIndex", "State", "Version"),
    "format.placement": ("row_owners", "variable_owner"),
    "operations.prune.plan": ("PrunePlan", "make_plan"),
    "operations.prune.execute": ("execute_prune",),
    "operations.prune.own_shard": ("remove_own_shard",),
    "checkpoint.reader": ("Checkpoint", "Part", "Rows", "open_checkpoint"),
    "checkpoint.target": ("Target", "free_target"),
    "commit.recovery": ("Recovery", "recover"),
    "operations.reshard.plan": ("ReshardPlan", "plan_reshard"),
    "operations.reshard.execute": ("ReshardResult", "execute_reshard"),
    "operations.reshard.prepare": ("prepare_reshard", "reshard_version"),
    "operations.reshard.settings": ("ReshardSettings", "settings_for"),
    "operations.reshard.survey": ("Survey", "survey_ids"),
    "operations.prune.retention": ("Policy",),
    "operations.stats": ("TensorStats", "tensor_stats"),
    "operations.summary": ("CheckpointSummary", "summarize"),
    "operations.verify.findings": ("Finding", "VerifyResult"),
    "operations.verify": ("seal_version", "verify_version"),
    "operations.save": ("Table", "save_checkpoint"),
    "operations.undo": ("undo",),
    "progress": ("Reporter",),
    "storage.location": ("Location",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - in the order of the rooms above
    "list_versions", "parse_ref", "resolve", "EdlCkptError", "Fingerprint", "fingerprint_checkpoint",
    "CheckpointRef", "Listing", "ShardIndex", "State", "Version", "row_owners", "variable_owner",
    "Checkpoint", "Part", "Rows", "open_checkpoint", "Target", "free_target", "Survey", "survey_ids",
    "ReshardPlan", "plan_reshard", "ReshardSettings", "settings_for", "ReshardResult", "execute_reshard",
    "prepare_reshard", "reshard_version", "TensorStats", "tensor_stats", "CheckpointSummary", "summarize",
    "Finding", "VerifyResult",
    "verify_version", "Table", "save_checkpoint", "DiffResult", "diff_versions", "ExportResult", "Selection",
    "export_version", "import_arrays", "Lookup", "look_up", "Policy", "PrunePlan", "make_plan",
    "execute_prune", "remove_own_shard", "CopyPlan", "CopyResult", "plan_copy", "execute_copy",
    "Recovery", "recover", "seal_version", "undo", "Reporter", "Location",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"edl_ckpt.core.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
