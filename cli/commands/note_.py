"""`edl-ckpt note`: a text about a version, stored beside it."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError


@declared('note run@100 "before the new features"', 'note run@100 ""', exits=NOTES)
def note_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF TEXT", "The version, and its note; an empty text removes the note.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Write a note about a version.

    It replaces an older note.
    """
    from edl_ckpt.core.operations.annotate import set_note

    if len(words) == 1 and o.looks_like_ref(words[0], out):
        raise UsageError("TEXT is missing", hint="expected REF TEXT")
    if len(words) > 2:
        raise UsageError("expected REF TEXT; put a text of several words in quotes")
    version = o.resolve_named(words[0] if len(words) == 2 else None, out, "note", words[-1])
    set_note(version, words[-1], **o.locking(out, lock_wait))
    document = {"schema": "edl-ckpt/note/1", "ref": version.ref, "note": words[-1]}
    out.show(lambda: document, [f"{escaped(version.ref)}: {escaped(words[-1]) or 'note removed'}"])
