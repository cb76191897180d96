"""`edl-ckpt recover`: settles what killed commands left in a location."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.terminal.output import Output, agreed
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError

if TYPE_CHECKING:
    from edl_ckpt.core.commit.repair.survey import Unfinished
    from edl_ckpt.core.storage.location import Location


@declared(
    "recover run",
    "recover s3://models/run --dry-run",
    exits=NOTES,
    c3="something could not be settled",
    c16="not confirmed",
)
def recover_command(
    out: Output,
    location: o.Place = None,
    drop_copies: Annotated[bool, o.flag("Also discard interrupted copies, reshards and the like.")] = False,
    yes: Annotated[
        bool, o.flag("Do not ask, and remove the lock of a process on another host that may be dead.", "-y")
    ] = False,
    dry_run: o.DryRun = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Finish or undo the work of killed commands.

    It first says what it would do. On a terminal it then asks; in a script it acts. Every command that writes to a
    location does the same first. Interrupted copies, reshards, edits and imports are kept, so that they can resume. It
    leaves whatever it cannot resolve untouched and exits with 3; the output suggests a next step.
    """
    from edl_ckpt.core.commit.repair.recovery import recover
    from edl_ckpt.core.commit.repair.survey import unfinished_work

    where = out.location(location)
    if dry_run:
        _show_recovery(out, where, would=_steps(unfinished_work(where, reporter=out), drop_copies=drop_copies))
        return
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    if asks or yes:
        _agree(where, _known_work(where, out), drop_copies=drop_copies, asks=asks, out=out)
    done = recover(where, drop_copies=drop_copies, **o.locking(out, lock_wait))
    _show_recovery(out, where, done=done.done, kept=done.kept, left=done.left)
    out.conclude(ok=not done.left)


def _known_work(where: Location, out: Output) -> Unfinished | None:
    """Return what waits at a location; None where there is nothing to look at: `recover` has the words for that."""
    from edl_ckpt.core.commit.repair.survey import unfinished_work

    try:
        return unfinished_work(where, reporter=out)
    except EdlCkptError:
        return None


def _agree(where: Location, found: Unfinished | None, *, drop_copies: bool, asks: bool, out: Output) -> None:
    """Ask for what `recover` would do, and remove the lock of a holder that is dead, or may be."""
    from edl_ckpt.core.operations.unlock import unlock

    steps = _steps(found, drop_copies=drop_copies) if found is not None else []
    if asks and steps:
        for step in steps:
            print(f"{escaped(where.url)}: {escaped(step)}", file=sys.stderr)
        if not agreed("Do this?"):
            raise RefusedError("not confirmed; nothing was changed", path=where.url, hint="in a script: --yes")
    if found is not None and found.holders and not any(holder.is_alive for holder in found.holders):
        unlock(where, confirm=lambda _: True, reporter=out)


def _steps(found: Unfinished, *, drop_copies: bool) -> list[str]:
    """Return what `recover` would do, in words."""
    from edl_ckpt.core.state.blocked import format_holder

    becomes = "discarded" if drop_copies else "kept: it resumes when the same {} is run again"
    return [
        *(
            f"the lock is held by {format_holder(holder)}: "
            + ("it stays; other commands wait for it" if holder.is_alive else "it is removed")
            for holder in found.holders
        ),
        *found.work,
        *(f"an interrupted copy of version {version}: {becomes.format('copy')}" for version in found.copies),
        *(f"{move}: {becomes.format('command')}" for move in found.moves),
    ]


def _show_recovery(
    out: Output,
    where: Location,
    *,
    done: Sequence[str] = (),
    kept: Sequence[str] = (),
    left: Sequence[str] = (),
    would: Sequence[str] | None = None,
) -> None:
    """Show what was settled, or of a dry run what would be."""
    document = {
        "schema": "edl-ckpt/recover/1",
        "location": where.url,
        "done": list(done),
        "kept": list(kept),
        "left": list(left),
    }
    if would is not None:
        document["would"] = list(would)
    lines = [*done, *(f"kept: {text}" for text in kept), *(f"unresolved: {text}" for text in left), *(would or ())]
    words = [f"{escaped(where.url)}: {escaped(text)}" for text in lines]
    out.show(lambda: document, words or [f"{escaped(where.url)}: nothing to recover"])
