"""The engine: reads, checks and reshards ElasticDL's parameter-server checkpoints; a library of its own.

Glossary. A *location* (checkpoint_dir) holds *versions*. A version has one *shard* for each parameter server
(`ps_id` of `ps_num`). A shard has *dense variables*, whole, and *rows* of *embedding tables*, each with its int64
*id*; a table's *info* is its dim and initializer. A *generation* (v0 to v4) is how a shard's bytes are arranged, a
*layout* how its file is named. A *fingerprint* names a content, however it is sharded.

Each public name is imported at its first use, so that a listing costs no numpy. A new name stands twice here: for
type checkers, and in `_HOMES`. A test compares them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from edl_ckpt.core.arrays import BFLOAT16 as BFLOAT16
    from edl_ckpt.core.arrays import Array as Array
    from edl_ckpt.core.arrays import Ids as Ids
    from edl_ckpt.core.arrays import as_array as as_array
    from edl_ckpt.core.checkpoint.catalog import VersionLike as VersionLike
    from edl_ckpt.core.checkpoint.catalog import list_versions as list_versions
    from edl_ckpt.core.checkpoint.catalog import parse_ref as parse_ref
    from edl_ckpt.core.checkpoint.catalog import resolve as resolve
    from edl_ckpt.core.checkpoint.experiment import Experiment as Experiment
    from edl_ckpt.core.checkpoint.experiment import Trial as Trial
    from edl_ckpt.core.checkpoint.experiment import list_experiment as list_experiment
    from edl_ckpt.core.checkpoint.experiment import trial_locations as trial_locations
    from edl_ckpt.core.checkpoint.fingerprint import Fingerprint as Fingerprint
    from edl_ckpt.core.checkpoint.fingerprint import fingerprint_checkpoint as fingerprint_checkpoint
    from edl_ckpt.core.checkpoint.parts import Part as Part
    from edl_ckpt.core.checkpoint.parts import PartLike as PartLike
    from edl_ckpt.core.checkpoint.parts import Rows as Rows
    from edl_ckpt.core.checkpoint.readable import latest as latest
    from edl_ckpt.core.checkpoint.reader import Checkpoint as Checkpoint
    from edl_ckpt.core.checkpoint.reader import open_checkpoint as open_checkpoint
    from edl_ckpt.core.checkpoint.restoring import restore as restore
    from edl_ckpt.core.checkpoint.runs import mixed_runs as mixed_runs
    from edl_ckpt.core.checkpoint.table import TableView as TableView
    from edl_ckpt.core.checkpoint.table import TensorRows as TensorRows
    from edl_ckpt.core.checkpoint.target import Target as Target
    from edl_ckpt.core.checkpoint.target import free_target as free_target
    from edl_ckpt.core.commit.recovery import Recovery as Recovery
    from edl_ckpt.core.commit.recovery import location_lock as location_lock
    from edl_ckpt.core.commit.recovery import recover as recover
    from edl_ckpt.core.errors import AuthError as AuthError
    from edl_ckpt.core.errors import CorruptError as CorruptError
    from edl_ckpt.core.errors import EdlCkptError as EdlCkptError
    from edl_ckpt.core.errors import EdlCkptWarning as EdlCkptWarning
    from edl_ckpt.core.errors import IncompleteError as IncompleteError
    from edl_ckpt.core.errors import LockedError as LockedError
    from edl_ckpt.core.errors import MismatchError as MismatchError
    from edl_ckpt.core.errors import NameNotFoundError as NameNotFoundError
    from edl_ckpt.core.errors import NoSpaceError as NoSpaceError
    from edl_ckpt.core.errors import NotFoundError as NotFoundError
    from edl_ckpt.core.errors import RefusedError as RefusedError
    from edl_ckpt.core.errors import ReplacedError as ReplacedError
    from edl_ckpt.core.errors import UnavailableError as UnavailableError
    from edl_ckpt.core.errors import UnsupportedError as UnsupportedError
    from edl_ckpt.core.errors import UsageError as UsageError
    from edl_ckpt.core.format.initial_rows import initial_rows as initial_rows
    from edl_ckpt.core.format.model import CheckpointRef as CheckpointRef
    from edl_ckpt.core.format.model import Listing as Listing
    from edl_ckpt.core.format.model import ShardIndex as ShardIndex
    from edl_ckpt.core.format.model import State as State
    from edl_ckpt.core.format.model import Version as Version
    from edl_ckpt.core.format.placement import row_owners as row_owners
    from edl_ckpt.core.format.placement import variable_owner as variable_owner
    from edl_ckpt.core.operations.annotate import add_tag as add_tag
    from edl_ckpt.core.operations.annotate import remove_metadata as remove_metadata
    from edl_ckpt.core.operations.annotate import remove_metrics as remove_metrics
    from edl_ckpt.core.operations.annotate import remove_tag as remove_tag
    from edl_ckpt.core.operations.annotate import set_metadata as set_metadata
    from edl_ckpt.core.operations.annotate import set_metrics as set_metrics
    from edl_ckpt.core.operations.annotate import set_modes as set_modes
    from edl_ckpt.core.operations.annotate import set_note as set_note
    from edl_ckpt.core.operations.copy.execute import CopyResult as CopyResult
    from edl_ckpt.core.operations.copy.execute import execute_copy as execute_copy
    from edl_ckpt.core.operations.copy.plan import CopyPlan as CopyPlan
    from edl_ckpt.core.operations.copy.plan import plan_copy as plan_copy
    from edl_ckpt.core.operations.diff import DiffResult as DiffResult
    from edl_ckpt.core.operations.diff import diff_versions as diff_versions
    from edl_ckpt.core.operations.examine import StorageReport as StorageReport
    from edl_ckpt.core.operations.examine import examine_storage as examine_storage
    from edl_ckpt.core.operations.export import ExportResult as ExportResult
    from edl_ckpt.core.operations.export import Selection as Selection
    from edl_ckpt.core.operations.export import export_version as export_version
    from edl_ckpt.core.operations.follow.changes import EventKind as EventKind
    from edl_ckpt.core.operations.follow.changes import WatchEvent as WatchEvent
    from edl_ckpt.core.operations.follow.iterate import checkpoints_iterator as checkpoints_iterator
    from edl_ckpt.core.operations.follow.pace import Clock as Clock
    from edl_ckpt.core.operations.follow.wait import WaitResult as WaitResult
    from edl_ckpt.core.operations.follow.wait import wait_for_version as wait_for_version
    from edl_ckpt.core.operations.follow.watch import watch_location as watch_location
    from edl_ckpt.core.operations.importing import ImportResult as ImportResult
    from edl_ckpt.core.operations.importing import NameMap as NameMap
    from edl_ckpt.core.operations.importing import import_arrays as import_arrays
    from edl_ckpt.core.operations.importing import import_checkpoint as import_checkpoint
    from edl_ckpt.core.operations.importing import read_map as read_map
    from edl_ckpt.core.operations.lookup import Lookup as Lookup
    from edl_ckpt.core.operations.lookup import first_rows as first_rows
    from edl_ckpt.core.operations.lookup import look_up as look_up
    from edl_ckpt.core.operations.lookup import sample_rows as sample_rows
    from edl_ckpt.core.operations.lookup import slice_table as slice_table
    from edl_ckpt.core.operations.lookup import slice_variable as slice_variable
    from edl_ckpt.core.operations.metric_sources import import_metrics as import_metrics
    from edl_ckpt.core.operations.metric_sources import read_series as read_series
    from edl_ckpt.core.operations.prune.execute import PruneResult as PruneResult
    from edl_ckpt.core.operations.prune.execute import execute_prune as execute_prune
    from edl_ckpt.core.operations.prune.execute import prune as prune
    from edl_ckpt.core.operations.prune.guards import Guards as Guards
    from edl_ckpt.core.operations.prune.own_shard import remove_own_shard as remove_own_shard
    from edl_ckpt.core.operations.prune.plan import PruneEntry as PruneEntry
    from edl_ckpt.core.operations.prune.plan import PrunePlan as PrunePlan
    from edl_ckpt.core.operations.prune.plan import plan_prune as plan_prune
    from edl_ckpt.core.operations.prune.retention import Best as Best
    from edl_ckpt.core.operations.prune.retention import EverySteps as EverySteps
    from edl_ckpt.core.operations.prune.retention import ExperimentBest as ExperimentBest
    from edl_ckpt.core.operations.prune.retention import Latest as Latest
    from edl_ckpt.core.operations.prune.retention import Policy as Policy
    from edl_ckpt.core.operations.prune.retention import Rule as Rule
    from edl_ckpt.core.operations.prune.retention import Tagged as Tagged
    from edl_ckpt.core.operations.prune.retention import Within as Within
    from edl_ckpt.core.operations.prune.retention import determined as determined
    from edl_ckpt.core.operations.prune.stored_policy import read_policy as read_policy
    from edl_ckpt.core.operations.prune.stored_policy import store_policy as store_policy
    from edl_ckpt.core.operations.report.results import LocationReport as LocationReport
    from edl_ckpt.core.operations.report.results import ReportLimits as ReportLimits
    from edl_ckpt.core.operations.report.survey import report_location as report_location
    from edl_ckpt.core.operations.reshard.execute import ReshardResult as ReshardResult
    from edl_ckpt.core.operations.reshard.execute import execute_reshard as execute_reshard
    from edl_ckpt.core.operations.reshard.needed import find_resharded as find_resharded
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan as ReshardPlan
    from edl_ckpt.core.operations.reshard.plan import plan_reshard as plan_reshard
    from edl_ckpt.core.operations.reshard.prepare import prepare_reshard as prepare_reshard
    from edl_ckpt.core.operations.reshard.prepare import reshard_version as reshard_version
    from edl_ckpt.core.operations.reshard.settings import ReshardSettings as ReshardSettings
    from edl_ckpt.core.operations.reshard.settings import settings_for as settings_for
    from edl_ckpt.core.operations.reshard.survey import Survey as Survey
    from edl_ckpt.core.operations.reshard.survey import survey_ids as survey_ids
    from edl_ckpt.core.operations.save import Table as Table
    from edl_ckpt.core.operations.save import save_checkpoint as save_checkpoint
    from edl_ckpt.core.operations.stats import TensorStats as TensorStats
    from edl_ckpt.core.operations.stats import tensor_stats as tensor_stats
    from edl_ckpt.core.operations.summary import CheckpointSummary as CheckpointSummary
    from edl_ckpt.core.operations.summary import summarize as summarize
    from edl_ckpt.core.operations.undo import undo as undo
    from edl_ckpt.core.operations.unlock import unlock as unlock
    from edl_ckpt.core.operations.usage import LocationUsage as LocationUsage
    from edl_ckpt.core.operations.usage import measure_usage as measure_usage
    from edl_ckpt.core.operations.verify.check import verify_version as verify_version
    from edl_ckpt.core.operations.verify.findings import Finding as Finding
    from edl_ckpt.core.operations.verify.findings import VerifyResult as VerifyResult
    from edl_ckpt.core.operations.verify.seals import seal_version as seal_version
    from edl_ckpt.core.operations.verify.versions import VerifyRun as VerifyRun
    from edl_ckpt.core.operations.verify.versions import verify_and_seal as verify_and_seal
    from edl_ckpt.core.operations.verify.versions import verify_versions as verify_versions
    from edl_ckpt.core.progress import SILENT as SILENT
    from edl_ckpt.core.progress import Progress as Progress
    from edl_ckpt.core.progress import Reporter as Reporter
    from edl_ckpt.core.storage.determined import CheckpointStorage as CheckpointStorage
    from edl_ckpt.core.storage.location import Location as Location
    from edl_ckpt.core.storage.location import LocationLike as LocationLike
    from edl_ckpt.core.training.content import TableBatches as TableBatches
    from edl_ckpt.core.training.objects.checkpoint import ObjectCheckpoint as ObjectCheckpoint
    from edl_ckpt.core.training.objects.checkpoint import list_variables as list_variables
    from edl_ckpt.core.training.objects.checkpoint import load_variable as load_variable
    from edl_ckpt.core.training.partition import ServerPart as ServerPart
    from edl_ckpt.core.training.partition import partition as partition
    from edl_ckpt.core.training.saver import CheckpointSaver as CheckpointSaver
    from edl_ckpt.core.training.saver import PendingSave as PendingSave
    from edl_ckpt.core.training.saver import SavedShard as SavedShard

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
        "EdlCkptWarning",
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
    "progress": ("SILENT", "Progress", "Reporter"),
    "storage.determined": ("CheckpointStorage",),
    "storage.location": ("Location", "LocationLike"),
    "training.objects.checkpoint": ("ObjectCheckpoint", "list_variables", "load_variable"),
    "training.content": ("TableBatches",),
    "training.partition": ("ServerPart", "partition"),
    "training.saver": ("CheckpointSaver", "PendingSave", "SavedShard"),
}
"""Every public name, by the module below `edl_ckpt.core` that defines it."""
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

_NAMES: Final = sorted([*_HOME_OF, "__version__"])
if not TYPE_CHECKING:  # type checkers take the names above, which are imported as themselves
    __all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"edl_ckpt.core.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return list(_NAMES)
