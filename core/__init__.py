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
    from edl_ckpt.core.catalog import list_versions, parse_ref, resolve
    from edl_ckpt.core.copying import CopyPlan, CopyResult, execute_copy, plan_copy
    from edl_ckpt.core.diff import DiffResult, diff_versions
    from edl_ckpt.core.errors import EdlCkptError
    from edl_ckpt.core.export import ExportResult, Selection, export_version
    from edl_ckpt.core.fingerprint import Fingerprint, fingerprint_checkpoint
    from edl_ckpt.core.importing import import_arrays
    from edl_ckpt.core.lookup import Lookup, look_up
    from edl_ckpt.core.model import CheckpointRef, Listing, ShardIndex, State, Version
    from edl_ckpt.core.placement import row_owners, variable_owner
    from edl_ckpt.core.prune import PrunePlan, execute_prune, make_plan, remove_own_shard
    from edl_ckpt.core.reader import Checkpoint, Part, Rows, open_checkpoint
    from edl_ckpt.core.recovery import Recovery, recover
    from edl_ckpt.core.reshard import ReshardPlan, ReshardResult, execute_reshard, plan_reshard
    from edl_ckpt.core.retention import Policy
    from edl_ckpt.core.stats import TensorStats, tensor_stats
    from edl_ckpt.core.summary import CheckpointSummary, summarize
    from edl_ckpt.core.verify import Finding, VerifyResult, seal_version, verify_version
    from edl_ckpt.core.writer import Table, save_checkpoint

_HOMES = {
    "catalog": ("list_versions", "parse_ref", "resolve"),
    "copying": ("CopyPlan", "CopyResult", "execute_copy", "plan_copy"),
    "diff": ("DiffResult", "diff_versions"),
    "errors": ("EdlCkptError",),
    "export": ("ExportResult", "Selection", "export_version"),
    "fingerprint": ("Fingerprint", "fingerprint_checkpoint"),
    "importing": ("import_arrays",),
    "lookup": ("Lookup", "look_up"),
    "model": ("CheckpointRef", "Listing", "ShardIndex", "State", "Version"),
    "placement": ("row_owners", "variable_owner"),
    "prune": ("PrunePlan", "execute_prune", "make_plan", "remove_own_shard"),
    "reader": ("Checkpoint", "Part", "Rows", "open_checkpoint"),
    "recovery": ("Recovery", "recover"),
    "reshard": ("ReshardPlan", "ReshardResult", "execute_reshard", "plan_reshard"),
    "retention": ("Policy",),
    "stats": ("TensorStats", "tensor_stats"),
    "summary": ("CheckpointSummary", "summarize"),
    "verify": ("Finding", "VerifyResult", "seal_version", "verify_version"),
    "writer": ("Table", "save_checkpoint"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - in the order of the rooms above
    "list_versions", "parse_ref", "resolve", "EdlCkptError", "Fingerprint", "fingerprint_checkpoint",
    "CheckpointRef", "Listing", "ShardIndex", "State", "Version", "row_owners", "variable_owner",
    "Checkpoint", "Part", "Rows", "open_checkpoint", "ReshardPlan", "ReshardResult", "execute_reshard",
    "plan_reshard", "TensorStats", "tensor_stats", "CheckpointSummary", "summarize", "Finding", "VerifyResult",
    "verify_version", "Table", "save_checkpoint", "DiffResult", "diff_versions", "ExportResult", "Selection",
    "export_version", "import_arrays", "Lookup", "look_up", "Policy", "PrunePlan", "make_plan",
    "execute_prune", "remove_own_shard", "CopyPlan", "CopyResult", "plan_copy", "execute_copy",
    "Recovery", "recover", "seal_version",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"edl_ckpt.core.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
