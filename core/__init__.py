"""The engine: reads, checks and reshards ElasticDL's parameter-server checkpoints; a library of its own.

Glossary. A *location* (checkpoint_dir) holds *versions*. A version has one *shard* for each parameter server
(`ps_id` of `ps_num`). A shard has *dense variables*, whole, and *rows* of *embedding tables*, each with its int64
*id*; a table's *info* is its dim and initializer. A *generation* (v0 to v4) is how a shard's bytes are arranged, a
*layout* how its file is named. A *fingerprint* names a content, however it is sharded.

Each public name is imported at its first use, so that a listing costs no numpy. A new name has three lines here; a
test compares them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from edl_ckpt.core.arrays import BFLOAT16, Array, Ids, as_array
    from edl_ckpt.core.checkpoint.catalog import VersionLike, list_versions, parse_ref, resolve
    from edl_ckpt.core.checkpoint.experiment import Experiment, Trial, list_experiment, trial_locations
    from edl_ckpt.core.checkpoint.fingerprint import Fingerprint, fingerprint_checkpoint
    from edl_ckpt.core.checkpoint.parts import Part, PartLike, Rows
    from edl_ckpt.core.checkpoint.readable import latest
    from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
    from edl_ckpt.core.checkpoint.restoring import restore
    from edl_ckpt.core.checkpoint.runs import mixed_runs
    from edl_ckpt.core.checkpoint.table import TableView, TensorRows
    from edl_ckpt.core.checkpoint.target import Target, free_target
    from edl_ckpt.core.commit.recovery import Recovery, location_lock, recover
    from edl_ckpt.core.errors import (
        AuthError,
        CorruptError,
        EdlCkptError,
        IncompleteError,
        LockedError,
        MismatchError,
        NameNotFoundError,
        NoSpaceError,
        NotFoundError,
        RefusedError,
        ReplacedError,
        UnavailableError,
        UnsupportedError,
        UsageError,
    )
    from edl_ckpt.core.format.initial_rows import initial_rows
    from edl_ckpt.core.format.model import CheckpointRef, Listing, ShardIndex, State, Version
    from edl_ckpt.core.format.placement import row_owners, variable_owner
    from edl_ckpt.core.operations.annotate import (
        add_tag,
        remove_metadata,
        remove_metrics,
        remove_tag,
        set_metadata,
        set_metrics,
        set_modes,
        set_note,
    )
    from edl_ckpt.core.operations.copy.execute import CopyResult, execute_copy
    from edl_ckpt.core.operations.copy.plan import CopyPlan, plan_copy
    from edl_ckpt.core.operations.diff import DiffResult, diff_versions
    from edl_ckpt.core.operations.examine import StorageReport, examine_storage
    from edl_ckpt.core.operations.export import ExportResult, Selection, export_version
    from edl_ckpt.core.operations.follow.changes import EventKind, WatchEvent
    from edl_ckpt.core.operations.follow.iterate import checkpoints_iterator
    from edl_ckpt.core.operations.follow.pace import Clock
    from edl_ckpt.core.operations.follow.wait import WaitResult, wait_for_version
    from edl_ckpt.core.operations.follow.watch import watch_location
    from edl_ckpt.core.operations.importing import ImportResult, NameMap, import_arrays, import_checkpoint, read_map
    from edl_ckpt.core.operations.lookup import Lookup, first_rows, look_up, sample_rows, slice_table, slice_variable
    from edl_ckpt.core.operations.metric_sources import import_metrics, read_series
    from edl_ckpt.core.operations.prune.execute import PruneResult, execute_prune, prune
    from edl_ckpt.core.operations.prune.guards import Guards
    from edl_ckpt.core.operations.prune.own_shard import remove_own_shard
    from edl_ckpt.core.operations.prune.plan import PruneEntry, PrunePlan, plan_prune
    from edl_ckpt.core.operations.prune.retention import (
        Best,
        EverySteps,
        ExperimentBest,
        Latest,
        Policy,
        Rule,
        Tagged,
        Within,
        determined,
    )
    from edl_ckpt.core.operations.prune.stored_policy import read_policy, store_policy
    from edl_ckpt.core.operations.report.results import LocationReport, ReportLimits
    from edl_ckpt.core.operations.report.survey import report_location
    from edl_ckpt.core.operations.reshard.execute import ReshardResult, execute_reshard
    from edl_ckpt.core.operations.reshard.needed import find_resharded
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan, plan_reshard
    from edl_ckpt.core.operations.reshard.prepare import prepare_reshard, reshard_version
    from edl_ckpt.core.operations.reshard.settings import ReshardSettings, settings_for
    from edl_ckpt.core.operations.reshard.survey import Survey, survey_ids
    from edl_ckpt.core.operations.save import Table, save_checkpoint
    from edl_ckpt.core.operations.stats import TensorStats, tensor_stats
    from edl_ckpt.core.operations.summary import CheckpointSummary, summarize
    from edl_ckpt.core.operations.undo import undo
    from edl_ckpt.core.operations.unlock import unlock
    from edl_ckpt.core.operations.usage import LocationUsage, measure_usage
    from edl_ckpt.core.operations.verify.check import verify_version
    from edl_ckpt.core.operations.verify.findings import Finding, VerifyResult
    from edl_ckpt.core.operations.verify.seals import seal_version
    from edl_ckpt.core.operations.verify.versions import VerifyRun, verify_and_seal, verify_versions
    from edl_ckpt.core.progress import Progress, Reporter
    from edl_ckpt.core.storage.determined import CheckpointStorage
    from edl_ckpt.core.storage.location import Location, LocationLike
    from edl_ckpt.core.training.content import TableBatches
    from edl_ckpt.core.training.objects.checkpoint import ObjectCheckpoint, list_variables, load_variable
    from edl_ckpt.core.training.partition import ServerPart, partition
    from edl_ckpt.core.training.saver import CheckpointSaver, PendingSave, SavedShard

__version__: Final = "0.1.0"

_HOMES: Final = {
    "arrays": ("BFLOAT16", "Array", "Ids", "as_array"),
    "checkpoint.catalog": ("VersionLike", "list_versions", "parse_ref", "resolve"),
    "checkpoint.experiment": ("Experiment", "Trial", "list_experiment", "trial_locations"),
    "checkpoint.fingerprint": ("Fingerprint", "fingerprint_checkpoint"),
    "checkpoint.parts": ("Part", "PartLike", "Rows"),
    "checkpoint.readable": ("latest",),
    "checkpoint.reader": ("Checkpoint", "open_checkpoint"),
    "checkpoint.table": ("TableView", "TensorRows"),
    "checkpoint.restoring": ("restore",),
    "checkpoint.runs": ("mixed_runs",),
    "checkpoint.target": ("Target", "free_target"),
    "commit.recovery": ("Recovery", "location_lock", "recover"),
    "errors": (
        "AuthError",
        "CorruptError",
        "EdlCkptError",
        "IncompleteError",
        "LockedError",
        "MismatchError",
        "NameNotFoundError",
        "NoSpaceError",
        "NotFoundError",
        "RefusedError",
        "ReplacedError",
        "UnavailableError",
        "UnsupportedError",
        "UsageError",
    ),
    "format.initial_rows": ("initial_rows",),
    "format.model": ("CheckpointRef", "Listing", "ShardIndex", "State", "Version"),
    "format.placement": ("row_owners", "variable_owner"),
    "operations.annotate": (
        "add_tag",
        "remove_metadata",
        "remove_metrics",
        "remove_tag",
        "set_metadata",
        "set_metrics",
        "set_modes",
        "set_note",
    ),
    "operations.copy.execute": ("CopyResult", "execute_copy"),
    "operations.copy.plan": ("CopyPlan", "plan_copy"),
    "operations.diff": ("DiffResult", "diff_versions"),
    "operations.examine": ("StorageReport", "examine_storage"),
    "operations.export": ("ExportResult", "Selection", "export_version"),
    "operations.follow.changes": ("EventKind", "WatchEvent"),
    "operations.follow.iterate": ("checkpoints_iterator",),
    "operations.follow.pace": ("Clock",),
    "operations.follow.wait": ("WaitResult", "wait_for_version"),
    "operations.follow.watch": ("watch_location",),
    "operations.importing": ("ImportResult", "NameMap", "import_arrays", "import_checkpoint", "read_map"),
    "operations.lookup": ("Lookup", "first_rows", "look_up", "sample_rows", "slice_table", "slice_variable"),
    "operations.metric_sources": ("import_metrics", "read_series"),
    "operations.prune.execute": ("PruneResult", "execute_prune", "prune"),
    "operations.prune.guards": ("Guards",),
    "operations.prune.own_shard": ("remove_own_shard",),
    "operations.prune.plan": ("PruneEntry", "PrunePlan", "plan_prune"),
    "operations.prune.retention": (
        "Best",
        "EverySteps",
        "ExperimentBest",
        "Latest",
        "Policy",
        "Rule",
        "Tagged",
        "Within",
        "determined",
    ),
    "operations.prune.stored_policy": ("read_policy", "store_policy"),
    "operations.report.results": ("LocationReport", "ReportLimits"),
    "operations.report.survey": ("report_location",),
    "operations.reshard.execute": ("ReshardResult", "execute_reshard"),
    "operations.reshard.plan": ("ReshardPlan", "plan_reshard"),
    "operations.reshard.needed": ("find_resharded",),
    "operations.reshard.prepare": ("prepare_reshard", "reshard_version"),
    "operations.reshard.settings": ("ReshardSettings", "settings_for"),
    "operations.reshard.survey": ("Survey", "survey_ids"),
    "operations.save": ("Table", "save_checkpoint"),
    "operations.stats": ("TensorStats", "tensor_stats"),
    "operations.summary": ("CheckpointSummary", "summarize"),
    "operations.undo": ("undo",),
    "operations.unlock": ("unlock",),
    "operations.usage": ("LocationUsage", "measure_usage"),
    "operations.verify.check": ("verify_version",),
    "operations.verify.findings": ("Finding", "VerifyResult"),
    "operations.verify.seals": ("seal_version",),
    "operations.verify.versions": ("VerifyRun", "verify_and_seal", "verify_versions"),
    "progress": ("Progress", "Reporter"),
    "storage.determined": ("CheckpointStorage",),
    "storage.location": ("Location", "LocationLike"),
    "training.objects.checkpoint": ("ObjectCheckpoint", "list_variables", "load_variable"),
    "training.content": ("TableBatches",),
    "training.partition": ("ServerPart", "partition"),
    "training.saver": ("CheckpointSaver", "PendingSave", "SavedShard"),
}
"""Every public name, by the module below `edl_ckpt.core` that defines it."""
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BFLOAT16",
    "Array",
    "AuthError",
    "Best",
    "Checkpoint",
    "CheckpointRef",
    "CheckpointSaver",
    "CheckpointStorage",
    "CheckpointSummary",
    "Clock",
    "CopyPlan",
    "CopyResult",
    "CorruptError",
    "DiffResult",
    "EdlCkptError",
    "EventKind",
    "EverySteps",
    "Experiment",
    "ExperimentBest",
    "ExportResult",
    "Finding",
    "Fingerprint",
    "Guards",
    "Ids",
    "ImportResult",
    "IncompleteError",
    "Latest",
    "Listing",
    "Location",
    "LocationLike",
    "LocationReport",
    "LocationUsage",
    "LockedError",
    "Lookup",
    "MismatchError",
    "NameMap",
    "NameNotFoundError",
    "NoSpaceError",
    "NotFoundError",
    "ObjectCheckpoint",
    "Part",
    "PartLike",
    "PendingSave",
    "Policy",
    "Progress",
    "PruneEntry",
    "PrunePlan",
    "PruneResult",
    "Recovery",
    "RefusedError",
    "ReplacedError",
    "ReportLimits",
    "Reporter",
    "ReshardPlan",
    "ReshardResult",
    "ReshardSettings",
    "Rows",
    "Rule",
    "SavedShard",
    "Selection",
    "ServerPart",
    "ShardIndex",
    "State",
    "StorageReport",
    "Survey",
    "Table",
    "TableBatches",
    "TableView",
    "Tagged",
    "Target",
    "TensorRows",
    "TensorStats",
    "Trial",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "VerifyResult",
    "VerifyRun",
    "Version",
    "VersionLike",
    "WaitResult",
    "WatchEvent",
    "Within",
    "__version__",
    "add_tag",
    "as_array",
    "checkpoints_iterator",
    "determined",
    "diff_versions",
    "examine_storage",
    "execute_copy",
    "execute_prune",
    "execute_reshard",
    "export_version",
    "find_resharded",
    "fingerprint_checkpoint",
    "first_rows",
    "free_target",
    "import_arrays",
    "import_checkpoint",
    "import_metrics",
    "initial_rows",
    "latest",
    "list_experiment",
    "list_variables",
    "list_versions",
    "load_variable",
    "location_lock",
    "look_up",
    "measure_usage",
    "mixed_runs",
    "open_checkpoint",
    "parse_ref",
    "partition",
    "plan_copy",
    "plan_prune",
    "plan_reshard",
    "prepare_reshard",
    "prune",
    "read_map",
    "read_policy",
    "read_series",
    "recover",
    "remove_metadata",
    "remove_metrics",
    "remove_own_shard",
    "remove_tag",
    "report_location",
    "reshard_version",
    "resolve",
    "restore",
    "row_owners",
    "sample_rows",
    "save_checkpoint",
    "seal_version",
    "set_metadata",
    "set_metrics",
    "set_modes",
    "set_note",
    "settings_for",
    "slice_table",
    "slice_variable",
    "store_policy",
    "summarize",
    "survey_ids",
    "tensor_stats",
    "trial_locations",
    "undo",
    "unlock",
    "variable_owner",
    "verify_and_seal",
    "verify_version",
    "verify_versions",
    "wait_for_version",
    "watch_location",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"edl_ckpt.core.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
