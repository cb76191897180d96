"""`edl-ckpt head`: the first rows of a table."""

from __future__ import annotations

from edl_ckpt.cli.commands.get_ import show_rows
from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options.common import Ref, Rows, Table, looked_at, show_loss
from edl_ckpt.cli.terminal.output import Output


@declared(
    "head run@100 --table user_embedding", "head run@100 --table user_embedding -n 1000 --csv", exits=READS, rows=True
)
def head_command(
    out: Output,
    ref: Ref = None,
    table: Table = None,
    rows: Rows = 10,
) -> None:
    """Print the first rows of a table.

    It reads the first shard, in stored order.
    """
    from edl_ckpt.core.operations.lookup import first_rows

    found = first_rows(looked_at(ref, out), table, rows)
    show_rows(out, found, name="head")
    show_loss(out, found.loss)
