"""A comparison of two versions, as text, as JSON and as rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from edl_ckpt.cli.render.shared_tables import first_rows, long_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.tables import MOST_ROWS, Bar, Cell, Column, Content, Histogram, Lines, beside, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.operations.diff.results import HISTOGRAM_EDGES, DenseDiff, DiffResult, ItemDiff, TableDiff

Part = TypeVar("Part", "DenseDiff", "TableDiff")
COUNTS: Final = ("added", "removed", "changed", "unchanged")
_STYLES: Final = {"equal": "dim", "changed": "yellow", "added": "green", "removed": "red"}
_BAR = 12


def document(result: DiffResult, *, rows: bool = False) -> dict[str, Any]:
    """Return `edl-ckpt/diff/1`; with `rows`, it names every row that differs."""
    result_document = {"schema": "edl-ckpt/diff/1", **as_dict(result), "histogram_edges": list(HISTOGRAM_EDGES)}
    for table in result_document["tables"]:
        changed = table.pop("rows")
        if rows:
            table["rows"] = [{"id": i, "status": status, "l2": l2} for i, status, l2 in changed]
    return result_document


def rows(result: DiffResult) -> list[list[Any]]:
    """Return a header and one row for each variable, table and item."""
    keys = ("name", "status", *COUNTS, "max_abs", "l2", "relative", "what")
    parts: list[tuple[str, object]] = [*(("variable", v) for v in result.variables)]
    parts += [*(("table", t) for t in result.tables), *(("item", item) for item in result.items)]
    return [["kind", *keys], *([kind, *(getattr(part, key, None) for key in keys)] for kind, part in parts)]


def changed_rows(result: DiffResult) -> list[list[Any]]:
    """Return a header and one row for each variable, table, row of a table and item that differs.

    A table has a row of its own when it differs in more than rows, or is on one side only.
    """
    body: list[list[Any]] = [
        ["variable", v.name, None, v.status, v.max_abs, v.l2] for v in result.variables if v.status != "equal"
    ]
    for table in result.tables:
        if table.what or table.status in {"added", "removed"}:
            body.append(["table", table.name, None, table.status, None, None])
        body += [["row", table.name, i, status, None, l2] for i, status, l2 in table.rows]
    body += [["item", item.name, None, item.status, None, None] for item in result.items if item.status != "equal"]
    return [["kind", "name", "id", "status", "max_abs", "l2"], *body]


def human(result: DiffResult, *, every: bool = True) -> Lines:
    """Yield the tensors with a bar for the change of each, and the rows that changed most.

    Of very many tensors only some are shown, those that differ first, unless `every` one is wanted.
    """
    head = styled(f"{text.escaped(result.a)} -> {text.escaped(result.b)}", "bold")
    if result.equal:
        yield head.append("  equal", "green")
        if result.fingerprint_a == result.fingerprint_b:
            yield styled(result.fingerprint_a, "dim")
        elif result.tolerance or not result.not_compared:
            yield styled(f"equal within a tolerance of {result.tolerance:g}", "dim")
        yield from _not_compared(result)
        yield from _metadata(result)
        return
    parts: list[DenseDiff | TableDiff] = [*result.variables, *result.tables]
    differ = sum(part.status != "equal" for part in parts)
    verb = "differs" if differ == 1 else "differ"
    changed = [item for item in result.items if item.status != "equal"]
    others = f", and {len(changed)} of {text.count(len(result.items), 'other item')}" if changed else ""
    yield head.append(f"  {differ} of {text.count(len(parts), 'tensor')} {verb}{others}", "dim")
    largest = largest_of(part.relative for part in parts)
    tables, variables = _by_interest(result.tables, every=every), _by_interest(result.variables, every=every)
    yield from _drawn("embedding table", tables, _OF_TABLES, largest, every=every)
    yield from _drawn("dense variable", variables, _OF_VARIABLES, largest, every=every)
    for table in first_rows(tables, "table", every=every)[0]:
        yield from _details(table)
    columns = (Column("other item", "name"), COLUMNS["status"], COLUMNS["kind"])
    if changed:
        yield from long_table(columns, changed, _item_row, "item", every=every)
    yield from _not_compared(result)
    yield from _metadata(result)


def _not_compared(result: DiffResult) -> Lines:
    if result.not_compared:
        names = words.abridged(map(text.escaped, result.not_compared), 8)
        yield styled(f"not compared, as the versions cut tables into other parts: {names}", "dim")


def _metadata(result: DiffResult) -> Lines:
    if result.metadata:
        names = text.escaped(", ".join(result.metadata))
        yield styled(f"the metadata of the files differs in {names}", "yellow")


def _item_row(item: ItemDiff) -> list[Any]:
    return [item.name, Cell(item.status, _STYLES[item.status]), item.kind]


def _by_interest(parts: Sequence[Part], *, every: bool) -> Sequence[Part]:
    """Return tensors in the order in which they are shown: those that differ come first where not all of them are."""
    return parts if every or len(parts) <= MOST_ROWS else sorted(parts, key=lambda part: part.status == "equal")


def largest_of(values: Iterable[float | None]) -> float:
    """Return the largest finite one of some changes, whose bar is full; 0 for none."""
    return max((value for value in values if value and math.isfinite(value)), default=0.0)


def measure(value: float | None) -> str:
    """Return a measure with four digits, '' for none."""
    return "" if value is None else f"{value:.4g}"


COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("kind", worth=3),
        Column("status", worth=9, title=""),
        Column("added", "number", worth=7),
        Column("removed", "number", worth=7),
        Column("changed", "number", worth=7),
        Column("unchanged", "number", worth=3),
        Column("max abs", "number", worth=5),
        Column("cosine", "number", worth=4),
        Column("relative", "number", worth=6),
        Column("bar", "bar", title=""),
        Column("what", "prose", worth=8),
    )
}
"""What is shown of each tensor after its name, here and in the browser; a table of one kind shows some of it."""
_LAST = ("relative", "bar", "what")
_OF_TABLES = ("status", *COUNTS, *_LAST)
_OF_VARIABLES = ("status", "max abs", "cosine", *_LAST)


def cells(part: DenseDiff | TableDiff, largest: float) -> dict[str, Content]:
    """Return what stands in each of COLUMNS; the bar of the tensor with the relative change `largest` is full."""
    counts = {name: getattr(part, name, 0) for name in COUNTS}
    cosine = getattr(part, "cosine", None)
    return {
        "kind": "variable" if hasattr(part, "cosine") else "table",
        "status": Cell(part.status, _STYLES[part.status]),
        **{name: text.count(n) if n else "" for name, n in counts.items()},
        "max abs": measure(part.max_abs),
        "cosine": "" if cosine is None or part.status == "equal" else f"{cosine:.6f}",
        "relative": measure(part.relative),
        "bar": Bar(part.relative or 0.0, largest, _BAR, "yellow"),
        "what": part.what,
    }


def _drawn(title: str, parts: Sequence[Part], names: Sequence[str], largest: float, *, every: bool) -> Lines:
    def row(part: Part) -> list[Any]:
        return [part.name, *map(cells(part, largest).__getitem__, names)]

    columns = (Column(title, "name"), *map(COLUMNS.__getitem__, names))
    return long_table(columns, parts, row, title.rpartition(" ")[2], every=every)


def _details(table: TableDiff) -> Lines:
    if table.changed and any(table.histogram):
        head = styled().append(f"{text.escaped(table.name)}  ", "bold")
        yield beside(head.append("row changes (L2), from 1e-8 to 1e4:", "dim"), Histogram(table.histogram, "dim"))
    if table.top:
        changed = ", ".join(f"{row.id} ({row.l2:.4g})" for row in table.top)
        yield styled(f"  changed most: {changed}", "dim")
