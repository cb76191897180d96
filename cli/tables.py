"""What several commands draw: tables, the table of shards, and lines of aligned cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from edl_ckpt.cli import text
from edl_ckpt.core import words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from edl_ckpt.core.checkpoint.target import TargetShard
    from edl_ckpt.core.operations.summary import ShardSummary


def new_table(*names: str) -> Table:
    """Return an empty table; a column whose name ends in '>' has numbers, aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for position, name in enumerate(names):
        right = name.endswith(">")
        table.add_column(
            name.rstrip(">"),
            justify="right" if right else "left",
            no_wrap=position > 0 or right,
            overflow="fold",
        )
    return table


def shard_table(shards: Sequence[ShardSummary | TargetShard]) -> RenderableType:
    """Return a table of shards, with a bar for the size of each."""
    from rich.text import Text

    table = new_table("shard>", "size>", "", "rows>", "variables>")
    largest = max((shard.size_bytes for shard in shards), default=0)
    for shard in shards:
        table.add_row(
            str(shard.ps_id),
            words.size(shard.size_bytes),
            Text(text.bar(shard.size_bytes, largest, 20), "blue"),
            text.count(shard.rows),
            text.count(shard.variables),
        )
    return table


Cell = tuple[str, str]
"""A text and its style."""


def aligned(rows: Sequence[Sequence[Cell]], *, right: Collection[int], header: bool = False) -> RenderableType:
    """Return rows as lines of aligned cells, the columns in `right` aligned to the right.

    With `header`, a rule follows the first row. Rich's own table takes half a second for a thousand rows.
    """
    from rich.text import Text

    widths = [max(len(cell) for cell, _ in column) for column in zip(*rows, strict=True)]
    lines = Text(end="")
    for number, row in enumerate(rows):
        for column, ((cell, style), width) in enumerate(zip(row, widths, strict=True)):
            lines.append("  " + (cell.rjust(width) if column in right else cell.ljust(width)), style)
        lines.append("\n")
        if header and number == 0:
            lines.append("  " + "─" * (sum(widths[:-1]) + 2 * len(widths) - 4) + "\n", "dim")
    return lines
