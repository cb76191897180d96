"""A new version from arrays in files of other tools, or from a checkpoint, placed for N servers.

As in a reshard: the survey counts ids, the plan has the offset of each row, and the execution streams values once. The
source and the version that is read back must have the same fingerprint, or nothing becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edl_ckpt.core.checkpoint.target import free_target
from edl_ckpt.core.cluster.choice import ExecutorLike, check_source, check_target, executor_of
from edl_ckpt.core.commit.part_plan import plan_parts
from edl_ckpt.core.format.checks import check_ps_num
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.checkpoint import as_checkpoint, import_checkpoint, plan_checkpoint
from edl_ckpt.core.operations.importing.execute import ImportResult, execute_import
from edl_ckpt.core.operations.importing.names import NameMap, read_map
from edl_ckpt.core.operations.importing.plan import ImportPlan, moved_by, plan_import
from edl_ckpt.core.operations.importing.survey import survey_arrays
from edl_ckpt.core.parallel import Executor
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import LocationLike, open_store
from edl_ckpt.core.storage.location import Location

__all__ = [
    "ImportPlan",
    "ImportResult",
    "NameMap",
    "as_checkpoint",
    "import_arrays",
    "import_checkpoint",
    "plan_arrays",
    "plan_checkpoint",
    "read_map",
]


def import_arrays(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    names: NameMap | None = None,
    layout: str | None = None,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ImportResult:
    """Write a new version of a location from a safetensors file, an .npz, a directory of .npy, or a framework's files.

    Without a map, the notes in the source name its tables; without notes, each pair X.ids and X.vectors is the table X.
    All other arrays are dense variables. Memory is a few batches, and at most about 80 MiB where ids that do not ascend
    are looked through for repeated ones. An `executor` on a cluster reads .safetensors, .npy and stored .npz, and
    writes to S3, or to a file system that its workers share; anything else is UnsupportedError. The location is locked
    while the version is written. Raises RefusedError for a version that exists, CorruptError for damaged files,
    UsageError for arrays that cannot be a table, UnsupportedError for a dtype that a checkpoint cannot contain,
    LockedError when another command holds the lock.
    """
    with _planned(source, location, version, ps_num, names, layout, executor, reporter, writes=True) as (plan, work):
        for warning in plan.warnings:
            reporter.warn(warning)
        return execute_import(plan, executor=work, wait_seconds=wait_seconds, reporter=reporter)


def plan_arrays(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    names: NameMap | None = None,
    layout: str | None = None,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> ImportPlan:
    """Return what `import_arrays` would do, from all ids of the source; nothing is written, and no lock is taken."""
    with _planned(source, location, version, ps_num, names, layout, executor, reporter, writes=False) as (plan, _):
        return plan


@contextmanager
def _planned(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    names: NameMap | None,
    layout: str | None,
    executor: ExecutorLike | None,
    reporter: Reporter,
    *,
    writes: bool,
) -> Iterator[tuple[ImportPlan, Executor | None]]:
    """Yield the plan, and who does the work, with the source open."""
    check_ps_num(ps_num)
    target = free_target(Location.of(location), version, layout=layout)
    work = None if executor is None else executor_of(executor, [], reporter=reporter)
    with ArraySource(Location.of(source), shared=work is not None and work.elsewhere) as arrays:
        for file in arrays.values()[:1] if work is not None and work.elsewhere else ():
            check_source(work, file.place, file.path, reporter=reporter)
        if writes:
            check_target(work, target.location, arrays.size_bytes, parts=True, reporter=reporter)
        read_before = 0 if work is None else work.bytes_read()
        survey = survey_arrays(arrays, ps_num, names=names, executor=work, reporter=reporter)
        if work is not None:
            survey = replace(survey, bytes_read=work.bytes_read() - read_before)
        plan, least = plan_import(survey, target), open_store(target.location).properties.part_bytes
        if survey.spread is not None and work is not None and least:
            plan = replace(plan, parts=plan_parts(moved_by(plan), work, least))
        yield plan, work
