"""What the commands share that write a version: `reshard`, `edit` and `import` of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.cluster import Working, working
from edl_ckpt.cli.options.resuming import half_done, resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_size
from edl_ckpt.core.base.choices import LayoutName

if TYPE_CHECKING:
    from edl_ckpt.core.converting.changes import Changes
    from edl_ckpt.core.converting.name_map import NameMap
    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.storage.location import Location


def show_converted(
    out: Output,
    name: str,
    convert: Callable[[Working], WriteResult],
    where: Location,
    *,
    cluster: str | None,
    workers: int | None,
) -> None:
    """Convert a version into a location as the command of this name does, and show the result.

    `convert` is given who does the work: threads, or the workers of a cluster.
    """
    from edl_ckpt.cli.render import written

    writing = working(out, cluster, workers, target=where)
    with writing as work, resumable(out, partial(half_done, where)):
        result = convert(work)
    out.show(lambda: written.written_document(name, result), written.written_human(result))


def show_shards(
    out: Output,
    name: str,
    version: Version,
    ps: int,
    *,
    output: Location | None,
    number: int | None = None,
    layout: LayoutName | None = None,
    changes: Changes | None = None,
    names: NameMap | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    max_memory: str | None = None,
    keep_old: bool = False,
    dry_run: bool = False,
    force: bool = False,
    lock_wait: str = "10s",
) -> None:
    """Write shards of ElasticDL as the command of this name does, or plan them, and show the result.

    Without an `output` they replace the version. `number` is that of the new version, by default its own.
    """
    import_numpy()
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.operations.reshard.execute import execute_reshard, prepare_reshard

    locking = o.locking(out, lock_wait)
    target, size_bytes = output or version.location, None if dry_run else version.size_bytes
    writing = working(out, cluster, workers, target=target, size_bytes=size_bytes)
    with writing as work, resumable(out, partial(half_done, target)):
        plan, settings = prepare_reshard(
            version,
            ps,
            output=output,
            number=number,
            layout=o.asked_layout(out, layout, output),
            changes=changes,
            names=names,
            max_memory_bytes=parse_size(max_memory) if max_memory else None,
            force=force,
            reporter=out,
            **work,
        )
        out.warn(*plan.warnings, *settings.warnings)
        if dry_run:
            planned = written.planned_document(name, plan, settings, work)
            out.show(lambda: planned, written.planned_human(plan, settings, work))
            return
        result = execute_reshard(
            plan, settings, executor=work["executor"], keep_old=keep_old, force=force, purpose=name, **locking
        )
    out.show(lambda: written.written_document(name, result), written.written_human(result))
