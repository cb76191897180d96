"""A prune, planned and done, as words and as JSON; and what undo put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.core.operations.prune.plan import Action

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.commit.trash import Purge
    from edl_ckpt.core.operations.prune.execute import PruneResult
    from edl_ckpt.core.operations.prune.plan import PruneEntry, PrunePlan


def document(plan: PrunePlan, result: PruneResult | None = None, purged: Purge | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/prune/1`; without a result that of a dry run, in which nothing was applied."""
    return {
        "schema": "edl-ckpt/prune/1",
        "plan": [
            {
                "ref": e.ref,
                "version": e.version,
                "action": e.action.value,
                "reasons": list(e.reasons),
                "size_bytes": e.size_bytes,
                "state": e.state,
                "path": e.path,
            }
            for e in plan.entries
        ],
        "deleted": len(result.deleted) if result else 0,
        "freed_bytes": (result.freed_bytes if result else 0) + (purged.freed_bytes if purged else 0),
        "applied": result is not None,
        "trashed": bool(result and result.trashed),
        "policy": list(plan.policy),
        "warnings": list(plan.warnings),
    }


def human(
    plan: PrunePlan,
    locations: Sequence[str],
    result: PruneResult | None = None,
    purged: Purge | None = None,
    *,
    brief: bool = False,
) -> Iterator[RenderableType]:
    """Yield the plan of each location, and what was done; `brief` leaves out the plan, which was shown before."""
    from rich.text import Text

    if not brief:
        if plan.policy:
            yield Text("keep " + text.shown(", or ".join(plan.policy)), "dim")
        for location in plan.locations or locations:
            entries = [e for e in plan.entries if e.location == location]
            yield _head(location, entries)
            if entries:
                yield _table(entries)
    if result is None:
        yield Text("Nothing was deleted.", "dim")
        return
    count = len(result.deleted)
    versions = f"{count} version{'' if count == 1 else 's'}"
    if result.trashed and count:
        yield Text(f"{versions} in the trash; `edl-ckpt undo` puts them back, `edl-ckpt prune --purge` empties it")
    elif count or not purged:
        yield Text(f"{versions} deleted, {text.size(result.freed_bytes)} freed")
    if purged:
        yield Text(f"trash emptied, {text.size(purged.freed_bytes)} freed")


def _head(location: str, entries: Sequence[PruneEntry]) -> RenderableType:
    from rich.text import Text

    head = Text(text.shown(location), "bold")
    if not entries:
        return head.append("  no checkpoint", "dim")
    going = [e.size_bytes for e in entries if e.action is Action.DELETE]
    staying = [e.size_bytes for e in entries if e.action is Action.KEEP]
    kept = f"{len(staying)} kept, {text.size(sum(staying))}"
    return head.append(f"  {kept}; {len(going)} to delete, {text.size(sum(going))}", "dim")


def _table(entries: Sequence[PruneEntry]) -> RenderableType:
    """Return aligned lines: rich's own table takes half a second for a thousand of them."""
    from rich.text import Text

    cells = [
        (str(e.version), text.size(e.size_bytes), e.action.value, "; ".join(text.shown(r) for r in e.reasons))
        for e in entries
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = Text(end="")
    for entry, (version, size, action, reasons) in zip(entries, cells, strict=True):
        going = entry.action is Action.DELETE
        lines.append(f"  {version.rjust(widths[0])}  {size.rjust(widths[1])}  ")
        lines.append(action.ljust(widths[2]), "red" if going else "green")
        lines.append(f"  {reasons}\n", "" if going else "dim")
    return lines
