"""`edl-ckpt reshard`: rewrites a version for another number of parameter servers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.cluster import Cluster, cluster_of, workers_of, working
from edl_ckpt.cli.options.hints import check_place, half_done, resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import parse_size
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.storage.location import Location


@declared("reshard run --ps 8 --dry-run", "reshard run@100 --ps 8 --output s3://models/run", exits=WRITES)
def reshard_command(
    out: Output,
    ref: o.Ref = None,
    ps: Annotated[
        int | None,
        o.option("N", "The new number of parameter servers, or ranks.", "--ps", "--ranks", least=1, most=65535),
    ] = None,
    output: Annotated[
        str | None, o.option("LOCATION", "Write to this location. Default: replace the version in place.")
    ] = None,
    dry_run: o.DryRun = False,
    workers: o.Workers = None,
    cluster: Cluster = None,
    max_memory: Annotated[str | None, o.option("SIZE", "Limit the memory of all batches together.")] = None,
    layout: Annotated[
        str | None,
        o.option(
            "design|elasticdl",
            "Names of directories and files. Default: those at the output, else those of the version.",
        ),
    ] = None,
    max_shard_size: Annotated[str | None, o.option("SIZE", "safetensors: files of at most SIZE.")] = None,
    if_needed: Annotated[bool, o.flag("Do nothing when the version has N shards already.", "--if-needed")] = False,
    keep_old: Annotated[bool, o.flag("Keep the old shards in the trash.", "--keep-old")] = False,
    force: o.ForceSeal = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Change a version's number of servers or ranks.

    The new shards become visible only after their fingerprint has proved that no value was lost. A version of another
    system than ElasticDL stays one of that system.
    """
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.base.memory import keep_freed_memory
    from edl_ckpt.core.operations.reshard.execute import execute_reshard, prepare_reshard
    from edl_ckpt.core.operations.reshard.needed import find_resharded

    keep_freed_memory()
    where = _where(output, out)
    version = o.resolve_ref(ref, out, to_change=output is None, aloud=True)
    how = o.locking(out, lock_wait)
    if if_needed and ps is not None:
        made = find_resharded(version, ps, output=where, layout=layout, force=force, reporter=out)
        if made is not None:
            out.show(lambda: written.reshard_document(made, dry_run=dry_run), written.reshard_human(made))
            return
    if not version.is_elasticdl:
        if cluster or max_memory or layout:
            raise UsageError("--cluster, --max-memory and --layout are for versions of ElasticDL")
        options = {"keep_old": keep_old, "dry_run": dry_run, "force": force, "workers": workers}
        _of_system(out, version, ps, where, max_shard_size, {**options, **how})
        return
    if ps is None or max_shard_size:
        raise UsageError("--ps N is missing", hint="--max-shard-size is for safetensors")
    target, size_bytes = where or version.location, None if dry_run else version.size_bytes
    writing = working(out, cluster, workers, target=target, size_bytes=size_bytes)
    with writing as work, resumable(out, partial(half_done, target)):
        plan, settings = prepare_reshard(
            version,
            ps,
            output=where,
            layout=o.asked_layout(out, layout, where),
            max_memory_bytes=parse_size(max_memory) if max_memory else None,
            force=force,
            reporter=out,
            **work,
        )
        out.warn(*plan.warnings, *settings.warnings)
        if dry_run:
            planned = written.plan_reshard_document(plan, settings, cluster_of(work))
            out.show(lambda: planned, written.plan_reshard_human(plan, settings, workers_of(work)))
            return
        result = execute_reshard(plan, settings, executor=work["executor"], keep_old=keep_old, force=force, **how)
    out.show(lambda: written.reshard_document(result), written.reshard_human(result))


def _of_system(
    out: Output,
    version: Version,
    ranks: int | None,
    where: Location | None,
    max_shard_size: str | None,
    options: Mapping[str, Any],
) -> None:
    """Reshard a version of another system; UsageError unless what says the number of files suits it."""
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.operations.convert import convert_version

    is_set = version.layout.system == "safetensors"
    if is_set and (ranks is not None or not max_shard_size):
        raise UsageError("files of safetensors have no ranks", hint="say how large they may be: --max-shard-size SIZE")
    if not is_set and (ranks is None or max_shard_size):
        raise UsageError("--ranks N is missing", hint="--max-shard-size is for safetensors")
    most = parse_size(max_shard_size) if max_shard_size else None
    with resumable(out, partial(half_done, where or version.location)):
        result = convert_version(version, ranks, output=where, most_file_bytes=most, **options)
    out.show(lambda: written.converted_document("reshard", result), written.converted_human(result))


def _where(output: str | None, out: Output) -> Location | None:
    """Return the location to write to, None for in place."""
    if not output:
        return None
    check_place(output, "--output", "the result has the number of the version")
    return out.location(output)
