"""What several commands draw: the table of shards, and the first rows of tables that are too long for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.lines import Lines, styled
from edl_ckpt.cli.terminal.tables import MOST_ROWS, Bar, Column, Table
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.catalog.target import WritePlan
    from edl_ckpt.core.commit.publish.part_plan import PartsPlan
    from edl_ckpt.core.model.tables import ShardSummary

Item = TypeVar("Item")


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


def planned_version(
    schema: str,
    plan: WritePlan,
    ref: str,
    bytes_read: int,
    warnings: Sequence[str],
    parts: PartsPlan | None,
    cluster: Mapping[str, Any] | None,
    **more: bool,
) -> dict[str, Any]:
    """Return the document of a dry run that would write a version: everything that its plan tells."""
    return {
        "schema": schema,
        "ref": ref,
        "output": plan.target.location.url,
        "from_ps": plan.from_ps,
        "to_ps": plan.to_ps,
        "version": plan.target.number,
        "size_bytes": plan.size_bytes,
        "bytes_read": bytes_read,
        "bytes_written": 0,
        "rows": plan.rows,
        "seconds": None,
        "peak_memory_bytes": None,
        "fingerprint": None,
        "shards": [as_dict(shard) for shard in plan.shards],
        "forced": None,
        **more,
        "layout": plan.target.layout.name,
        "skew": plan.skew,
        "warnings": list(warnings),
        "cluster": cluster,
        "parts": parts and {**as_dict(parts), "times_read": parts.times_read},
    }


def planned_lines(plan: WritePlan, parts: PartsPlan | None, how: str) -> Lines:
    """Yield the shards that a dry run would write, in which parts, and `how` in words."""
    yield shard_table(plan.shards)
    if parts is not None:
        yield styled(str(parts), "dim")
    content = f"{words.size(plan.size_bytes)}, {text.count(plan.rows, 'row')}"
    yield styled(f"{content}, largest shard {plan.skew:.2f} x the mean{how}. Nothing was written.", "dim")


def proved_lines(what: str, fingerprint: str | None) -> Lines:
    """Yield the proof of what was written."""
    yield styled(f"proved: the {what} has the fingerprint of the source", "green")
    yield styled(fingerprint or "")


def shard_table(shards: Sequence[ShardSummary]) -> Table:
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
