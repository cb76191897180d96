"""An import as words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.reshard.execute import ReshardResult


def document(result: ReshardResult) -> dict[str, Any]:
    """Return `edl-ckpt/import/1`, the keys of a reshard."""
    return {"schema": "edl-ckpt/import/1", **asdict(result)}


def human(result: ReshardResult) -> Iterator[RenderableType]:
    """Yield what was written, shard by shard, and how it is proved."""
    from rich.text import Text

    from edl_ckpt.cli.render_reshard import target_table

    yield Text(text.shown(result.ref), "bold").append(f"  imported for {result.to_ps} PS", "dim")
    yield target_table(result.shards)
    yield Text(f"{text.size(result.size_bytes)}, {text.count(result.rows)} rows in {result.seconds:.2f} s", "dim")
    yield Text("proved: what was read back has the source's fingerprint", "green")
    yield Text(result.fingerprint)
