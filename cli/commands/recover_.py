"""The commands that settle what others left: `recover` after a kill, `undo` of a deletion, `unlock` of a dead lock."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.common import LockWait, Place, argument, flag, locking, parsed_ref
from edl_ckpt.cli.terminal.output import Output, agreed
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.state.owner import Holder


@declared("recover run", "recover s3://models/run --drop-copies", exits=NOTES, c3="something could not be settled")
def recover_command(
    out: Output,
    location: Place = None,
    drop_copies: Annotated[bool, flag("Also discard interrupted copies.")] = False,
    lock_wait: LockWait = "10s",
) -> None:
    """Finish or undo the work of killed commands.

    Every command that writes to a location does this first. Interrupted copies are kept, so that they can resume. It
    leaves whatever it cannot resolve untouched and exits with 3; the output suggests a next step.
    """
    from edl_ckpt.core.commit.repair.recovery import recover

    where = out.location(location)
    done = recover(where, drop_copies=drop_copies, **locking(out, lock_wait))
    lists = {"done": list(done.done), "kept": list(done.kept), "left": list(done.left)}
    kept, left = (f"kept: {text}" for text in done.kept), (f"unresolved: {text}" for text in done.left)
    words = [f"{escaped(where.url)}: {escaped(text)}" for text in (*done.done, *kept, *left)]
    out.show(
        lambda: {"schema": "edl-ckpt/recover/1", "location": where.url, **lists},
        words or [f"{escaped(where.url)}: nothing to recover"],
    )
    out.conclude(ok=not done.left)


_Deleted = Annotated[
    str | None,
    argument(
        "[REF]",
        "LOCATION, @VERSION or both; a version is a number. Default: the whole last deletion in $EDL_CKPT_DIR, "
        "the default storage or the current directory.",
    ),
]


@declared("undo run", "undo run@50", exits=NOTES)
def undo_command(out: Output, ref: _Deleted = None, lock_wait: LockWait = "10s") -> None:
    """Restore what the last `prune --trash` deleted.

    Versions return with their metrics and tags. With @VERSION, only that version returns, from the last deletion that
    has it. After `reshard --keep-old`, the old shards return, and the new ones go to the trash.
    """
    from edl_ckpt.core.operations.undo import undo

    asked = parsed_ref(ref, out)
    where, number = asked.location, asked.version if isinstance(asked.version, int) else None
    if number is None and (asked.version != "latest" or (ref or "").endswith("@latest")):
        raise UsageError(f"@{asked.version}: a version in the trash has only its number", path=where.url)
    names = undo(where, number, **locking(out, lock_wait))
    document = {"schema": "edl-ckpt/undo/1", "location": where.url, "restored": list(names)}
    out.show(lambda: document, [f"{escaped(where.url)}: restored {escaped(name)}" for name in names])


@declared(
    "unlock run",
    "unlock s3://models/run --yes",
    exits=NOTES,
    c0="the lock is gone",
    c11="the holder is alive",
    c16="not confirmed",
)
def unlock_command(
    out: Output,
    location: o.Place = None,
    yes: Annotated[bool, o.flag("Do not ask for confirmation.", "-y")] = False,
) -> None:
    """Remove the lock of a dead command, after showing its holder.

    Other commands take over a stale lock by themselves: at once if its process died on this host, otherwise after ten
    minutes. This command does it earlier. It refuses while the lock holder is alive.
    """
    from edl_ckpt.cli.render import unlock as render
    from edl_ckpt.core.operations.undo import unlock

    where = out.location(location)
    holders = unlock(where, confirm=lambda found: yes or _confirm(found), reporter=out)
    out.show(lambda: render.document(where, holders), render.human(where, holders))


def _confirm(holders: Sequence[Holder]) -> bool:
    """Show the holders and ask on a terminal; False in a script."""
    from edl_ckpt.core.operations.undo import format_holder

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    for holder in holders:
        print(f"locked by {escaped(format_holder(holder))}", file=sys.stderr)
    return agreed("Remove this lock?")
