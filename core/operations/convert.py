"""Writing a version anew, in the files of its own system or of another one: for other ranks, changed, and proved.

What goes out is read once, summed, and written at planned offsets. The proof reads the new files by their own format:
each table and variable must have the sums of what was meant, or nothing becomes visible.

Old versions without what only a resumed training needs: optimizer slots, frequencies and the like are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import SILENT, WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import base_name, counted, size
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import VersionLike, as_version, check_listed, list_versions
from edl_ckpt.core.catalog.target import apart, check_number, check_outside, layouts_at, step_numbers
from edl_ckpt.core.catalog.uuids import has_no_number
from edl_ckpt.core.cluster.choice import ExecutorLike, check_target, job_of, wrapped
from edl_ckpt.core.commit.interface import NewVersion
from edl_ckpt.core.commit.newest_record import note_newest
from edl_ckpt.core.commit.publish.disk import replaces_link
from edl_ckpt.core.converting.changes import Changes, left_out_lines
from edl_ckpt.core.converting.name_map import NameMap, with_tables
from edl_ckpt.core.model.versions import UNNUMBERED, ShardFile, State, Version
from edl_ckpt.core.moving.conversion import Conversion, plan_conversion
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.settings import settings_of_files
from edl_ckpt.core.moving.write import Place, planned_result, write_version
from edl_ckpt.core.operations.prune.guards import is_good
from edl_ckpt.core.operations.prune.readable import looked_at
from edl_ckpt.core.operations.reshard.execute import execute_reshard, planned_reshard, prepare_reshard
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources import bundle
from edl_ckpt.core.sources.elasticdl.target import DESIGN
from edl_ckpt.core.sources.steps.names import STEPS
from edl_ckpt.core.sources.steps.spellings import number_of_directory
from edl_ckpt.core.state.annotate import MetadataCopies
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage.interface import Properties, Store
from edl_ckpt.core.storage.location import Location, LocationLike
from edl_ckpt.core.storage.parts import PART_MEMORY_BYTES

_STAYS: Final = "the files are those of {}: tables are split, and other tensors from 1 MiB on"


def convert_version(
    version: VersionLike,
    ranks: int | None = None,
    *,
    output: LocationLike | None = None,
    number: int | None = None,
    system: str | None = None,
    changes: Changes | None = None,
    names: NameMap | None = None,
    most_file_bytes: int | None = None,
    layout: LayoutName | None = None,
    keep_old: bool = False,
    dry_run: bool = False,
    force: bool = False,
    purpose: str = "reshard",
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    max_memory_bytes: int | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> WriteResult:
    """Write a version for so many ranks, by default as many as it has, in its own place or at an `output` location.

    `system` is by default its own; another one needs an output. `names` are a map of names, before the changes.
    `most_file_bytes` is for safetensors, whose files have at most so many bytes. A bound of the memory of all batches
    is for shards of ElasticDL. With `dry_run` nothing is written.
    Raises RefusedError for a target that is there, or that no version can replace; UnsupportedError for what the system
    cannot hold, and where files cannot be written; EdlCkptError when the proof fails; and what `check_trust` raises
    unless `force` is set.

    >>> convert_version("run@200", output="smaller", changes=Changes(drop=("bias",))).ref
    'smaller@200'
    """
    begin = time.perf_counter()
    version = as_version(version)
    if most_file_bytes is not None and most_file_bytes < 1:
        raise UsageError("files have at least 1 byte", hint="try: --max-shard-size 5GB")
    system, changes = system or version.layout.system, changes or Changes()
    if system == DESIGN.system:
        return _to_shards(
            version,
            ranks or version.ps_num or 1,
            output=output,
            number=number,
            changes=changes,
            names=names,
            layout=layout,
            keep_old=keep_old,
            dry_run=dry_run,
            force=force,
            purpose=purpose,
            workers=workers,
            executor=executor,
            max_memory_bytes=max_memory_bytes,
            wait_seconds=wait_seconds,
            reporter=reporter,
        )
    if max_memory_bytes is not None:
        raise UsageError("a bound of memory is for versions of ElasticDL")
    where = version.location if output is None else Location.of(output)
    executor = wrapped(executor)
    if not dry_run:
        check_target(executor, where, version.size_bytes, reporter=reporter)
    job = job_of(executor, [version], workers=workers, target=where, reporter=reporter)
    new = _new_version(version, where, system, number, in_place=output is None)
    new = replace(new, purpose=purpose, keep_old=keep_old, reporter=reporter)
    wanted = _WantedFiles(system, ranks, changes, names or NameMap(), most_file_bytes)
    done = _to_files(version, wanted, new, where, job, force=force, dry_run=dry_run, wait_seconds=wait_seconds)
    return replace(done, seconds=time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class _WantedFiles:
    """What is asked for of files of a system other than ElasticDL."""

    system: str
    ranks: int | None
    """None for as many as the version has."""
    changes: Changes
    names: NameMap
    """A map of names, before the changes."""
    most_file_bytes: int | None


def _to_files(
    version: Version,
    wanted: _WantedFiles,
    new: NewVersion,
    where: Location,
    job: Job,
    *,
    force: bool,
    dry_run: bool,
    wait_seconds: float,
) -> WriteResult:
    """Write files of another system, as `convert_version` says."""
    trust = check_trust(version, force=force, reporter=job.reporter)
    contents = Contents.of(version) if wanted.system == version.layout.system else None
    read_before = job.executor.bytes_read()
    with open_checkpoint(version) as source:
        sums = source.watch()
        plan = _plan_files(source, wanted, job, number=new.number, contents=contents)
        if contents is not None:
            new = replace(new, contents=contents, carried=contents.all_but(plan.destination.own_names))
        _warn_of_plan(plan, version, wanted, job)
        if dry_run:
            planned = planned_result(plan, where, new, bytes_read=source.bytes_read)
            return replace(planned, forced=trust.forced)
        source_input = plan.input(trust, sums)
        source_input.proof.confirm_first(job)
        source_input.proof.restart()
        properties = open_location(where).properties
        if not job.executor.is_cluster:  # its workers send most parts, and do not wait for checksums
            _warn_of_spool(plan, properties, job)
        return write_version(
            plan,
            _FilePlace(where, replace(new, copies=_planned(plan, new, where)), version),
            settings_of_files(plan, properties, workers=job.workers),
            nullcontext(source_input),
            job,
            doing="writing",
            bytes_read=job.executor.bytes_read() - read_before,
            wait_seconds=wait_seconds,
        )


class _FilePlace(Place):
    """The place of files of a system other than ElasticDL."""

    def __init__(self, location: Location, new: NewVersion, source: Version) -> None:
        super().__init__(location, new)
        if source.key_of_copies == new.key and new.replaces is None:
            copies = MetadataCopies(open_location(location), reporter=new.reporter)
            self.describe = partial(copies.copy, source)

    def check(self, store: Store) -> None:
        """Raise LockedError if the version that is replaced has changed."""
        del store
        if self.new.replaces is not None:
            check_listed(self.new.replaces, "the version has changed since the plan was made; try again")

    def finish(self, store: Store) -> None:
        """Name the newest bundle in TensorFlow's own record."""
        if self.new.layout.system == bundle.ABOUT.name and self.new.replaces is None:
            note_newest(store, reporter=self.new.reporter)


def _plan_files(
    source: Checkpoint, wanted: _WantedFiles, job: Job, *, number: int, contents: Contents | None
) -> Conversion:
    """Return the plan of the files that are wanted; errors as `plan_conversion`."""
    names, version = wanted.names, source.version
    return plan_conversion(
        with_tables(source, names) if names.tables else source,
        wanted.system,
        wanted.ranks or version.ps_num or 1,
        replace(wanted.changes, rename=(*names.rename.items(), *wanted.changes.rename)),
        job,
        number=number,
        most_file_bytes=wanted.most_file_bytes,
        contents=contents,
    )


def _warn_of_plan(plan: Conversion, version: Version, wanted: _WantedFiles, job: Job) -> None:
    """Warn of what stays behind unasked, and of ranks that one file cannot be split for."""
    is_unchanged = plan.changes == Changes()
    surprising = [one for one in plan.out.left_out if is_unchanged or one.lacks_place]
    for line in left_out_lines(surprising):
        job.reporter.warn(line)
    written = plan.destination.written_ranks
    if wanted.ranks is not None and written < wanted.ranks and version.ps_num == 1:
        job.reporter.warn(f"{version.ref}: {_STAYS.format(counted(written, 'rank'))}")


def _to_shards(
    version: Version,
    ps_num: int,
    *,
    output: LocationLike | None,
    number: int | None,
    changes: Changes,
    names: NameMap | None,
    layout: LayoutName | None,
    keep_old: bool,
    dry_run: bool,
    force: bool,
    purpose: str,
    workers: int | None,
    executor: ExecutorLike | None,
    max_memory_bytes: int | None,
    wait_seconds: float,
    reporter: Reporter,
) -> WriteResult:
    """Write shards of ElasticDL, as `convert_version` says."""
    executor = wrapped(executor)
    where = version.location if output is None else Location.of(output)
    if not dry_run:
        check_target(executor, where, version.size_bytes, reporter=reporter)
    plan, settings = prepare_reshard(
        version,
        ps_num,
        output=output,
        layout=layout,
        number=number,
        changes=changes,
        names=names,
        workers=workers,
        executor=executor,
        max_memory_bytes=max_memory_bytes,
        force=force,
        reporter=reporter,
    )
    for warning in (*plan.warnings, *settings.warnings):
        reporter.warn(warning)
    if dry_run:
        return planned_reshard(plan)
    return execute_reshard(
        plan,
        settings,
        executor=executor,
        keep_old=keep_old,
        force=force,
        purpose=purpose,
        wait_seconds=wait_seconds,
        reporter=reporter,
    )


def ranks_after(version: VersionLike, ranks: int, *, workers: int | None = None) -> int:
    """Return how many ranks a reshard in a version's own system would leave: fewer where tensors are not split."""
    version = as_version(version)
    with open_checkpoint(version) as source:
        job, system = Job.here(workers, reporter=SILENT), version.layout.system
        plan = plan_conversion(source, system, ranks, Changes(), job, number=version.number or 0)
        return plan.destination.written_ranks


def _new_version(version: Version, where: Location, system: str, number: int | None, *, in_place: bool) -> NewVersion:
    """Return what is written; RefusedError where something is in the way, UnsupportedError where nothing can be."""
    if where.local_path is None and in_place:
        raise UnsupportedError(
            "files of other systems are not replaced on object storage: old and new ones have the same names",
            path=where.url,
            hint="try: --output LOCATION",
        )
    if number is None and version.number is None and version.uuid:
        raise has_no_number(version, where)
    wanted = version.version if number is None else number
    if not in_place:
        check_outside(version, where)
    else:
        check_number(version, number)
        _check_in_place(version, system)
        return NewVersion(version.layout, wanted, "", replaces=version)
    form = replace(STEPS, system=system)
    store = open_location(where)
    if apart(form, layouts_at(store)):
        raise RefusedError(
            "has versions of ElasticDL: next to other files, its scan crashes",
            path=where.url,
            hint="write to another location",
        )
    name = base_name(version.path)
    is_file = any(file.path == version.path for file in version.files)
    if wanted != UNNUMBERED and (is_file or number is not None or number_of_directory(name) != wanted):
        name = f"step_{wanted}"
    path = store.path(name)
    is_taken = os.path.lexists(path) if where.local_path is not None else bool(store.names(name))
    if is_taken or (wanted != UNNUMBERED and wanted in step_numbers(store)):
        raise RefusedError("exists there already", path=path, hint="nothing was changed")
    return NewVersion(form, wanted, "", copies=Version(where, wanted, path, form, State.COMPLETE, None, ()))


def _check_in_place(version: Version, system: str) -> None:
    """Raise RefusedError for a version whose place no new one can take."""

    def refused(why: str) -> RefusedError:
        return RefusedError(why, path=version.path, hint="try: --output LOCATION")

    if system != version.layout.system:
        raise refused(f"a version of {system} does not take the place of one of {version.layout.system}")
    if version.is_alone:
        raise refused("a checkpoint by itself belongs to no location, and is not replaced")
    if version.is_named:
        raise refused("no number of its own tells it from others")
    if version.is_file:
        raise refused("files side by side are not replaced together")
    if version.linked:
        raise replaces_link(version.path)
    if version.extra:
        raise refused(f"the version's directory contains more than its shards ({version.extra[0]!r})")


def _warn_of_spool(plan: Conversion, target: Properties, job: Job) -> None:
    """Warn where parts of uploads wait on the local disk: those of files whose framing has checksums of all values."""
    room = PART_MEMORY_BYTES // 2
    if target.part_bytes and plan.destination.checksum and plan.size_bytes > room:
        job.reporter.warn(
            f"the parts of all uploads take up to {size(plan.size_bytes)}, more than {size(room)} of memory: the others"
            " wait on the local disk ($TMPDIR) until all checksums are known"
        )


def _planned(plan: Conversion, new: NewVersion, where: Location) -> Version:
    """Return the version as its files will be, each as a shard of its own."""
    path, files = (new.replaces or new.copies or plan.source.version).path, plan.destination.files
    sized = enumerate(files.items())
    shards = tuple(ShardFile(n, len(files), f"{path}/{file}", size, 0.0) for n, (file, size) in sized)
    return Version(where, new.number, path, new.layout, State.COMPLETE, len(files), shards)


_BARE: Final = Changes(drop_companions=True)


def _has_companions(version: Version) -> bool:
    """Say whether a version has anything to strip, from its headers; what cannot be rewritten raises its error."""
    Contents.of(version)
    with open_checkpoint(version) as checkpoint:
        return any(info.companion_of for info in checkpoint.infos.values())


def _whole_at(location: Location, reporter: Reporter) -> list[Version]:
    """Return the versions that are complete and can be read, by number; a warning names those that cannot be read."""
    versions, unreadable = looked_at(list_versions(location).versions)
    for version in versions:
        why = version.why_unreadable or unreadable.get(version.path)
        if why:  # it may be whole all the same
            reporter.warn(f"not stripped: {version.ref}: {why}")
    return sorted((v for v in versions if is_good(v, unreadable)), key=lambda v: v.version)


def strip_versions(
    locations: Sequence[LocationLike],
    after: int,
    *,
    spared: Collection[str] = (),
    dry_run: bool = False,
    failed: list[tuple[str, EdlCkptError]] | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> tuple[WriteResult, ...]:
    """Rewrite in place, without the companions of tables, the versions older than the newest `after` whole ones.

    Only complete versions that can be read are counted and rewritten; each is proved, and sealed anew. Tagged ones stay
    as they are, and those whose paths are `spared`; so do those without companions, which no result is of. One that
    cannot be replaced in its place, or cannot be read, is left with a warning. One that cannot be stripped for another
    reason does not stop the others: `failed` gets its reference and the error; without it, the first of these errors is
    raised at the end. Takes the lock of a location for one version at a time.
    Raises UsageError for `after` below 1, since the newest whole version keeps everything, and else as
    `convert_version`.
    """
    if after < 1:
        raise UsageError("the newest whole version is never stripped: 1 is the least")
    done: list[WriteResult] = []
    found: list[tuple[str, EdlCkptError]] = []
    kept = set(several(spared, "spared"))
    for where in dict.fromkeys(map(Location.of, several(locations, "locations"))):
        for version in _whole_at(where, reporter)[:-after]:
            if version.tags or version.metadata_fault or version.path in kept:
                continue
            try:
                if not _has_companions(version):
                    continue
                stripped = convert_version(
                    version,
                    changes=_BARE,
                    dry_run=dry_run,
                    purpose="prune",
                    wait_seconds=wait_seconds,
                    reporter=reporter,
                )
                done.append(stripped)
            except RefusedError as error:
                reporter.warn(f"not stripped: {error}")
            except EdlCkptError as error:  # the others are stripped all the same
                found.append((version.ref, error))
    if failed is not None:
        failed += found
    elif found:
        raise found[0][1]
    return tuple(done)
