"""`edl-ckpt reshard`: rewrites a version for another number of parameter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.commands.writing import show_converted, show_shards
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import references
from edl_ckpt.cli.options.cluster import Cluster, Working
from edl_ckpt.cli.options.named_versions import result_location
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_size
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.storage.location import Location


@declared("reshard run --ranks 8 --dry-run", "reshard run@100 --ranks 8 --output s3://lake/run", exits=WRITES)
def reshard_command(
    out: Output,
    ref: o.Ref = None,
    ps: Annotated[
        int | None,
        o.option("N", "The new number of ranks, or parameter servers.", "--ranks", "--ps", least=1, most=65535),
    ] = None,
    output: Annotated[
        str | None, o.option("LOCATION", "Write to this location. Default: replace the version in place.")
    ] = None,
    dry_run: o.DryRun = False,
    workers: o.Workers = None,
    cluster: Cluster = None,
    max_memory: Annotated[str | None, o.option("SIZE", "Limit the memory of all batches together.")] = None,
    layout: Annotated[
        LayoutName | None,
        o.option(
            "design|elasticdl",
            "Names of directories and files. Default: those at the output, else those of the version.",
        ),
    ] = None,
    max_shard_size: Annotated[str | None, o.option("SIZE", "safetensors: files of at most SIZE.")] = None,
    if_needed: Annotated[
        bool, o.flag("Do nothing if the output already has the version with N shards.", "--if-needed")
    ] = False,
    keep_old: Annotated[bool, o.flag("Keep the old shards in the trash.", "--keep-old")] = False,
    force: o.ForceSeal = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Change a version's number of ranks or servers.

    torch DCP and safetensors load with any number of ranks, so they need it only to split or join files. A version that
    has N shards already stays as it is, unless --force rewrites it. The new shards become visible only after their
    fingerprint has proved that no value was lost. A version keeps its system. A killed reshard of a large version
    resumes when it is run again.
    """
    from edl_ckpt.core.base.freed_memory import keep_freed_memory

    if ps is None and not max_shard_size:
        raise UsageError("--ranks N is missing", hint="usage: edl-ckpt reshard [REF] --ranks N [OPTIONS]")
    keep_freed_memory()
    where = result_location(output, out) if output else None
    version = _chosen_version(out, ref, max_shard_size, in_place=output is None)
    locking = o.locking(out, lock_wait)
    is_there = False
    if ps is not None and (if_needed or (where is None and not force)):
        is_there = _is_there(out, version, ps, where, layout, dry_run=dry_run, force=force)
    if is_there:
        return
    if version.layout.system == "dcp":
        out.say("torch loads a DCP checkpoint with any number of ranks: no job needs this reshard")
    if not version.is_elasticdl:
        if max_memory or layout:
            raise UsageError("--max-memory and --layout are for versions of ElasticDL")
        from edl_ckpt.core.operations.convert import convert_version

        most = _most_file_bytes(version, ps, max_shard_size)

        def convert(work: Working) -> WriteResult:
            return convert_version(
                version,
                ps,
                output=where,
                most_file_bytes=most,
                keep_old=keep_old,
                dry_run=dry_run,
                force=force,
                **work,
                **locking,
            )

        show_converted(out, "reshard", convert, where or version.location, cluster=cluster, workers=workers)
        return
    if ps is None:  # --max-shard-size alone is refused above: shards of ElasticDL have a number
        raise UsageError("--ranks N is missing")
    show_shards(
        out,
        "reshard",
        version,
        ps,
        output=where,
        layout=layout,
        cluster=cluster,
        workers=workers,
        max_memory=max_memory,
        keep_old=keep_old,
        dry_run=dry_run,
        force=force,
        lock_wait=lock_wait,
    )


def _is_there(
    out: Output, version: Version, ps: int, where: Location | None, layout: o.Layout, *, dry_run: bool, force: bool
) -> bool:
    """Say whether the result is there already, and show it then."""
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.operations.reshard.found import find_resharded

    if not version.is_elasticdl and version.ps_num != ps:
        from edl_ckpt.core.operations.convert import ranks_after

        ps = ranks_after(version, ps)  # where less is split, that is what the files will say
    made = find_resharded(version, ps, output=where, layout=layout, force=force, reporter=out)
    if made is not None:
        out.show(lambda: written.written_document("reshard", made, dry_run=dry_run), written.written_human(made))
    return made is not None


def _chosen_version(out: Output, ref: str | None, max_shard_size: str | None, *, in_place: bool) -> Version:
    """Return the version that is written anew; with a size, UsageError unless it is of safetensors.

    In place that is looked at first: it is the reason to name, before those for which the place cannot be changed.
    """
    if max_shard_size and in_place:
        _check_safetensors(references.resolve_ref(ref, out), max_shard_size)
    version = references.resolve_ref(ref, out, to_change=in_place, aloud=True)
    if max_shard_size and not in_place:
        _check_safetensors(version, max_shard_size)
    return version


def _check_safetensors(version: Version, max_shard_size: str) -> None:
    """Raise UsageError for a version of a system without such files; its hint makes files of safetensors of it."""
    if version.layout.system == "safetensors":
        return
    if version.fault is not None:  # what it is cannot be said now
        raise version.fault.error()
    way = command("export", version.ref, "OUT.safetensors", "--max-shard-size", max_shard_size)
    raise UsageError("--max-shard-size is for safetensors", hint=f"try: {way}")


def _most_file_bytes(version: Version, ranks: int | None, max_shard_size: str | None) -> int | None:
    """Return the most bytes of a file of another system; UsageError unless what says the number of files suits it."""
    is_set = version.layout.system == "safetensors"
    if is_set != bool(max_shard_size) or is_set != (ranks is None):
        if version.fault is not None:  # what it is cannot be said now
            raise version.fault.error()
        fault = "files of safetensors have no ranks" if is_set else "--ranks N is missing"
        raise UsageError(fault, hint="expected --max-shard-size SIZE" if is_set else None)
    return parse_size(max_shard_size) if max_shard_size else None
