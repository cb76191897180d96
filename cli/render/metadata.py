"""Metadata of users, as text, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.recorded import shown
from edl_ckpt.cli.terminal.csv_rows import Recorded
from edl_ckpt.cli.terminal.documents import document_of
from edl_ckpt.cli.terminal.tables import Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.model.versions import Version

if TYPE_CHECKING:
    from rich.console import RenderableType


def metadata_document(version: Version) -> dict[str, Any]:
    """Return `edl-ckpt/metadata/1`."""
    return document_of("metadata", version, "ref version metadata", version=version.number)


def metadata_rows(version: Version) -> list[list[Any]]:
    """Return a header and one row for each key, by name; a value is JSON."""
    found = sorted(version.metadata.items())
    return [["ref", "version", "key", "value"], *([version.ref, version.number, k, Recorded(v)] for k, v in found)]


def metadata_human(version: Version) -> Lines:
    """Yield the version, and a line for each key."""
    yield head(version.ref)
    if not version.metadata:
        yield styled("no metadata; record some with `edl-ckpt metadata set`", "dim")
        return
    yield metadata_table(version.metadata)


def metadata_table(metadata: Mapping[str, Any]) -> RenderableType:
    """Return a line for each key, by name: the key, and its value as JSON; a text stands without quotes."""
    columns = Column("key", "name", title=""), Column("value", "prose", worth=9, title="")
    return Table(*columns, rows=([Cell(key, "dim"), shown(metadata[key])] for key in sorted(metadata)))
