"""`edl-ckpt unlock`: removes the lock of a dead command, after showing its holder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.terminal.output import Output, agreed
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.core.state.holder import Holder


@declared(
    "unlock run",
    "unlock s3://models/run --yes",
    exits=NOTES,
    c0="the lock is gone",
    c11="the holder is alive, or may be",
    c16="not confirmed",
)
def unlock_command(
    out: Output,
    location: o.Place = None,
    yes: Annotated[bool, o.flag("Do not ask for confirmation.", "-y")] = False,
) -> None:
    """Remove the lock of a dead command, after showing its holder.

    Other commands take over a stale lock by themselves: at once if its process died on this host, otherwise after ten
    minutes. This command does it earlier. It refuses while the lock holder is, or may be, alive.
    """
    from edl_ckpt.core.operations.unlock import unlock
    from edl_ckpt.core.state.blocked import format_holder

    where = out.location(location)
    holders = unlock(where, confirm=lambda found: yes or _confirm(found), reporter=out)
    listed = list(map(_holder_object, holders))
    document = {"schema": "edl-ckpt/unlock/1", "location": where.url, "unlocked": bool(holders), "holders": listed}
    name = escaped(where.url)
    words = [f"{name}: removed the lock of {escaped(format_holder(holder))}" for holder in holders]
    words.append(f"to finish or roll back its work: {command('recover', name)}" if holders else f"{name}: not locked")
    out.show(lambda: document, words)


def _holder_object(holder: Holder) -> dict[str, Any]:
    owner = {key: holder.owner.get(key) for key in ("pid", "host", "since", "purpose")}
    return owner | {"alive": holder.is_alive, "silent_seconds": holder.silent_seconds}


def _confirm(holders: Sequence[Holder]) -> bool:
    """Show the holders and ask on a terminal; False in a script."""
    from edl_ckpt.core.state.blocked import format_holder

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    for holder in holders:
        print(f"locked by {escaped(format_holder(holder))}", file=sys.stderr)
    return agreed("Remove this lock?")
