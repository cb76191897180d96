"""`edl-ckpt edit`: writes a changed copy of a version, and leaves the version as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.commands.writing import show_converted, show_shards
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options import arguments, references
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.cluster import Cluster, Working
from edl_ckpt.cli.options.named_versions import result_location
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.moving.result import WriteResult


@declared(
    "edit run --output s --drop user_embedding",
    "edit run --output s --cast '*_embedding=float16'",
    exits=WRITES,
)
def edit_command(
    out: Output,
    ref: o.Ref = None,
    output: Annotated[str | None, o.option("LOCATION", "Write the result to this location (required).")] = None,
    drop: Annotated[
        list[str] | None, o.option("GLOB", "Leave out tables and variables with matching names; may be repeated.")
    ] = None,
    drop_companions: Annotated[bool, o.flag("Drop optimizer state and counters.", "--drop-companions")] = False,
    drop_rows: Annotated[
        list[str] | None,
        o.option("WHERE", "Leave out rows: 'TABLE where freqs < 3 and versions < 100000'; may be repeated."),
    ] = None,
    cast: Annotated[
        list[str] | None, o.option("GLOB=DTYPE", "Convert floats to another type; may be repeated.")
    ] = None,
    rename: Annotated[
        list[str] | None, o.option("OLD=NEW", "Rename; * in NEW is the text that * in OLD matches; may be repeated.")
    ] = None,
    resize: Annotated[
        list[str] | None, o.option("TABLE=N", "Cut or grow a matrix to N rows, with zeros; may be repeated.")
    ] = None,
    dry_run: o.DryRun = False,
    workers: o.Workers = None,
    cluster: Cluster = None,
    max_memory: Annotated[str | None, o.option("SIZE", "Limit the memory of all batches together.")] = None,
    force: o.ForceSeal = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Write a changed copy of a version.

    The result has the system, the number and as many shards as the version. The report gives the reason for each part
    that was left out; a fingerprint proves the rest. A killed edit of a large version resumes when it is run again.
    """
    import_numpy()
    from edl_ckpt.core.base.freed_memory import keep_freed_memory
    from edl_ckpt.core.converting.changes import Changes
    from edl_ckpt.core.operations.convert import convert_version

    if not output:
        raise UsageError("--output is missing", hint="an edit never changes a version; name a LOCATION for the result")
    target = result_location(output, out)
    changes = Changes(
        drop=tuple(drop or ()),
        drop_companions=drop_companions,
        rows=tuple(drop_rows or ()),
        cast=tuple(arguments.pair_of(word, "--cast", "GLOB=DTYPE") for word in cast or ()),
        rename=tuple(arguments.pair_of(word, "--rename", "OLD=NEW") for word in rename or ()),
        resize=tuple(_size(word) for word in resize or ()),
    )
    if changes == Changes():
        raise UsageError("nothing is to be changed", hint="see `edl-ckpt edit --help`; `edl-ckpt copy` makes a copy")
    keep_freed_memory()
    version = references.resolve_ref(ref, out)

    if version.is_elasticdl:
        show_shards(
            out,
            "edit",
            version,
            version.ps_num or 1,
            output=target,
            changes=changes,
            cluster=cluster,
            workers=workers,
            max_memory=max_memory,
            dry_run=dry_run,
            force=force,
            lock_wait=lock_wait,
        )
        return
    if max_memory:
        raise UsageError("--max-memory is for versions of ElasticDL")

    def edit(work: Working) -> WriteResult:
        return convert_version(
            version,
            output=target,
            changes=changes,
            purpose="edit",
            dry_run=dry_run,
            force=force,
            **work,
            **o.locking(out, lock_wait),
        )

    show_converted(out, "edit", edit, target, cluster=cluster, workers=workers)


def _size(word: str) -> tuple[str, int]:
    name, rows = arguments.pair_of(word, "--resize", "TABLE=N")
    if not (rows.isascii() and rows.isdigit() and len(rows) < 16 and int(rows)):
        raise UsageError(f"--resize expects a number of rows, got {rows!r}", hint="expected TABLE=N")
    return name, int(rows)
