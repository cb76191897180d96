"""`edl-ckpt recover`: finishes or undoes the work of commands that were killed."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options.common import LockWait, Place, flag, locking
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped


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
