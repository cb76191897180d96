"""The result of `unlock`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.words import command
from edl_ckpt.core.operations.undo import format_holder
from edl_ckpt.core.state.owner import Holder
from edl_ckpt.core.storage.location import Location


def document(location: Location, holders: Sequence[Holder]) -> dict[str, Any]:
    """Return `edl-ckpt/unlock/1`."""
    listed = [
        {key: holder.owner.get(key) for key in ("pid", "host", "since", "purpose")}
        | {"alive": holder.is_alive, "silent_seconds": holder.silent_seconds}
        for holder in holders
    ]
    return {"schema": "edl-ckpt/unlock/1", "location": location.url, "unlocked": bool(holders), "holders": listed}


def human(location: Location, holders: Sequence[Holder]) -> list[str]:
    """Return what was removed, and the next step."""
    where = escaped(location.url)
    if not holders:
        return [f"{where}: not locked"]
    removed = [f"{where}: removed the lock of {escaped(format_holder(holder))}" for holder in holders]
    return [*removed, f"to finish or roll back its work: {command('recover', str(where))}"]
