"""A new version from arrays in files of other tools, or from a checkpoint, placed for N servers.

As in a reshard: the survey counts ids, the plan has the offset of each row, and the execution streams values once. The
source and the version that is read back must have the same fingerprint, or nothing becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.target import Target, free_target
from edl_ckpt.core.cluster.choice import ExecutorLike, check_source, check_target, job_of
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.operations.importing.archives import check_members
from edl_ckpt.core.operations.importing.array_data import value_of
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.checkpoint import as_checkpoint, import_checkpoint, plan_checkpoint
from edl_ckpt.core.operations.importing.names import NameMap, assign_names, read_map
from edl_ckpt.core.operations.importing.source import ArraysPlan, ImportResult, execute_import, prepare_import
from edl_ckpt.core.sources.elasticdl.target import check_ps_num
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.location import Location

__all__ = [
    "ArraysPlan",
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
    check_ps_num(ps_num)
    target, job = free_target(Location.of(location), version, layout=layout), job_of(executor, [], reporter=reporter)
    with _planned(source, target, ps_num, names, job, writes=True) as (plan, settings):
        for warning in (*plan.warnings, *settings.warnings):
            reporter.warn(warning)
        return execute_import(plan, settings, job, wait_seconds=wait_seconds)


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
) -> tuple[ArraysPlan, ReshardSettings]:
    """Return what `import_arrays` would do, from all ids of the source; nothing is written, and no lock is taken."""
    check_ps_num(ps_num)
    target, job = free_target(Location.of(location), version, layout=layout), job_of(executor, [], reporter=reporter)
    with _planned(source, target, ps_num, names, job, writes=False) as planned:
        return planned


@contextmanager
def _planned(
    source: LocationLike, target: Target, ps_num: int, names: NameMap | None, job: Job, *, writes: bool
) -> Iterator[tuple[ArraysPlan, ReshardSettings]]:
    """Yield the plan and its settings, with the source open."""
    work = job.executor
    with ArraySource(Location.of(source), shared=work.is_cluster) as opened:
        arrays, read_before = assign_names(opened, names or NameMap()), work.bytes_read()
        for file in [value_of(opened.location, reader) for reader in arrays.readers[:1] if opened.shared]:
            check_source(work, file.place, file.path, reporter=job.reporter)
        if writes:
            check_target(work, target.location, arrays.size_bytes, reporter=job.reporter)
        if opened.members:
            check_members(opened.members, value_of(opened.location, opened.members[0].base), job)
        plan, settings = prepare_import(arrays, target, ps_num, job)
        survey = replace(plan.survey, bytes_read=arrays.bytes_read + work.bytes_read() - read_before)
        yield replace(plan, survey=survey), settings
