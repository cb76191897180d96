"""What several commands draw: the table of shards, and the first rows of tables that are too long for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import MOST_ROWS, Bar, Column, Content, Lines, Table, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.model.versions import ShardFile

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.model.tables import ShardSummary

Item = TypeVar("Item")
SHARD_COLUMNS: Final = (
    Column("shard", "number"),
    Column("size", "number", worth=9),
    Column("bar", "bar", title=""),
    Column("rows", "number", worth=8),
    Column("variables", "number"),
)
"""What is shown of each shard, here and in the browser."""


def first_rows(
    items: Sequence[Item], noun: str, *, every: bool, way: str = "--all shows them too", last: bool = False
) -> tuple[Sequence[Item], list[RenderableType]]:
    """Return the items that a table shows, and a line that says how many more there are: all, or the first 2,000.

    Or else the `last` 2,000. `way` says how to see all of them.
    """
    if every or len(items) <= MOST_ROWS:
        return items, []
    more = text.count(len(items) - MOST_ROWS, f"more {noun}")
    shown = items[-MOST_ROWS:] if last else items[:MOST_ROWS]
    return shown, [styled(f"  and {more}; {way}, and --json has everything", "dim")]


def long_table(
    columns: Sequence[Column],
    items: Sequence[Item],
    cells: Callable[[Item], Iterable[Content]],
    noun: str,
    *,
    every: bool,
) -> Lines:
    """Yield a table with a row of `cells` for each item, none without items; of very many as `first_rows` says."""
    shown, more = first_rows(items, noun, every=every)
    if shown:
        yield Table(*columns, rows=map(cells, shown), whole=True)
    yield from more


def shard_table(shards: Sequence[ShardSummary]) -> Table:
    """Return a table of shards, with a bar for the size of each."""
    largest = max((shard.size_bytes for shard in shards), default=0)
    return Table(*SHARD_COLUMNS, rows=(shard_cells(s, largest, s.rows, s.variables) for s in shards))


def shard_cells(
    shard: ShardSummary | ShardFile, largest: int, rows: int | None, variables: int | None
) -> list[Content]:
    """Return the row of a shard, for SHARD_COLUMNS; its rows and variables are None where it was not opened."""
    size_bytes = shard.all_bytes if isinstance(shard, ShardFile) else shard.size_bytes
    size = words.size(size_bytes), Bar(size_bytes, largest, 20)
    return [str(shard.ps_id), *size, *("?" if n is None else text.count(n) for n in (rows, variables))]
