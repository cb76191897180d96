"""A planned or finished prune, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.csv_rows import Several
from edl_ckpt.cli.terminal.documents import failure, picked, rows_of
from edl_ckpt.cli.terminal.tables import Cell, Column, Content, Lines, Table, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, PrunePlan

if TYPE_CHECKING:
    from edl_ckpt.core.base.errors import EdlCkptError
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.operations.prune.execute import PruneResult


_ACTIONS: Final = {"all": (Action.DELETE, Action.KEEP), "deleted": (Action.DELETE,), "kept": (Action.KEEP,)}
_FOLDED_FROM: Final = 5
"""So many versions in a row that are treated alike have one row."""
_COLUMNS: Final = (
    Column("version", "number", title=""),
    Column("size", "number", worth=3, title=""),
    Column("action", worth=9, title=""),
    Column("why", "prose", worth=8, title=""),
)


def document(
    plan: PrunePlan,
    result: PruneResult | None = None,
    stripped: Sequence[WriteResult] = (),
    unstripped: Sequence[tuple[str, EdlCkptError]] = (),
) -> dict[str, Any]:
    """Return `edl-ckpt/prune/1`; without a result it is that of a dry run."""
    keys = "ref size_bytes left_out_bytes fingerprint items left_out"
    purged_bytes = result.purge.freed_bytes if result and result.purge else 0
    return {
        "schema": "edl-ckpt/prune/1",
        "plan": [picked(e, "ref version action reasons size_bytes state path") for e in plan.entries],
        "deleted": len(result.deleted) if result else 0,
        "freed_bytes": (result.freed_bytes if result else 0) + purged_bytes,
        "applied": result is not None,
        "trashed": bool(result and result.trashed),
        "policy": list(plan.policy),
        "warnings": list(plan.warnings),
        "stripped": [picked(one, keys, fingerprint=one.fingerprint or None) for one in stripped],
        "failed": [
            {**failure(ref, error), "path": error.path}
            for ref, error in (*(result.failed if result else ()), *unstripped)
        ],
    }


def rows(plan: PrunePlan, *, listed: str = "all") -> list[list[Any]]:
    """Return a header and a row for each version that is `listed`: all, deleted or kept."""
    keys = "ref version action state size_bytes reasons path"
    entries = (e for e in plan.entries if e.action in _ACTIONS[listed])
    return rows_of(keys, (picked(e, keys, reasons=Several(e.reasons, "; ")) for e in entries))


def plan_human(plan: PrunePlan, *, listed: str = "all", folded: bool = True) -> Lines:
    """Yield the plan: its rules, and for each location what is deleted and then what is kept, with the reasons.

    `listed` is all, deleted or kept. The line above the versions counts all of them. Many versions in a row that are
    treated alike share one row, if `folded`.
    """
    if plan.policy:
        yield styled("keep " + text.escaped(", or ".join(plan.policy)), "dim")
    if plan.only_purges:
        return
    key = attrgetter("action", "reasons") if folded else attrgetter("action", "path")
    for location in plan.locations:
        entries = [entry for entry in plan.entries if entry.location == location]
        yield head(location.url, _counts(entries) if entries else "no numbered version")
        runs = [list(run) for _, run in groupby(entries, key)]
        shown: list[list[PruneEntry]] = []
        for action in _ACTIONS[listed]:
            shown += (run for run in runs if run[0].action is action)
        if shown:
            yield Table(*_COLUMNS, rows=chain.from_iterable(map(_rows_of, shown)))


def _counts(entries: Sequence[PruneEntry]) -> str:
    """Return how many versions are kept and deleted, and their bytes."""
    staying = [entry.size_bytes for entry in entries if entry.action is Action.KEEP]
    going = [entry.size_bytes for entry in entries if entry.action is Action.DELETE]
    return f"{len(staying)} kept, {words.size(sum(staying))}; {len(going)} to delete, {words.size(sum(going))}"


def human(
    plan: PrunePlan,
    result: PruneResult | None = None,
    stripped: Sequence[WriteResult] = (),
    *,
    brief: bool = False,
    listed: str = "all",
    folded: bool = True,
) -> Lines:
    """Yield the plan of each location, and the result; `brief` omits a plan that was already shown."""
    if not brief:
        yield from plan_human(plan, listed=listed, folded=folded)
    for version in stripped:
        names = words.abridged((text.escaped(part.name) for part in version.left_out), 2)
        verb = "would be stripped" if version.dry_run else "stripped, and proved,"
        yield head(version.ref, f"{verb} of {words.size(version.left_out_bytes)}: {names}")
    if result is None:
        yield styled("Nothing was deleted.", "dim")
        return
    versions = text.count(len(result.deleted), "version")
    if result.trashed and result.deleted:
        yield styled(f"{versions} moved to the trash (restore: `edl-ckpt undo`; empty it: `edl-ckpt prune --purge`)")
    elif result.deleted or not result.purge:
        yield styled(f"{versions} deleted, {words.size(result.freed_bytes)} freed")
    if result.purge:
        yield styled(f"trash emptied, {words.size(result.purge.freed_bytes)} freed")


def _rows_of(run: Sequence[PruneEntry]) -> list[list[Content]]:
    if 1 < len(run) < _FOLDED_FROM:
        return [row for entry in run for row in _rows_of([entry])]
    first, last = run[0], run[-1]
    verb, why = ("red", "") if first.action is Action.DELETE else ("green", "dim")
    name, count = (str(first.version), "") if first is last else (f"{first.version} to {last.version}", f"{len(run):,}")
    reason = "; ".join(first.reasons) + (f": {count} versions" if count else "")
    return [[name, words.size(sum(e.size_bytes for e in run)), Cell(first.action.value, verb), Cell(reason, why)]]
