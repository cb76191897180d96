"""The steps of a reshard in one call: check the target, survey the ids, plan the offsets, and execute the plan."""

from __future__ import annotations

from dataclasses import replace

from edl_ckpt.core.checkpoint.catalog import VersionLike, as_version
from edl_ckpt.core.checkpoint.reader import open_checkpoint, openings_by
from edl_ckpt.core.checkpoint.target import Target, free_target
from edl_ckpt.core.checkpoint.trust import check_trust
from edl_ckpt.core.checkpoint.uuids import has_no_number
from edl_ckpt.core.cluster.choice import ExecutorLike, check_shared, check_target, executor_of, wrapped
from edl_ckpt.core.commit.local import replaces_link
from edl_ckpt.core.commit.part_plan import plan_parts
from edl_ckpt.core.errors import RefusedError, UsageError
from edl_ckpt.core.format.checks import check_ps_num
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import DESIGN, FREE_FILE, Layout, parse_version_dir, writable_layout
from edl_ckpt.core.operations.reshard.execute import ReshardResult, execute_reshard
from edl_ckpt.core.operations.reshard.order import moved_by
from edl_ckpt.core.operations.reshard.plan import ReshardPlan, plan_reshard
from edl_ckpt.core.operations.reshard.settings import ReshardSettings, choose_settings, settings_for
from edl_ckpt.core.operations.reshard.survey import survey_ids, widest_row_bytes
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import base_name
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
    check_target(executor, where, version.size_bytes, parts=True, reporter=reporter)
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
        plan,
        settings,
        executor=executor,
        keep_old=keep_old,
        force=force,
        wait_seconds=wait_seconds,
        reporter=reporter,
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
    target = reshard_target(version, output=where, layout=layout, empty=empty, number=number)
    check_trust(version, force=force, reporter=reporter)
    chosen = executor_of(executor, [version], workers=workers, reporter=reporter)
    if chosen.elsewhere:
        check_shared(target.location, parts=True)
        workers = chosen.threads
    read_before = chosen.bytes_read()
    with open_checkpoint(version, workers=openings_by(chosen)) as checkpoint:
        first = choose_settings(
            widest_row_bytes(checkpoint),
            open_store(version.location).properties,
            open_store(target.location),
            workers=workers,
            max_memory_bytes=max_memory_bytes,
        )
        survey = survey_ids(
            checkpoint,
            ps_num,
            workers=first.workers,
            executor=chosen if chosen.elsewhere else None,
            piece_bytes=first.piece_bytes,
            max_memory_bytes=max_memory_bytes,
            reporter=reporter,
        )
    survey = replace(survey, bytes_read=survey.bytes_read + chosen.bytes_read() - read_before)
    plan = plan_reshard(
        survey, target, renumber=number is not None or version.layout == FREE_FILE or bool(version.uuid)
    )
    settings = settings_for(plan, workers=workers, max_memory_bytes=max_memory_bytes)
    least = open_store(target.location).properties.part_bytes
    if chosen.elsewhere and least:
        memory = None if max_memory_bytes is None else settings.part_memory_bytes
        settings = replace(
            settings, open_part_bytes=0, parts=plan_parts(moved_by(plan), chosen, least, memory_bytes=memory)
        )
    return plan, settings


def reshard_target(
    version: Version,
    *,
    output: Location | None = None,
    layout: str | None = None,
    empty: Layout | None = None,
    number: int | None = None,
) -> Target:
    """Return where a reshard of a version goes: in the version's own place without an output.

    Raises RefusedError when something is in the way, UsageError for a layout that cannot be.
    """
    wanted = version.version if number is None else number
    is_directory = parse_version_dir(base_name(version.path)) is not None
    if output is not None:
        if number is None and version.number is None:
            raise has_no_number(version, output)
        own = version.layout if is_directory else DESIGN
        return free_target(output, wanted, layout=layout, empty=empty or own)
    if layout is not None and writable_layout(layout) != version.layout:
        raise UsageError(
            f"the version has the {version.layout.name} layout, and keeps it in place",
            path=version.path,
            hint="try: --output LOCATION",
        )
    if version.uuid:
        raise RefusedError(
            "a directory named by a UUID belongs to Determined, and is not replaced",
            path=version.path,
            hint="try: --output LOCATION",
        )
    if version.linked:
        raise replaces_link(version.path)
    if not is_directory:
        raise RefusedError(
            "one file without shards cannot be resharded in place",
            path=version.path,
            hint="try: --output LOCATION",
        )
    if version.extra:
        raise RefusedError(
            f"the version's directory contains more than its shards ({version.extra[0]!r}), which would be lost",
            path=version.path,
            hint="move it away, or try: --output LOCATION",
        )
    return Target(version.location, version.layout, wanted, version.path, replaces=version)
