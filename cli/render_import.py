"""An import, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.cli.documents import as_dict
from edl_ckpt.cli.shared_tables import shard_table
from edl_ckpt.core import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.importing import ImportResult


def document(result: ImportResult) -> dict[str, Any]:
    """Return `edl-ckpt/import/1`, the keys of a reshard."""
    return {"schema": "edl-ckpt/import/1", **as_dict(result)}


def human(result: ImportResult) -> Iterator[RenderableType]:
    """Yield the shards written, and their proof."""
    from rich.text import Text

    yield Text(text.escaped(result.ref), "bold").append(f"  imported for {result.to_ps} PS", "dim")
    yield shard_table(result.shards)
    yield Text(f"{words.size(result.size_bytes)}, {text.count(result.rows, 'row')} in {result.seconds:.2f} s", "dim")
    yield Text("proved: the new version has the fingerprint of the source", "green")
    yield Text(result.fingerprint)
