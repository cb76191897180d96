from edl_ckpt.core.base.arrays import BFLOAT16 as BFLOAT16
from edl_ckpt.core.base.arrays import Array as Array
from edl_ckpt.core.base.arrays import Ids as Ids
from edl_ckpt.core.base.arrays import as_array as as_array
from edl_ckpt.core.base.errors import AuthError as AuthError
from edl_ckpt.core.base.errors import CorruptError as CorruptError
from edl_ckpt.core.base.errors import EdlCkptError as EdlCkptError
from edl_ckpt.core.base.errors import EdlCkptWarning as EdlCkptWarning
from edl_ckpt.core.base.errors import IncompleteError as IncompleteError
from edl_ckpt.core.base.errors import LockedError as LockedError
from edl_ckpt.core.base.errors import MismatchError as MismatchError
from edl_ckpt.core.base.errors import NameNotFoundError as NameNotFoundError
from edl_ckpt.core.base.errors import NoSpaceError as NoSpaceError
from edl_ckpt.core.base.errors import NotFoundError as NotFoundError
from edl_ckpt.core.base.errors import RefusedError as RefusedError
from edl_ckpt.core.base.errors import ReplacedError as ReplacedError
from edl_ckpt.core.base.errors import UnavailableError as UnavailableError
from edl_ckpt.core.base.errors import UnsupportedError as UnsupportedError
from edl_ckpt.core.base.errors import UsageError as UsageError
from edl_ckpt.core.base.progress import SILENT as SILENT
from edl_ckpt.core.base.progress import Progress as Progress
from edl_ckpt.core.base.progress import Reporter as Reporter
from edl_ckpt.core.catalog.begun import listed_again as listed_again
from edl_ckpt.core.catalog.begun import versions_at as versions_at
from edl_ckpt.core.catalog.experiment import Below as Below
from edl_ckpt.core.catalog.experiment import Experiment as Experiment
from edl_ckpt.core.catalog.experiment import Trial as Trial
from edl_ckpt.core.catalog.experiment import glance_below as glance_below
from edl_ckpt.core.catalog.experiment import list_experiment as list_experiment
from edl_ckpt.core.catalog.experiment import trial_locations as trial_locations
from edl_ckpt.core.catalog.listing import VersionLike as VersionLike
from edl_ckpt.core.catalog.listing import list_versions as list_versions
from edl_ckpt.core.catalog.listing import parse_ref as parse_ref
from edl_ckpt.core.catalog.listing import resolve as resolve
from edl_ckpt.core.catalog.listing import split_version_dir as split_version_dir
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS as GRACE_SECONDS
from edl_ckpt.core.catalog.target import Target as Target
from edl_ckpt.core.catalog.target import free_target as free_target
from edl_ckpt.core.commit.repair.recovery import Recovery as Recovery
from edl_ckpt.core.commit.repair.recovery import location_lock as location_lock
from edl_ckpt.core.commit.repair.recovery import recover as recover
from edl_ckpt.core.converting.changes import Changes as Changes
from edl_ckpt.core.converting.changes import LeftOut as LeftOut
from edl_ckpt.core.model.listings import Listing as Listing
from edl_ckpt.core.model.systems import System as System
from edl_ckpt.core.model.tables import DenseEntry as DenseEntry
from edl_ckpt.core.model.tables import ShardIndex as ShardIndex
from edl_ckpt.core.model.tables import TableEntry as TableEntry
from edl_ckpt.core.model.versions import CheckpointRef as CheckpointRef
from edl_ckpt.core.model.versions import State as State
from edl_ckpt.core.model.versions import Version as Version
from edl_ckpt.core.moving.result import WriteResult as WriteResult
from edl_ckpt.core.moving.settings import ReshardSettings as ReshardSettings
from edl_ckpt.core.moving.settings import settings_for as settings_for
from edl_ckpt.core.operations.annotate import add_tag as add_tag
from edl_ckpt.core.operations.annotate import remove_metadata as remove_metadata
from edl_ckpt.core.operations.annotate import remove_metrics as remove_metrics
from edl_ckpt.core.operations.annotate import remove_tag as remove_tag
from edl_ckpt.core.operations.annotate import set_metadata as set_metadata
from edl_ckpt.core.operations.annotate import set_metrics as set_metrics
from edl_ckpt.core.operations.annotate import set_modes as set_modes
from edl_ckpt.core.operations.annotate import set_note as set_note
from edl_ckpt.core.operations.convert import convert_version as convert_version
from edl_ckpt.core.operations.convert import strip_versions as strip_versions
from edl_ckpt.core.operations.copy.execute import CopyResult as CopyResult
from edl_ckpt.core.operations.copy.execute import execute_copy as execute_copy
from edl_ckpt.core.operations.copy.plan import CopyPlan as CopyPlan
from edl_ckpt.core.operations.copy.plan import plan_copy as plan_copy
from edl_ckpt.core.operations.diff import NamePairs as NamePairs
from edl_ckpt.core.operations.diff import diff_versions as diff_versions
from edl_ckpt.core.operations.diff import read_pairs as read_pairs
from edl_ckpt.core.operations.diff.results import HISTOGRAM_EDGES as HISTOGRAM_EDGES
from edl_ckpt.core.operations.diff.results import DenseDiff as DenseDiff
from edl_ckpt.core.operations.diff.results import DiffResult as DiffResult
from edl_ckpt.core.operations.diff.results import TableDiff as TableDiff
from edl_ckpt.core.operations.examine import StorageReport as StorageReport
from edl_ckpt.core.operations.examine import examine_storage as examine_storage
from edl_ckpt.core.operations.export import ExportResult as ExportResult
from edl_ckpt.core.operations.export import Selection as Selection
from edl_ckpt.core.operations.export import export_version as export_version
from edl_ckpt.core.operations.follow.each import checkpoints_iterator as checkpoints_iterator
from edl_ckpt.core.operations.follow.observe import Clock as Clock
from edl_ckpt.core.operations.follow.observe import EventKind as EventKind
from edl_ckpt.core.operations.follow.observe import WatchEvent as WatchEvent
from edl_ckpt.core.operations.follow.wait import WaitResult as WaitResult
from edl_ckpt.core.operations.follow.wait import wait_for_version as wait_for_version
from edl_ckpt.core.operations.follow.watch import watch_location as watch_location
from edl_ckpt.core.operations.importing import NameMap as NameMap
from edl_ckpt.core.operations.importing import import_arrays as import_arrays
from edl_ckpt.core.operations.importing import import_checkpoint as import_checkpoint
from edl_ckpt.core.operations.importing import read_map as read_map
from edl_ckpt.core.operations.lookup.rows import Lookup as Lookup
from edl_ckpt.core.operations.lookup.rows import first_rows as first_rows
from edl_ckpt.core.operations.lookup.rows import look_up as look_up
from edl_ckpt.core.operations.lookup.rows import sample_rows as sample_rows
from edl_ckpt.core.operations.lookup.slices import slice_table as slice_table
from edl_ckpt.core.operations.lookup.slices import slice_variable as slice_variable
from edl_ckpt.core.operations.metric_series import import_metrics as import_metrics
from edl_ckpt.core.operations.metric_series import read_series as read_series
from edl_ckpt.core.operations.prune.execute import PruneResult as PruneResult
from edl_ckpt.core.operations.prune.execute import execute_prune as execute_prune
from edl_ckpt.core.operations.prune.execute import prune as prune
from edl_ckpt.core.operations.prune.guards import Guards as Guards
from edl_ckpt.core.operations.prune.own_shard import remove_own_shard as remove_own_shard
from edl_ckpt.core.operations.prune.plan import PruneEntry as PruneEntry
from edl_ckpt.core.operations.prune.plan import PrunePlan as PrunePlan
from edl_ckpt.core.operations.prune.plan import plan_prune as plan_prune
from edl_ckpt.core.operations.prune.plan import read_policy as read_policy
from edl_ckpt.core.operations.prune.plan import store_policy as store_policy
from edl_ckpt.core.operations.prune.retention import Best as Best
from edl_ckpt.core.operations.prune.retention import EverySteps as EverySteps
from edl_ckpt.core.operations.prune.retention import ExperimentBest as ExperimentBest
from edl_ckpt.core.operations.prune.retention import Latest as Latest
from edl_ckpt.core.operations.prune.retention import Policy as Policy
from edl_ckpt.core.operations.prune.retention import Rule as Rule
from edl_ckpt.core.operations.prune.retention import Tagged as Tagged
from edl_ckpt.core.operations.prune.retention import Within as Within
from edl_ckpt.core.operations.prune.retention import determined as determined
from edl_ckpt.core.operations.prune.undeletable import undeletable as undeletable
from edl_ckpt.core.operations.repair import RepairResult as RepairResult
from edl_ckpt.core.operations.repair import repair_version as repair_version
from edl_ckpt.core.operations.report.page_file import report_file as report_file
from edl_ckpt.core.operations.report.survey import Drift as Drift
from edl_ckpt.core.operations.report.survey import LocationReport as LocationReport
from edl_ckpt.core.operations.report.survey import OpenedVersion as OpenedVersion
from edl_ckpt.core.operations.report.survey import ReportLimits as ReportLimits
from edl_ckpt.core.operations.report.survey import SampledTensor as SampledTensor
from edl_ckpt.core.operations.report.survey import report_location as report_location
from edl_ckpt.core.operations.reshard.execute import ReshardPlan as ReshardPlan
from edl_ckpt.core.operations.reshard.execute import Survey as Survey
from edl_ckpt.core.operations.reshard.execute import execute_reshard as execute_reshard
from edl_ckpt.core.operations.reshard.execute import plan_reshard as plan_reshard
from edl_ckpt.core.operations.reshard.execute import prepare_reshard as prepare_reshard
from edl_ckpt.core.operations.reshard.execute import reshard_version as reshard_version
from edl_ckpt.core.operations.reshard.execute import survey_ids as survey_ids
from edl_ckpt.core.operations.reshard.found import find_resharded as find_resharded
from edl_ckpt.core.operations.save import Table as Table
from edl_ckpt.core.operations.save import save_checkpoint as save_checkpoint
from edl_ckpt.core.operations.statistics import TensorStats as TensorStats
from edl_ckpt.core.operations.statistics import tensor_stats as tensor_stats
from edl_ckpt.core.operations.summary import CheckpointSummary as CheckpointSummary
from edl_ckpt.core.operations.summary import TableSummary as TableSummary
from edl_ckpt.core.operations.summary import VariableSummary as VariableSummary
from edl_ckpt.core.operations.summary import summarize as summarize
from edl_ckpt.core.operations.undo import undo as undo
from edl_ckpt.core.operations.unlock import unlock as unlock
from edl_ckpt.core.operations.usage import LocationUsage as LocationUsage
from edl_ckpt.core.operations.usage import measure_usage as measure_usage
from edl_ckpt.core.operations.verify.check import VerifyRun as VerifyRun
from edl_ckpt.core.operations.verify.check import seal_version as seal_version
from edl_ckpt.core.operations.verify.check import verify_and_seal as verify_and_seal
from edl_ckpt.core.operations.verify.check import verify_version as verify_version
from edl_ckpt.core.operations.verify.check import verify_versions as verify_versions
from edl_ckpt.core.operations.verify.findings import Finding as Finding
from edl_ckpt.core.operations.verify.findings import ValueSample as ValueSample
from edl_ckpt.core.operations.verify.findings import VerifyResult as VerifyResult
from edl_ckpt.core.proof.fingerprint import Fingerprint as Fingerprint
from edl_ckpt.core.proof.values import fingerprint_checkpoint as fingerprint_checkpoint
from edl_ckpt.core.reading.loss import Loss as Loss
from edl_ckpt.core.reading.loss import loss_of as loss_of
from edl_ckpt.core.reading.newest import latest as latest
from edl_ckpt.core.reading.pages import PageRows as PageRows
from edl_ckpt.core.reading.pages import TablePages as TablePages
from edl_ckpt.core.reading.reader import Checkpoint as Checkpoint
from edl_ckpt.core.reading.reader import open_checkpoint as open_checkpoint
from edl_ckpt.core.reading.restoring import restore as restore
from edl_ckpt.core.reading.table import Part as Part
from edl_ckpt.core.reading.table import PartLike as PartLike
from edl_ckpt.core.reading.table import Rows as Rows
from edl_ckpt.core.reading.table import TableView as TableView
from edl_ckpt.core.reading.table import TensorRows as TensorRows
from edl_ckpt.core.sources.determined.storages import CheckpointStorage as CheckpointStorage
from edl_ckpt.core.sources.elasticdl.initial_rows import initial_rows as initial_rows
from edl_ckpt.core.sources.elasticdl.placement import row_owners as row_owners
from edl_ckpt.core.sources.elasticdl.placement import variable_owner as variable_owner
from edl_ckpt.core.sources.systems import kinds_of as kinds_of
from edl_ckpt.core.sources.systems import shards_of as shards_of
from edl_ckpt.core.sources.systems import systems as systems
from edl_ckpt.core.sources.systems import title_of as title_of
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS as LOCK_WAIT_SECONDS
from edl_ckpt.core.state.shard_note import mixed_runs as mixed_runs
from edl_ckpt.core.storage.faults import error_of_system as error_of_system
from edl_ckpt.core.storage.location import Location as Location
from edl_ckpt.core.storage.location import LocationLike as LocationLike
from edl_ckpt.core.training.background import PendingSave as PendingSave
from edl_ckpt.core.training.background import SavedShard as SavedShard
from edl_ckpt.core.training.content import ServerPart as ServerPart
from edl_ckpt.core.training.content import TableBatches as TableBatches
from edl_ckpt.core.training.content import partition as partition
from edl_ckpt.core.training.objects.checkpoint import ObjectCheckpoint as ObjectCheckpoint
from edl_ckpt.core.training.objects.checkpoint import list_variables as list_variables
from edl_ckpt.core.training.objects.checkpoint import load_variable as load_variable
from edl_ckpt.core.training.saver import CheckpointSaver as CheckpointSaver

__all__ = [
    "BFLOAT16",
    "GRACE_SECONDS",
    "HISTOGRAM_EDGES",
    "LOCK_WAIT_SECONDS",
    "SILENT",
    "Array",
    "AuthError",
    "Below",
    "Best",
    "Changes",
    "Checkpoint",
    "CheckpointRef",
    "CheckpointSaver",
    "CheckpointStorage",
    "CheckpointSummary",
    "Clock",
    "CopyPlan",
    "CopyResult",
    "CorruptError",
    "DenseDiff",
    "DenseEntry",
    "DiffResult",
    "Drift",
    "EdlCkptError",
    "EdlCkptWarning",
    "EventKind",
    "EverySteps",
    "Experiment",
    "ExperimentBest",
    "ExportResult",
    "Finding",
    "Fingerprint",
    "Guards",
    "Ids",
    "IncompleteError",
    "Latest",
    "LeftOut",
    "Listing",
    "Location",
    "LocationLike",
    "LocationReport",
    "LocationUsage",
    "LockedError",
    "Lookup",
    "Loss",
    "MismatchError",
    "NameMap",
    "NameNotFoundError",
    "NamePairs",
    "NoSpaceError",
    "NotFoundError",
    "ObjectCheckpoint",
    "OpenedVersion",
    "PageRows",
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
    "RepairResult",
    "ReplacedError",
    "ReportLimits",
    "Reporter",
    "ReshardPlan",
    "ReshardSettings",
    "Rows",
    "Rule",
    "SampledTensor",
    "SavedShard",
    "Selection",
    "ServerPart",
    "ShardIndex",
    "State",
    "StorageReport",
    "Survey",
    "System",
    "Table",
    "TableBatches",
    "TableDiff",
    "TableEntry",
    "TablePages",
    "TableSummary",
    "TableView",
    "Tagged",
    "Target",
    "TensorRows",
    "TensorStats",
    "Trial",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "ValueSample",
    "VariableSummary",
    "VerifyResult",
    "VerifyRun",
    "Version",
    "VersionLike",
    "WaitResult",
    "WatchEvent",
    "Within",
    "WriteResult",
    "__version__",
    "add_tag",
    "as_array",
    "checkpoints_iterator",
    "convert_version",
    "determined",
    "diff_versions",
    "error_of_system",
    "examine_storage",
    "execute_copy",
    "execute_prune",
    "execute_reshard",
    "export_version",
    "find_resharded",
    "fingerprint_checkpoint",
    "first_rows",
    "free_target",
    "glance_below",
    "import_arrays",
    "import_checkpoint",
    "import_metrics",
    "initial_rows",
    "kinds_of",
    "latest",
    "list_experiment",
    "list_variables",
    "list_versions",
    "listed_again",
    "load_variable",
    "location_lock",
    "look_up",
    "loss_of",
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
    "read_pairs",
    "read_policy",
    "read_series",
    "recover",
    "remove_metadata",
    "remove_metrics",
    "remove_own_shard",
    "remove_tag",
    "repair_version",
    "report_file",
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
    "shards_of",
    "slice_table",
    "slice_variable",
    "split_version_dir",
    "store_policy",
    "strip_versions",
    "summarize",
    "survey_ids",
    "systems",
    "tensor_stats",
    "title_of",
    "trial_locations",
    "undeletable",
    "undo",
    "unlock",
    "variable_owner",
    "verify_and_seal",
    "verify_version",
    "verify_versions",
    "versions_at",
    "wait_for_version",
    "watch_location",
]
__version__: str
_HOMES: dict[str, str]
