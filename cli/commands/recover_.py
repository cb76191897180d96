"""`edl-ckpt recover`: finishes or undoes the work of commands that were killed."""

from __future__ import annotations

from typing import Annotated

import typer

from edl_ckpt.cli.help import examples
from edl_ckpt.cli.options import Location, LockWait, default_location
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import escaped, parse_duration


@examples(
    "recover run",
    "recover s3://models/run --drop-copies",
)
def recover_command(
    out: Output,
    location: Location = None,
    drop_copies: Annotated[bool, typer.Option("--drop-copies", help="Also discard interrupted copies.")] = False,
    lock_wait: LockWait = "10s",
) -> None:
    """Finish or undo the work of killed commands.

    Every command that writes to a location does this first. Interrupted copies are kept, so that they can resume.
    """
    from edl_ckpt.core.commit.recovery import recover

    where = location or default_location()
    done = recover(
        where,
        drop_copies=drop_copies,
        wait_seconds=parse_duration(lock_wait),
        warn=out.warn,
        storage_options=out.storage_options,
    )
    document = {"schema": "edl-ckpt/recover/1", "location": where, "done": list(done.done), "kept": list(done.kept)}
    words = [f"{escaped(where)}: {escaped(text)}" for text in (*done.done, *(f"kept: {text}" for text in done.kept))]
    out.show(lambda: document, lambda: words or [f"{escaped(where)}: nothing to recover"])
