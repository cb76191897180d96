"""The steps of a reshard in one call: check the target, survey the ids, plan the offsets, and execute the plan."""

from __future__ import annotations

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.catalog.target import Target, free_target
from edl_ckpt.core.catalog.uuids import has_no_number
from edl_ckpt.core.cluster.choice import ExecutorLike, check_target, job_of, wrapped
from edl_ckpt.core.commit.publish.disk import replaces_link
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.settings import ReshardSettings, choose_settings, settings_for
from edl_ckpt.core.operations.reshard.execute import ReshardResult, execute_reshard
from edl_ckpt.core.operations.reshard.plan import ReshardPlan, plan_reshard, survey_ids
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.sources.elasticdl.target import DESIGN, check_ps_num, writable_layout
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import LocationLike, open_store
from edl_ckpt.core.storage.location import Location


def reshard_version(
    version: VersionLike,
    ps_num: int,
    *,
    output: LocationLike | None = None,
    layout: str | None = None,
    empty: Layout | None = None,
    number: int | None = None,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    max_memory_bytes: int | None = None,
    keep_old: bool = False,
    force: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ReshardResult:
    """Write a version for `ps_num` servers: `prepare_reshard`, then `execute_reshard`; their errors are raised.

    The reporter is warned of what the plan and its settings warn of.
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
    layout: str | None = None,
    empty: Layout | None = None,
    number: int | None = None,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    max_memory_bytes: int | None = None,
    force: bool = False,
    reporter: Reporter = WARNINGS,
) -> tuple[ReshardPlan, ReshardSettings]:
    """Read the headers and ids of a version; return the plan to write it for `ps_num` servers, and its settings.

    Nothing is written. Without `output` (a checkpoint_dir) the version is replaced in place. `layout` is 'design' or
    'elasticdl', by default the one at the output, and at an empty output `empty`, by default the version's own.
    `number` is the version it becomes, by default the number it has. `max_memory_bytes` bounds the batches of all
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
            reporter=reporter,
        )
    renumber = number is not None or version.is_alone or bool(version.uuid)
    plan = plan_reshard(survey, target, renumber=renumber)
    return plan, settings_for(plan, workers=workers, max_memory_bytes=max_memory_bytes, executor=chosen)


def _target_of(
    version: Version, output: Location | None, layout: str | None, empty: Layout | None, number: int | None
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
        return free_target(output, wanted, layout=layout, empty=empty or own)

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
