"""`edl-ckpt unlock`: removes the lock of a dead command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.terminal.output import Output, agreed
from edl_ckpt.cli.terminal.text import escaped

if TYPE_CHECKING:
    from edl_ckpt.core.state.owner import Holder


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
