"""`edl-ckpt undo`: restores what the last `prune --trash` deleted."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import references
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError

_Deleted = Annotated[
    str | None,
    o.argument(
        "[REF]",
        "LOCATION, @VERSION or both; a version is a number. Default: the whole last deletion in $EDL_CKPT_DIR, "
        "the default storage or the current directory.",
    ),
]


@declared("undo run", "undo run@50", exits=NOTES)
def undo_command(out: Output, ref: _Deleted = None, lock_wait: o.LockWait = "10s") -> None:
    """Restore what the last `prune --trash` deleted.

    Versions return with their metrics and tags. With @VERSION, only that version returns, from the last deletion that
    has it. After `reshard --keep-old`, the old shards return, and the new ones go to the trash.
    """
    from edl_ckpt.core.operations.undo import undo

    asked = references.parsed_ref(ref, out)
    where, number = asked.location, asked.version if isinstance(asked.version, int) else None
    if number is None and (asked.version != "latest" or (ref or "").endswith("@latest")):
        raise UsageError(f"@{asked.version}: a version in the trash has only its number", path=where.url)
    names = undo(where, number, **o.locking(out, lock_wait))
    document = {"schema": "edl-ckpt/undo/1", "location": where.url, "restored": list(names)}
    out.show(lambda: document, [f"{escaped(where.url)}: restored {escaped(name)}" for name in names])
