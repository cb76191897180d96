"""What takes the space of a location or of a version, as text, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked
from edl_ckpt.cli.terminal.tables import Bar, Column, Lines, Table, head, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.core.operations.examine import LocationUsage
    from edl_ckpt.core.operations.summary import CheckpointSummary

_BAR_WIDTH = 20


def document(usage: LocationUsage) -> dict[str, Any]:
    """Return `edl-ckpt/du/1` of a location."""
    versions = [
        picked(v, "version ref state size_bytes", version=v.number, size_bytes=used) for v, used in usage.versions
    ]
    trash, staging = ([picked(left, "name size_bytes") for left in kind] for kind in (usage.trash, usage.staging))
    keys, where = "location size_bytes versions trash staging state_bytes other_bytes", usage.location.url
    return document_of("du", usage, keys, location=where, versions=versions, trash=trash, staging=staging)


def version_document(summary: CheckpointSummary) -> dict[str, Any]:
    """Return `edl-ckpt/du/1` of a version: its tables and variables."""
    tables = [picked(table, "name rows size_bytes") for table in summary.tables]
    variables = [picked(variable, "name size_bytes") for variable in summary.variables]
    return document_of("du", summary, "ref size_bytes tables variables", tables=tables, variables=variables)


def rows(usage: LocationUsage) -> list[list[Any]]:
    """Return a header and a row for each part of a location."""
    return _rows(_parts(usage))


def version_rows(summary: CheckpointSummary) -> list[list[Any]]:
    """Return a header and a row for each table and variable."""
    return _rows(_tensors(summary))


def human(usage: LocationUsage) -> Lines:
    """Yield the parts of a location, with what frees those that nobody needs."""
    yield head(usage.location.url, words.size(usage.size_bytes))
    yield _table(list(_parts(usage)))
    if usage.trash:
        yield styled("to empty the trash: edl-ckpt prune --purge", "dim")
    if usage.staging:
        yield styled("to remove what killed commands left: edl-ckpt recover", "dim")


def version_human(summary: CheckpointSummary) -> Lines:
    """Yield the tables and variables of a version, the largest first, and what is neither."""
    yield head(summary.ref, words.size(summary.size_bytes))
    yield _table(sorted(_tensors(summary), key=lambda part: -part[3]))


def _parts(usage: LocationUsage) -> Iterator[tuple[str, str, str, int]]:
    """Yield what each part of a location is, its name, a note, and its bytes."""
    for version, size in usage.versions:
        yield "version", str(version.key), "" if version.state.value == "complete" else version.state.value, size
    for what, found in (("trash", usage.trash), ("staging", usage.staging)):
        for directory in found:
            yield what, directory.name, "", directory.size_bytes
    yield "state", "", "metadata and seals", usage.state_bytes
    if usage.other_bytes:
        yield "other", "", "not of edl-ckpt", usage.other_bytes


def _tensors(summary: CheckpointSummary) -> Iterator[tuple[str, str, str, int]]:
    """Yield the same of each table and variable."""
    yield from (("table", t.name, text.count(t.rows, "row"), t.size_bytes) for t in summary.tables)
    yield from (("variable", v.name, "", v.size_bytes) for v in summary.variables)


def _rows(parts: Iterable[tuple[str, str, str, int]]) -> list[list[Any]]:
    return [["what", "name", "size_bytes"], *([what, name, size] for what, name, _, size in parts)]


def _table(parts: Sequence[tuple[str, str, str, int]]) -> Table:
    largest = max((size for *_, size in parts), default=0)
    columns = (
        Column("what"), Column("name", "name", worth=9), Column("size", "number", worth=10),
        Column("share", "bar", worth=1, title=""), Column("note", "prose", worth=2, title=""),
    )  # fmt: skip
    rows = ((what, name, words.size(size), Bar(size, largest, _BAR_WIDTH), note) for what, name, note, size in parts)
    return Table(*columns, rows=rows)
