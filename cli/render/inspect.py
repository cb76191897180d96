"""The content of a version, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.metadata import metadata_table
from edl_ckpt.cli.render.shared_tables import first_rows, long_table, shard_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.csv_rows import Several
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.tables import Cell, Column, Histogram, Lines, beside, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.sources.systems import shards_of, system_named, title_of

if TYPE_CHECKING:
    from edl_ckpt.core.operations.statistics import TensorStats
    from edl_ckpt.core.operations.summary import CheckpointSummary, TableSummary, VariableSummary
    from edl_ckpt.core.reading.loss import Loss

TABLE_COLUMNS: Final = (
    Column("embedding table", "name"),
    Column("rows", "number", worth=9),
    Column("dim", "number", worth=8),
    Column("dtype", worth=6),
    Column("size", "number", worth=7),
    Column("init", "name", worth=3),
    Column("balance", "bar"),
)
VARIABLE_COLUMNS: Final = (
    Column("dense variable", "name"),
    Column("dtype", worth=6),
    Column("shape", worth=8),
    Column("size", "number", worth=7),
    Column("shard", "number", worth=3),
)
"""What is shown of each table and of each variable, here and in the browser."""
ITEM_COLUMNS: Final = (
    Column("other item", "name"),
    Column("kind", worth=6),
    Column("size", "number", worth=7),
    Column("shard", "number", worth=3),
)


_TODAY: Final = "v4"
"""The generation of ElasticDL's format that needs no word: all others are older."""
_MEASURES: Final = {"min": "minimum", "max": "maximum", "mean": "mean", "std": "std", "L2": "l2"}
"""The measures of a tensor in a line, by their short names."""


def document(summary: CheckpointSummary, stats: Sequence[TensorStats] = (), loss: Loss | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/inspect/1`; it has `stats` when values were read, and `lost` where something cannot be read."""
    result = {"schema": "edl-ckpt/inspect/1", **as_dict(summary), **({"lost": as_dict(loss)} if loss else {})}
    for table, found in zip(summary.tables, result["tables"], strict=True):
        found["title"] = table.title
    result["file_metadata"] = {file: dict(notes) for file, notes in summary.file_metadata.items()}
    if stats:
        result["stats"] = [as_dict(s) for s in stats]
    return result


def rows(summary: CheckpointSummary, stats: Sequence[TensorStats] = ()) -> list[list[Any]]:
    """Return a header and a row for each variable and each table; with statistics where values were read."""
    numbers = ("minimum", "maximum", "mean", "std", "l2", "zeros", "nan", "inf") if stats else ()
    known: dict[tuple[Any, Any], list[Any]] = {(s.kind, s.name): [getattr(s, key) for key in numbers] for s in stats}
    none: list[Any] = [None] * len(numbers)
    variables: list[list[Any]] = [
        ["variable", v.name, v.dtype, Several(v.shape, "x"), None, None, None, v.size_bytes, v.shard]
        for v in summary.variables
    ]
    tables: list[list[Any]] = [
        ["table", t.name, t.dtype, Several((t.rows, t.dim), "x"), t.rows, t.dim, t.initializer, t.size_bytes, None]
        for t in summary.tables
    ]
    header = ["kind", "name", "dtype", "shape", "rows", "dim", "initializer", "size_bytes", "shard", *numbers]
    return [header, *(row + known.get((row[0], row[1]), none) for row in (*variables, *tables))]


def human(summary: CheckpointSummary, stats: Sequence[TensorStats] = (), *, every: bool = True) -> Lines:
    """Yield the head and the shards; then tables, variables and statistics, if there are any.

    Of long tables only the first rows are shown, unless `every` row is wanted.
    """
    yield head(summary.ref, about(summary))
    yield shard_table(summary.shards)
    if summary.metadata:
        yield styled("metadata", "dim")
        yield metadata_table(summary.metadata)
    cells = partial(table_cells, alone=len(summary.tables) == 1)
    yield from long_table(TABLE_COLUMNS, summary.tables, cells, "table", every=every)
    yield from long_table(VARIABLE_COLUMNS, summary.variables, variable_cells, "variable", every=every)
    items = [(i.name, i.kind, words.size(i.size_bytes), str(i.shard)) for i in summary.items]
    yield from long_table(ITEM_COLUMNS, items, list, "item", every=every)
    shown, more_stats = first_rows(stats, "tensor", every=every)
    yield from _stats(shown)
    yield from more_stats


def about(summary: CheckpointSummary) -> str:
    """Return what the headers of a version say, in a line."""
    kind = title_of(summary.system)
    if system_named(summary.system).names_layouts:
        kind = f"{summary.layout} layout"
        if summary.generation != _TODAY:
            kind = f"generation {summary.generation or 'unknown'}, {kind}"
    shards = shards_of(summary.system, summary.ps_num or len(summary.shards))
    return f"{shards}, {words.size(summary.size_bytes)}, {text.count(summary.parameters, 'parameter')}, {kind}"


def table_cells(table: TableSummary, *, alone: bool = False) -> list[Any]:
    """Return the row of an embedding table, for TABLE_COLUMNS; a companion follows its table unless it is `alone`."""
    return [
        Cell(f"  :{table.slot}") if table.companion_of and not alone else Cell(table.title, "bold"),
        text.count(table.rows),
        str(table.dim),
        table.dtype or "-",
        words.size(table.size_bytes),
        table.initializer if table.initializer is not None else "(no info)",
        Histogram(table.rows_per_shard if len(table.rows_per_shard) > 1 else ()),
    ]


def variable_cells(variable: VariableSummary) -> list[Any]:
    """Return the row of a dense variable, for VARIABLE_COLUMNS."""
    shape, size = words.shape(variable.shape), words.size(variable.size_bytes)
    return [Cell(variable.name, "bold"), variable.dtype, shape, size, str(variable.shard)]


def _stats(stats: Sequence[TensorStats]) -> Lines:
    """Yield two lines for each tensor: names are long, and a table of ten numbers would squeeze them out."""
    for tensor in stats:
        yield beside(styled().append(text.escaped(tensor.name), "bold"), Histogram(tensor.histogram))
        numbers = ((name, getattr(tensor, key)) for name, key in _MEASURES.items())
        known = [f"{name} {number:.3g}" for name, number in numbers if number is not None]
        line = styled("  " + "  ".join([*known, f"zeros {text.count(tensor.zeros)}"]))
        for name, count in (("NaN", tensor.nan), ("Inf", tensor.inf)):
            line.append(f"  {name} {text.count(count)}", "red" if count else "")
        yield line
