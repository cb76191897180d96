"""`edl-ckpt undo`: the last prune that went to the trash, put back."""

from __future__ import annotations

from edl_ckpt.cli.options import Location, LockWait, default_location
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_duration, shown


def undo_command(out: Output, location: Location = None, lock_wait: LockWait = "10s") -> None:
    """Put back what the last `prune --trash` deleted, with its metrics and tags."""
    from edl_ckpt.core.commit.trash import undo

    where = location or default_location()
    names = undo(where, wait_seconds=parse_duration(lock_wait), warn=out.warn)
    document = {"schema": "edl-ckpt/undo/1", "location": where, "restored": list(names)}
    out.show(lambda: document, lambda: [f"{shown(where)}: {shown(name)} is back" for name in names])
