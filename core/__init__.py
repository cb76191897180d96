"""The engine: reads, checks, reshards and exports checkpoints with sharded tables; a library of its own.

Glossary. A *location* (checkpoint_dir) holds *versions*. A version has one *shard* for each parameter server
(`ps_id` of `ps_num`). A shard has *dense variables*, whole, and *rows* of *embedding tables*, each with its int64
*id*; a table's *info* is its dim and initializer. A *generation* (v0 to v4) is how a shard's bytes are arranged, a
*layout* how its file is named. A *fingerprint* names a content, however it is sharded.

Each public name is imported at its first use, so that a listing costs no numpy. A new name is written into `_HOMES`.
Type checkers read `__init__.pyi`, which `python tests/docs/manual.py --update` makes from it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import Any, Final

from edl_ckpt.core.base.version import VERSION

__version__: Final = VERSION

_HOMES: Final = {
    "base.arrays": "BFLOAT16 Array Ids as_array",
    "catalog.listing": "VersionLike list_versions parse_ref resolve split_version_dir",
    "catalog.experiment": "Experiment Trial list_experiment trial_locations Below glance_below",
    "catalog.begun": "listed_again versions_at",
    "proof.fingerprint": "Fingerprint",
    "proof.values": "fingerprint_checkpoint",
    "reading.loss": "Loss loss_of",
    "reading.newest": "latest",
    "reading.pages": "PageRows TablePages",
    "reading.reader": "Checkpoint open_checkpoint",
    "reading.restoring": "restore",
    "reading.table": "Part PartLike Rows TableView TensorRows",
    "state.lock": "LOCK_WAIT_SECONDS",
    "catalog.swaps": "GRACE_SECONDS",
    "operations.prune.undeletable": "undeletable",
    "state.shard_note": "mixed_runs",
    "catalog.target": "Target free_target",
    "commit.repair.recovery": "Recovery location_lock recover",
    "base.errors": (
        "AuthError CorruptError EdlCkptError EdlCkptWarning IncompleteError LockedError MismatchError "
        "NameNotFoundError NoSpaceError NotFoundError RefusedError ReplacedError UnavailableError UnsupportedError "
        "UsageError"
    ),
    "sources.elasticdl.initial_rows": "initial_rows",
    "model.tables": "ShardIndex DenseEntry TableEntry",
    "model.listings": "Listing",
    "model.versions": "CheckpointRef State Version",
    "model.systems": "System",
    "sources.systems": "systems kinds_of shards_of title_of",
    "sources.elasticdl.placement": "row_owners variable_owner",
    "operations.annotate": (
        "add_tag remove_metadata remove_metrics remove_tag set_metadata set_metrics set_modes set_note"
    ),
    "operations.metric_series": "import_metrics read_series",
    "converting.changes": "Changes LeftOut",
    "operations.convert": "convert_version strip_versions",
    "operations.copy.execute": "CopyResult execute_copy",
    "operations.copy.plan": "CopyPlan plan_copy",
    "operations.repair": "RepairResult repair_version",
    "operations.diff": "NamePairs diff_versions read_pairs",
    "operations.diff.results": "DiffResult HISTOGRAM_EDGES DenseDiff TableDiff",
    "operations.examine": "StorageReport examine_storage",
    "operations.usage": "LocationUsage measure_usage",
    "operations.export": "ExportResult Selection export_version",
    "operations.follow.observe": "Clock EventKind WatchEvent",
    "operations.follow.watch": "watch_location",
    "operations.follow.each": "checkpoints_iterator",
    "operations.follow.wait": "WaitResult wait_for_version",
    "operations.importing": "NameMap import_arrays import_checkpoint read_map",
    "operations.lookup.rows": "Lookup first_rows look_up sample_rows",
    "operations.lookup.slices": "slice_table slice_variable",
    "operations.statistics": "TensorStats tensor_stats",
    "operations.prune.execute": "PruneResult execute_prune prune",
    "operations.prune.own_shard": "remove_own_shard",
    "operations.prune.plan": "PruneEntry PrunePlan plan_prune read_policy store_policy",
    "operations.prune.retention": "Best EverySteps ExperimentBest Latest Policy Rule Tagged Within determined",
    "operations.prune.guards": "Guards",
    "operations.report.survey": "LocationReport ReportLimits report_location Drift OpenedVersion SampledTensor",
    "operations.report.page_file": "report_file",
    "operations.reshard.execute": (
        "ReshardPlan Survey execute_reshard plan_reshard prepare_reshard reshard_version survey_ids"
    ),
    "operations.reshard.found": "find_resharded",
    "moving.settings": "ReshardSettings settings_for",
    "moving.result": "WriteResult",
    "operations.save": "Table save_checkpoint",
    "operations.summary": "CheckpointSummary summarize TableSummary VariableSummary",
    "operations.undo": "undo",
    "operations.unlock": "unlock",
    "operations.verify.check": "VerifyRun seal_version verify_and_seal verify_version verify_versions",
    "operations.verify.findings": "Finding ValueSample VerifyResult",
    "base.progress": "SILENT Progress Reporter",
    "sources.determined.storages": "CheckpointStorage",
    "storage.faults": "error_of_system",
    "storage.location": "Location LocationLike",
    "training.objects.checkpoint": "ObjectCheckpoint list_variables load_variable",
    "training.content": "ServerPart TableBatches partition",
    "training.background": "PendingSave SavedShard",
    "training.saver": "CheckpointSaver",
}
"""The public names of each module below `edl_ckpt.core` that defines any."""
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names.split()}

_CHECKED: Final[dict[FunctionType, Callable[..., Any]]] = {}
"""The public functions, which look at the types of their arguments."""

_NAMES: Final = sorted([*_HOME_OF, "__version__"])
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"edl_ckpt.core.{_HOME_OF[name]}"), name)
    if not isinstance(found, FunctionType):
        return found
    if found not in _CHECKED:
        _CHECKED[found] = import_module("edl_ckpt.core.base.arguments").checked(found, __name__)
    return _CHECKED[found]


def __dir__() -> list[str]:
    return list(__all__)
