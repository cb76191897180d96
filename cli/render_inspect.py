"""The content of a version as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from edl_ckpt.core.operations.stats import TensorStats
    from edl_ckpt.core.operations.summary import CheckpointSummary, TableSummary


def document(summary: CheckpointSummary, stats: Sequence[TensorStats] = ()) -> dict[str, Any]:
    """Return `edl-ckpt/inspect/1`; `stats` is there when values were read."""
    held = {"schema": "edl-ckpt/inspect/1", **asdict(summary)}
    if stats:
        held["stats"] = [asdict(s) for s in stats]
    return held


def human(summary: CheckpointSummary, stats: Sequence[TensorStats] = ()) -> Iterator[RenderableType]:
    """Yield the head, then shards, variables, tables and statistics, each where there is any."""
    from rich.text import Text

    head = Text(text.shown(summary.ref), "bold")
    yield head.append(
        f"  version {summary.version}, {summary.ps_num} PS, {text.size(summary.size_bytes)},"
        f" {text.count(summary.parameters)} parameters, {summary.generation or 'no'} wire, {summary.layout} layout",
        "dim",
    )
    yield _shards(summary)
    if summary.tables:
        yield _tables(summary.tables)
    if summary.variables:
        yield _variables(summary)
    if stats:
        yield _stats(stats)


def new_table(*names: str) -> Table:
    """Return an empty table; columns whose name ends in '>' are numbers, to the right."""
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


def _shards(summary: CheckpointSummary) -> RenderableType:
    from rich.text import Text

    table = new_table("shard>", "size>", "", "rows>", "variables>")
    largest = max((s.size_bytes for s in summary.shards), default=0)
    for shard in summary.shards:
        table.add_row(
            str(shard.ps_id),
            text.size(shard.size_bytes),
            Text(text.bar(shard.size_bytes, largest, 20), "blue"),
            text.count(shard.rows),
            text.count(shard.variables),
        )
    return table


def _tables(tables: Sequence[TableSummary]) -> RenderableType:
    from rich.text import Text

    table = new_table("embedding table", "rows>", "dim>", "dtype", "size>", "init", "balance")
    for held in tables:
        balance = Text(text.columns(list(held.rows_per_shard[:32])), "blue")
        table.add_row(
            Text(text.shown(held.name), "bold"),
            text.count(held.rows),
            str(held.dim),
            held.dtype or "-",
            text.size(held.size_bytes),
            Text(text.shown(held.initializer if held.initializer is not None else "(no info)")),
            balance,
        )
    return table


def _variables(summary: CheckpointSummary) -> RenderableType:
    from rich.text import Text

    table = new_table("dense variable", "dtype", "shape", "size>", "shard>")
    for held in summary.variables:
        table.add_row(
            Text(text.shown(held.name), "bold"),
            held.dtype,
            "x".join(map(str, held.shape)) or "scalar",
            text.size(held.size_bytes),
            str(held.shard),
        )
    return table


def _stats(stats: Sequence[TensorStats]) -> RenderableType:
    """Return two lines for each tensor: names are long, and a table of ten numbers would squeeze them out."""
    from rich.text import Text

    lines = []
    for held in stats:
        line = Text(text.shown(held.name), "bold")
        line.append("  " + text.columns(list(held.histogram)), "not bold blue")
        numbers = (
            ("min", held.minimum),
            ("max", held.maximum),
            ("mean", held.mean),
            ("std", held.std),
            ("L2", held.l2),
        )
        told = [f"{name} {number:.3g}" for name, number in numbers if number is not None]
        line.append("\n  " + "  ".join([*told, f"zeros {text.count(held.zeros)}"]), "not bold")
        for name, count in (("NaN", held.nan), ("Inf", held.inf)):
            line.append(f"  {name} {text.count(count)}", "not bold red" if count else "not bold")
        lines.append(line)
    return Text("\n").join(lines)
