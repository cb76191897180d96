"""An export, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.cli.documents import as_dict
from edl_ckpt.cli.tables import Column, Table
from edl_ckpt.core import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.export import ExportResult

_FILES = 12


def document(result: ExportResult) -> dict[str, Any]:
    """Return `edl-ckpt/export/1`."""
    return {"schema": "edl-ckpt/export/1", **as_dict(result)}


def human(result: ExportResult) -> Iterator[RenderableType]:
    """Yield the files written, and the proof if there is one."""
    from rich.text import Text

    head = Text(text.escaped(result.ref), "bold")
    yield head.append(f"  exported as {result.format}", "dim")
    files = Table(Column("size", "number", title=""), Column("file", "name", worth=9, title=""))
    for file in result.files[:_FILES]:
        files.add(words.size(file.size_bytes), file.path)
    yield files
    if len(result.files) > _FILES:
        yield Text(f"  and {text.count(len(result.files) - _FILES, 'more file')}", "dim")
    counts = ((result.variables, "variable"), (result.tables, "table"), (result.rows, "row"))
    yield Text(f"{', '.join(text.count(*count) for count in counts)} in {result.seconds:.2f} s", "dim")
    if result.proved:
        yield Text("proved: the exported content has the fingerprint of the source", "green")
        yield Text(result.fingerprint)
