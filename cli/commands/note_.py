"""`edl-ckpt note`: writes a version's note."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import arguments, references
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped


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

    ref, note = arguments.split_word(words, out, "TEXT", "; put a text of several words in quotes")
    version = references.resolve_named(ref, out, "note", note)
    set_note(version, note, **o.locking(out, lock_wait))
    document = {"schema": "edl-ckpt/note/1", "ref": version.ref, "note": note}
    out.show(lambda: document, [f"{escaped(version.ref)}: {escaped(note) or 'note removed'}"])
