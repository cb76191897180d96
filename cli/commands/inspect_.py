"""`edl-ckpt inspect`: the content of a version, read from headers; with --stats also from the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options.common import Every, Ref, flag, option, show_loss
from edl_ckpt.cli.options.references import looked_at
from edl_ckpt.cli.terminal.output import Output

if TYPE_CHECKING:
    from edl_ckpt.core.operations.statistics import TensorStats


@declared("inspect run@100", "inspect run@100 --table user_embedding --stats", exits=READS, rows=True)
def inspect_command(
    out: Output,
    ref: Ref = None,
    shard: Annotated[int | None, option("I", "Show only this shard.")] = None,
    table: Annotated[str | None, option("NAME", "Show only this table.")] = None,
    variable: Annotated[str | None, option("NAME", "Show only this dense variable.")] = None,
    stats: Annotated[bool, flag("Read the values, and show range, mean, norm, zeros and NaN.")] = False,
    every: Every = False,
) -> None:
    """Show a version's shards, variables and tables.

    Without --stats the command reads headers only.
    """
    import_numpy()
    from edl_ckpt.cli.render import inspect as render
    from edl_ckpt.core.operations.summary import select, summarize
    from edl_ckpt.core.reading.loss import loss_of
    from edl_ckpt.core.reading.reader import open_checkpoint

    version = looked_at(ref, out)
    with open_checkpoint(version, partial=True) as checkpoint:
        loss = loss_of(checkpoint)
        with loss.explains(shard):
            summary = select(summarize(version, checkpoint.shards), shard=shard, table=table, variable=variable)
        names, tables = [v.name for v in summary.variables], [t.name for t in summary.tables]
        found: Sequence[TensorStats] = ()
        if stats:
            from edl_ckpt.core.operations.statistics import tensor_stats

            found = tensor_stats(checkpoint, variables=names, tables=tables, reporter=out)
        out.detail(f"read {checkpoint.bytes_read} bytes of {version.size_bytes}")
    out.show(
        lambda: render.document(summary, found, loss),
        render.human(summary, found, every=out.shows_all(every)),
        lambda: render.rows(summary, found),
    )
    told = {lost.code for lost in loss.shards} | {"missing-file"}
    for shard_index, problem in ((s, p) for s in checkpoint.shards for p in s.problems if p.code not in told):
        out.warn(f"shard {shard_index.file.ps_id}, {problem.subject}: {problem.message} ({problem.code})")
    if version.fault is not None:
        raise version.fault.error()
    asked = shard in {None, *(lost.shard for lost in loss.shards)}
    show_loss(out, loss, fails=asked and (variable is None or table is not None))
