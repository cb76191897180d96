"""What takes the space of a location or of a version, as text, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked
from edl_ckpt.cli.terminal.tables import Bar, Column, Lines, Table, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.operations.usage import LocationUsage

if TYPE_CHECKING:
    from edl_ckpt.core.operations.summary import CheckpointSummary

_BAR_WIDTH = 20


def document(usage: LocationUsage | CheckpointSummary) -> dict[str, Any]:
    """Return `edl-ckpt/du/1` of a location, or of the tables and variables of a version."""
    if not isinstance(usage, LocationUsage):
        tables = [picked(table, "name rows size_bytes") for table in usage.tables]
        variables = [picked(variable, "name size_bytes") for variable in usage.variables]
        return document_of("du", usage, "ref size_bytes tables variables", tables=tables, variables=variables)
    versions = [
        picked(v, "version ref state size_bytes", version=v.number, size_bytes=used) for v, used in usage.versions
    ]
    trash, staging = ([picked(left, "name size_bytes") for left in kind] for kind in (usage.trash, usage.staging))
    keys, where = "location size_bytes versions trash staging state_bytes other_bytes", usage.location.url
    return document_of("du", usage, keys, location=where, versions=versions, trash=trash, staging=staging)


def rows(usage: LocationUsage | CheckpointSummary) -> list[list[Any]]:
    """Return a header and a row for each part of a location, or for each table and variable."""
    return [["what", "name", "size_bytes"], *([what, name, size] for what, name, _, size in _parts(usage))]


def human(usage: LocationUsage | CheckpointSummary) -> Lines:
    """Yield the parts of a location, with what frees those that nobody needs; or those of a version, largest first."""
    if not isinstance(usage, LocationUsage):
        yield head(usage.ref, words.size(usage.size_bytes))
        yield _table(sorted(_parts(usage), key=lambda part: -part[3]))
        return
    yield head(usage.location.url, words.size(usage.size_bytes))
    yield _table(list(_parts(usage)))
    if usage.trash:
        yield styled("to empty the trash: edl-ckpt prune --purge", "dim")
    if usage.staging:
        yield styled("to remove what killed commands left: edl-ckpt recover", "dim")


def _parts(whole: LocationUsage | CheckpointSummary) -> Iterator[tuple[str, str, str, int]]:
    """Yield what each part of a location is, its name, a note and its bytes, or the same of each tensor."""
    if not isinstance(whole, LocationUsage):
        yield from (("table", t.name, text.count(t.rows, "row"), t.size_bytes) for t in whole.tables)
        yield from (("variable", v.name, "", v.size_bytes) for v in whole.variables)
        return
    for version, size in whole.versions:
        yield "version", str(version.key), "" if version.is_good else version.shown_state, size
    for what, directories in (("trash", whole.trash), ("staging", whole.staging)):
        for directory in directories:
            yield what, directory.name, "", directory.size_bytes
    yield "state", "", "metadata and seals", whole.state_bytes
    if whole.other_bytes:
        yield "other", "", "not of edl-ckpt", whole.other_bytes


def _table(parts: Sequence[tuple[str, str, str, int]]) -> Table:
    largest = max((size for *_, size in parts), default=0)
    columns = (
        Column("what"), Column("name", "name", worth=9), Column("size", "number", worth=10),
        Column("share", "bar", worth=1, title=""), Column("note", "prose", worth=2, title=""),
    )  # fmt: skip
    rows = ((what, name, words.size(size), Bar(size, largest, _BAR_WIDTH), note) for what, name, note, size in parts)
    return Table(*columns, rows=rows)
