"""`edl-ckpt ids` prints the ids of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options.common import Ref, Table, option, show_loss
from edl_ckpt.cli.options.references import looked_at
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.output import Output

if TYPE_CHECKING:
    from edl_ckpt.core.kernel.bulk import I64


@declared("ids run@100 --table user_embedding -n 100", "ids run@100 --table user_embedding --json", exits=READS)
def ids_command(
    out: Output,
    ref: Ref = None,
    table: Table = None,
    rows: Annotated[int | None, option("N", "Print at most N ids.", "-n", least=1)] = None,
) -> None:
    """Print the ids of a table, one on each line.

    The ids come in stored order, so memory does not depend on their number.
    `get --ids-file` reads such a list.
    """
    from edl_ckpt.core.operations.lookup.rows import ids_of, open_table

    version = looked_at(ref, out)
    with open_table(version, table, partial=True) as (checkpoint, name, loss):
        out.streams = True
        ids = _at_most(ids_of(checkpoint, name), rows)
        if out.json:
            total, lost = checkpoint.table(name).rows, {"lost": as_dict(loss)} if loss else {}
            document = {"schema": "edl-ckpt/ids/1", "ref": version.ref, "table": name, "rows": total, **lost, "ids": []}
            out.print_json_list(document, (some.tolist() for some in ids))
        else:
            for some in ids:
                out.write("\n".join(map(str, some.tolist())) + "\n")
    show_loss(out, loss)


def _at_most(blocks: Iterator[I64], count: int | None) -> Iterator[I64]:
    """Yield blocks of ids up to a number of ids, and read no block beyond."""
    for block in blocks:
        some = block if count is None else block[:count]
        if len(some):
            yield some
        if count is not None:
            count -= len(some)
            if not count:
                return
