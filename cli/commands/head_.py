"""`edl-ckpt head`: the first rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edl_ckpt.cli.manual.marks import READS, examples, exits
from edl_ckpt.cli.options.common import Csv, Jsonl, Ref, Rows, Table, resolve_ref, warn_of_seal
from edl_ckpt.cli.terminal.output import Output

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.operations.lookup import Lookup


@examples(
    "head run@100 --table user_embedding",
    "head run@100 --table user_embedding -n 1000 --csv",
)
@exits(READS)
def head_command(
    out: Output,
    ref: Ref = None,
    table: Table = None,
    rows: Rows = 10,
    csv: Csv = False,  # noqa: ARG001
    jsonl: Jsonl = False,  # noqa: ARG001
) -> None:
    """Print the first rows of a table.

    They are those of the first shard, in their order there.
    """
    from edl_ckpt.core.operations.lookup import first_rows

    show_rows(out, ref, "head", lambda version: first_rows(version, table, rows))


def show_rows(out: Output, ref: str | None, name: str, read: Callable[[Version], Lookup]) -> None:
    """Print rows that are read of a version, by a command of this name."""
    from edl_ckpt.cli.render import get as render_get

    version = resolve_ref(ref, out)
    warn_of_seal(out, version)
    found = read(version)
    out.show(
        lambda: render_get.document(found, name=name),
        lambda: render_get.human(found),
        lambda: render_get.rows(found),
    )
