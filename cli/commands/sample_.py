"""`edl-ckpt sample`: rows of a table chosen at random."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.commands.get_ import show_rows
from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options.common import Ref, Rows, Table, looked_at, option
from edl_ckpt.cli.terminal.output import Output


@declared(
    "sample run@100 --table user_embedding",
    "sample run@100 --table user_embedding -n 1000 --seed 7 --jsonl",
    exits=READS,
    rows=True,
)
def sample_command(
    out: Output,
    ref: Ref = None,
    table: Table = None,
    rows: Rows = 10,
    seed: Annotated[int, option("N", "Another seed chooses other rows.")] = 0,
) -> None:
    """Print rows of a table that are chosen at random.

    The choice depends on the ids and the seed alone: it is the same before and after a reshard, and in the next version
    as far as that has the same ids. The command reads all ids, and the values of the chosen rows.
    """
    from edl_ckpt.core.operations.lookup import sample_rows

    show_rows(out, sample_rows(looked_at(ref, out), table, rows, seed=seed), name="sample")
