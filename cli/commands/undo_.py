"""`edl-ckpt undo`: restores the versions that the last prune moved to the trash."""

from __future__ import annotations

from edl_ckpt.cli.help import examples
from edl_ckpt.cli.manual.codes import NOTES, exits
from edl_ckpt.cli.options import LockWait, Place
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import escaped, parse_duration


@examples(
    "undo run",
    "undo run --lock-wait 1m",
)
@exits(NOTES)
def undo_command(out: Output, location: Place = None, lock_wait: LockWait = "10s") -> None:
    """Restore what the last `prune --trash` deleted.

    The versions come back with their metrics and tags.
    """
    from edl_ckpt.core.operations.undo import undo

    where = out.location(location)
    names = undo(where, wait_seconds=parse_duration(lock_wait), reporter=out.reporter())
    document = {"schema": "edl-ckpt/undo/1", "location": where.url, "restored": list(names)}
    out.show(lambda: document, lambda: [f"{escaped(where.url)}: restored {escaped(name)}" for name in names])
