"""An export as words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.export import ExportResult

_FILES = 12


def document(result: ExportResult) -> dict[str, Any]:
    """Return `edl-ckpt/export/1`."""
    return {"schema": "edl-ckpt/export/1", **asdict(result)}


def human(result: ExportResult) -> Iterator[RenderableType]:
    """Yield what was written, and whether it is proved."""
    from rich.text import Text

    head = Text(text.shown(result.ref), "bold")
    yield head.append(f"  exported as {result.format}", "dim")
    for file in result.files[:_FILES]:
        yield Text(f"  {text.size(file.size_bytes):>10}  ").append(text.shown(file.path))
    if len(result.files) > _FILES:
        yield Text(f"  and {len(result.files) - _FILES} more files", "dim")
    held = f"{result.variables} variables, {result.tables} tables, {text.count(result.rows)} rows"
    yield Text(f"{held} in {result.seconds:.2f} s", "dim")
    if result.proved:
        yield Text("proved: what was written out has the source's fingerprint", "green")
        yield Text(result.fingerprint)
