"""What several commands draw: the table of shards, and the first rows of tables that are too long for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from edl_ckpt.cli import text
from edl_ckpt.cli.tables import MOST_ROWS, Bar, Column, Table
from edl_ckpt.core import words

if TYPE_CHECKING:
    from rich.text import Text

    from edl_ckpt.core.checkpoint.target import TargetShard
    from edl_ckpt.core.operations.summary import ShardSummary

Item = TypeVar("Item")


def first_rows(
    items: Sequence[Item], noun: str, *, every: bool, way: str = "--all shows them too", last: bool = False
) -> tuple[Sequence[Item], list[Text]]:
    """Return the items that a table shows, and a line that says how many more there are: all, or the first 2,000.

    Or else the `last` 2,000. `way` says how to see all of them.
    """
    from rich.text import Text

    if every or len(items) <= MOST_ROWS:
        return items, []
    more = text.count(len(items) - MOST_ROWS, f"more {noun}")
    shown = items[-MOST_ROWS:] if last else items[:MOST_ROWS]
    return shown, [Text(f"  and {more}; {way}, and --json has everything", "dim")]


def shard_table(shards: Sequence[ShardSummary | TargetShard]) -> Table:
    """Return a table of shards, with a bar for the size of each."""
    table = Table(
        Column("shard", "number"),
        Column("size", "number", worth=9),
        Column("bar", "bar", title=""),
        Column("rows", "number", worth=8),
        Column("variables", "number"),
    )
    largest = max((shard.size_bytes for shard in shards), default=0)
    for shard in shards:
        table.add(
            str(shard.ps_id),
            words.size(shard.size_bytes),
            Bar(shard.size_bytes, largest, 20),
            text.count(shard.rows),
            text.count(shard.variables),
        )
    return table
