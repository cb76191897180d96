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
    seed: Annotated[int, option("N", "The seed of the choice.")] = 0,
) -> None:
    """Print rows of a table that are chosen at random.

    The choice depends only on the ids and the seed, so it is the same after a reshard, and for the same ids in the next
    version. The command reads all ids, and the values of the chosen rows.
    """
    from edl_ckpt.core.operations.lookup import sample_rows

    show_rows(out, sample_rows(looked_at(ref, out), table, rows, seed=seed), name="sample")
