"""The steps of a reshard, one by one and in one call: survey the ids, plan the offsets, execute the plan.

A survey reads headers and ids, and no value. Under the lock, values move once, are proved, and become visible: the
fingerprint of the values that were read must be that of the values that are read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import (
    EdlCkptError,
    LockedError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.parallel import Executor, Threads, default_workers
from edl_ckpt.core.base.progress import SILENT, WARNINGS, Reporter, expect
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.listing import VersionLike, as_version, check_listed
from edl_ckpt.core.catalog.target import Target, check_number, check_outside, free_target
from edl_ckpt.core.catalog.uuids import has_no_number
from edl_ckpt.core.cluster.choice import ExecutorLike, check_target, job_of, wrapped
from edl_ckpt.core.commit.interface import NewVersion
from edl_ckpt.core.commit.publish.disk import replaces_link
from edl_ckpt.core.converting.changes import Changes, Outgoing, outgoing
from edl_ckpt.core.converting.destinations.elasticdl import ShardsHold
from edl_ckpt.core.converting.destinations.interface import Given
from edl_ckpt.core.converting.name_map import NameMap, with_tables
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.plan import ShardPlan, lay_out_survey
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.settings import ReshardSettings, choose_settings, settings_for
from edl_ckpt.core.moving.source_proof import VersionProof
from edl_ckpt.core.moving.survey import SourceSurvey, survey_source
from edl_ckpt.core.moving.version_input import VersionInput
from edl_ckpt.core.moving.write import ShardPlace, planned_result, write_version
from edl_ckpt.core.proof.fingerprint import value_bytes
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.pieces import total_id_bytes
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.elasticdl.target import DESIGN, check_ps_num, writable_layout
from edl_ckpt.core.state.annotate import MetadataCopies
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import Location, LocationLike, open_store
from edl_ckpt.core.storage.interface import RangeReader

_DOING: Final = {"reshard": "resharding", "edit": "editing", "import": "importing"}
"""What is done, by its purpose, for a line of progress."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Survey(SourceSurvey):
    """A version, counted for `to_ps` parameter servers. A plan needs nothing else of it."""

    source: Version
    out: Outgoing | None = None
    """What goes out of it; None for all of it, as it is."""
    names: NameMap = field(default_factory=NameMap)
    """The tables that variables of it are."""
    kept: Mapping[str, RangeReader] = field(default_factory=dict)
    """Readers that have the ids of far shards on the local disk: the execution takes them over."""

    def __repr__(self) -> str:
        return describe(
            "Survey",
            escaped(self.source.ref),
            f"for {counted(self.to_ps, 'server')}",
            counted(len(self.variables), "variable"),
            counted(len(self.tables), "table"),
        )


def survey_ids(
    checkpoint: Checkpoint,
    ps_num: int,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    piece_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    changes: Changes | None = None,
    names: NameMap | None = None,
    reporter: Reporter = WARNINGS,
) -> Survey:
    """Read all ids of a checkpoint and count those of each of `ps_num` servers; no value is read.

    `changes` are made on the way, and `names` are a map of names, before them. `piece_bytes` is how many bytes of ids
    are one task, here and when the rows are moved. `max_memory_bytes` bounds the ids that are sorted to find
    duplicates. Raises UsageError for a number of servers that cannot be, CorruptError for ids that cannot be decoded,
    are not as many as rows, or that a table has twice.
    """
    workers = default_workers(remote=checkpoint.is_far) if workers is None else workers
    job = Job(executor or Threads(workers), workers, max_memory_bytes, reporter)
    kept = checkpoint.keep_ids(job)
    names, changes = names or NameMap(), changes or Changes()
    changes = replace(changes, rename=(*names.rename.items(), *changes.rename))
    number = checkpoint.shards[0].version if checkpoint.shards else 0
    opened = with_tables(checkpoint, names) if names.tables else checkpoint
    given = Given(opened, outgoing(opened, changes), ps_num, number)
    check_ps_num(ps_num)
    out = ShardsHold(given).out
    out.check_some(checkpoint.version.ref)
    expect(reporter, total_id_bytes(checkpoint) + 2 * value_bytes(checkpoint))  # they are moved, and proved
    counted_ids = survey_source(VersionInput(opened, out), ps_num, number=number, job=job, piece_bytes=piece_bytes)
    facts = {fact.name: getattr(counted_ids, fact.name) for fact in fields(SourceSurvey)}
    if changes != Changes():  # what was asked for is no surprise
        facts["warns_of"] = tuple(one for one in counted_ids.left_out if one.lacks_place)
    return Survey(source=checkpoint.version, kept=kept, out=out, names=names, **facts)


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan(ShardPlan):
    """All that a reshard will write, and where."""

    survey: Survey

    @property
    def ref(self) -> str:
        """Return the reference of the version that is read."""
        return self.survey.source.ref

    @property
    def source_ref(self) -> str:
        """Return the same."""
        return self.ref

    @property
    def from_ps(self) -> int:
        """Return the number of parameter servers of the source."""
        return self.survey.source.ps_num or 0

    def __repr__(self) -> str:
        *facts, directory = self._facts()
        return describe("ReshardPlan", escaped(self.ref), *facts, f"to {escaped(directory)}")

    def _facts(self) -> tuple[str, str, str]:
        return f"{self.from_ps} to {counted(self.to_ps, 'shard')}", counted(self.rows, "row"), self.target.directory

    def _repr_html_(self) -> str:
        rows = ((str(k), Bytes(shard.size_bytes), shard.rows) for k, shard in enumerate(self.shards))
        warnings = ((warning,) for warning in self.warnings)
        tables = (
            table(("shard", "size", "rows"), rows, len(self.shards), "shard"),
            table(("warning",), warnings, len(self.warnings), "warning"),
        )
        return card("ReshardPlan", self.ref, self._facts(), tables)


def plan_reshard(survey: Survey, target: Target, *, renumber: bool = False) -> ReshardPlan:
    """Return the plan to write a surveyed version to a target; nothing is read and nothing is written.

    With `renumber` the shards contain the number of the target, else that of the source.
    """
    survey = replace(survey, number=target.number) if renumber else survey
    return ReshardPlan(target, *lay_out_survey(survey, target))


def planned_reshard(plan: ReshardPlan) -> WriteResult:
    """Return what a dry run answers: nothing was written."""
    target = plan.target
    new = NewVersion(target.layout, target.number, "reshard")
    return planned_result(plan, target.location, new, bytes_read=plan.survey.bytes_read)


def execute_reshard(
    plan: ReshardPlan,
    settings: ReshardSettings | None = None,
    *,
    executor: ExecutorLike | None = None,
    keep_old: bool = False,
    force: bool = False,
    purpose: str = "reshard",
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> WriteResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `settings` are those of `settings_for(plan)` by default. `keep_old` leaves the old shards of an in-place reshard in
    the trash. Elsewhere the version's metadata (metrics, tags, note) is copied with it. Raises LockedError when another
    command holds the lock for longer than `wait_seconds`, or when the source changed since it was surveyed;
    NoSpaceError, before anything is written, when there is no room; EdlCkptError when the proof fails; CorruptError
    when the source has a seal that it does not match. `force` goes on then, and the new seal records it.
    """
    if keep_old and not plan.target.store.properties.trash:
        raise UnsupportedError(
            "this storage has no rename, so no trash for the old shards", path=plan.target.location.url
        )
    source, target = plan.survey.source, plan.target
    job = job_of(executor, [source], target=target.location, reporter=reporter)
    copies = MetadataCopies(target.store, reporter=reporter)
    is_described = not target.in_place and target.number == source.key_of_copies
    contents = Contents.of(source) if target.in_place else None
    if contents is not None:
        contents.check_only(source.sizes, "move it away, or try: --output LOCATION")
    settings = settings or settings_for(plan)
    job = job.limited(settings.workers)
    new = NewVersion(
        target.layout,
        target.number,
        purpose,
        replaces=target.replaces,
        keep_old=keep_old,
        contents=contents,
        memory_bytes=settings.part_memory_bytes,
        reporter=reporter,
    )
    return write_version(
        plan,
        ShardPlace(target, new, partial(copies.copy, source) if is_described else None),
        settings,
        _opened(plan, job, force=force),
        job,
        doing=_DOING.get(purpose, "writing"),
        bytes_read=plan.survey.bytes_read,
        wait_seconds=wait_seconds,
    )


@contextmanager
def _opened(plan: ReshardPlan, job: Job, *, force: bool) -> Iterator[VersionInput]:
    """Open the source of a plan; LockedError when a file of it is not the one that was surveyed."""
    source = plan.survey.source
    if plan.target.in_place:
        check_listed(source, "the version has changed since the plan was made; try again")
    trust = check_trust(source, force=force, reporter=SILENT)  # the plan has warned
    trust.reporter = job.reporter
    with open_checkpoint(source, workers=job.executor.openings) as checkpoint:
        checkpoint.check_unchanged()
        for shard in checkpoint.shards:
            if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
                raise LockedError("the shard has changed since the plan was made", path=shard.file.path)
        sums = checkpoint.watch()
        checkpoint.take_ids(plan.survey.kept)
        names, out = plan.survey.names, plan.survey.out
        assert out is not None  # noqa: S101 - a survey of files has found it
        going = with_tables(checkpoint, names) if names.tables else checkpoint
        proof = VersionProof(going, out, trust, sums)
        proof.confirm_first(job)
        yield VersionInput(going, out, proof)


def reshard_version(
    version: VersionLike,
    ps_num: int,
    *,
    output: LocationLike | None = None,
    layout: LayoutName | None = None,
    empty: Layout | None = None,
    number: int | None = None,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    max_memory_bytes: int | None = None,
    keep_old: bool = False,
    force: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> WriteResult:
    """Write a version for `ps_num` servers: `prepare_reshard`, then `execute_reshard`; their errors are raised.

    The reporter is warned of what the plan and its settings warn of.

    >>> result = reshard_version("run@200", 3, output="run-3")
    >>> [shard.rows for shard in result.shards]
    [4, 3, 3]
    """
    version, executor = as_version(version), wrapped(executor)
    where = version.location if output is None else Location.of(output)
    check_target(executor, where, version.size_bytes, reporter=reporter)
    plan, settings = prepare_reshard(
        version,
        ps_num,
        output=output,
        layout=layout,
        empty=empty,
        number=number,
        workers=workers,
        executor=executor,
        max_memory_bytes=max_memory_bytes,
        force=force,
        reporter=reporter,
    )
    for warning in (*plan.warnings, *settings.warnings):
        reporter.warn(warning)
    return execute_reshard(
        plan, settings, executor=executor, keep_old=keep_old, force=force, wait_seconds=wait_seconds, reporter=reporter
    )


def prepare_reshard(
    version: VersionLike,
    ps_num: int,
    *,
    output: LocationLike | None = None,
    layout: LayoutName | None = None,
    empty: Layout | None = None,
    number: int | None = None,
    changes: Changes | None = None,
    names: NameMap | None = None,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    max_memory_bytes: int | None = None,
    force: bool = False,
    reporter: Reporter = WARNINGS,
) -> tuple[ReshardPlan, ReshardSettings]:
    """Read the headers and ids of a version; return the plan to write it for `ps_num` servers, and its settings.

    Nothing is written. Without `output` (a checkpoint_dir) the version is replaced in place. `layout` is 'design' or
    'elasticdl', by default the one at the output, and at an empty output `empty`, by default the version's own.
    `number` is the version it becomes, by default the number it has. `changes` are made on the way, and `names` are a
    map of names, before them. `max_memory_bytes` bounds the batches of all
    workers together. Raises what `open_checkpoint` raises, UsageError for bounds that cannot be met, RefusedError for
    a target that exists, or an output with several layouts, and what `check_trust` raises unless `force` is set.
    """
    version = as_version(version)
    check_ps_num(ps_num)
    where = None if output is None else Location.of(output)
    target = _target_of(version, where, layout, empty, number)
    check_trust(version, force=force, reporter=reporter)
    chosen = job_of(executor, [version], workers=workers, target=target.location, reporter=reporter).executor
    workers = chosen.threads
    with open_checkpoint(version, workers=chosen.openings) as checkpoint:
        first = choose_settings(
            max((table.row_bytes for shard in checkpoint.shards for table in shard.tables), default=0),
            target.store.properties,
            round_trips=checkpoint.is_far,
            workers=workers,
            max_memory_bytes=max_memory_bytes,
        )
        survey = survey_ids(
            checkpoint,
            ps_num,
            workers=first.workers,
            executor=chosen.limited(first.workers),
            piece_bytes=first.piece_bytes,
            max_memory_bytes=max_memory_bytes,
            changes=changes,
            names=names,
            reporter=reporter,
        )
    renumber = number is not None or version.is_alone or bool(version.uuid)
    plan = plan_reshard(survey, target, renumber=renumber)
    return plan, settings_for(plan, workers=workers, max_memory_bytes=max_memory_bytes, executor=chosen)


def _target_of(
    version: Version, output: Location | None, layout: LayoutName | None, empty: Layout | None, number: int | None
) -> Target:
    """Return where a reshard of a version goes: in the version's own place without an output.

    Raises RefusedError when something is in the way, UsageError for a layout that cannot be.
    """
    wanted = version.version if number is None else number
    is_directory = version.layout.is_numbered and version.layout.system == DESIGN.system
    if output is not None:
        if number is None and version.number is None:
            raise has_no_number(version, output)
        own = version.layout if is_directory else DESIGN
        check_outside(version, output)
        return free_target(output, wanted, layout=layout, empty=empty or own)

    check_number(version, number)
    if not version.is_elasticdl:
        raise UnsupportedError(
            f"versions of {version.layout.system} are read, and not written",
            path=version.path,
            hint="try: --output LOCATION, which writes ElasticDL's shards",
        )

    def refused(kind: type[EdlCkptError], why: str) -> EdlCkptError:
        return kind(why, path=version.path, hint="try: --output LOCATION")

    if layout is not None and writable_layout(layout) != version.layout:
        raise refused(UsageError, f"the version has the {version.layout.name} layout, and keeps it in place")
    if version.uuid:
        raise refused(RefusedError, "a directory named by a UUID belongs to Determined, and is not replaced")
    if version.linked:
        raise replaces_link(version.path)
    if not is_directory:
        raise refused(RefusedError, "one file without shards cannot be resharded in place")
    if version.extra:
        raise RefusedError(
            f"the version's directory contains more than its shards ({version.extra[0]!r}), which would be lost",
            path=version.path,
            hint="move it away, or try: --output LOCATION",
        )
    return Target(open_store(version.location), version.layout, wanted, version.path, version)
