"""`edl-ckpt metadata`: records values of the user's own with versions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import arguments, references
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version


_AS_TEXT = ("{", "[", '"')
"""What begins like this is meant to be JSON, so it is not taken for a text when it is none."""


@declared("metadata set run@100 lr=0.05 owner=ads", "metadata set run@100 'beta=[0.9, 0.999]'", exits=NOTES)
def metadata_set_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF KEY=JSON...", "The version, and its keys with their values.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Record values with a version.

    A value is JSON: a number, true, false, null, a list, an object or a text in quotes. Any other word is a text, even
    NaN and Infinity, which JSON lacks. New values replace older ones of the same keys. `inspect` shows them, and `copy`
    copies them.
    """
    from edl_ckpt.core.operations.annotate import set_metadata

    ref, values = arguments.split_pairs(words, "KEY=JSON", _json_value, has_ref=_is_ref(words[0]))
    version = references.resolve_named(ref, out, "metadata set", *words[ref is not None :])
    set_metadata(version, values, **o.locking(out, lock_wait))
    _show_metadata(out, references.resolve_ref(version.ref, out))


@declared(
    "metadata show run@100",
    "metadata show run@best:auc --json",
    exits=NOTES,
    c3="some of it cannot be read now",
    rows=True,
)
def metadata_show_command(out: Output, ref: o.Ref = None) -> None:
    """Show the values recorded with a version."""
    version = references.resolve_ref(ref, out)
    _show_metadata(out, version)
    if version.metadata_fault:
        out.warn(f"{version.ref}: {version.metadata_fault}")
    out.conclude(ok=not version.unread)


@declared("metadata remove run@100 owner", "metadata remove run@100 owner lr", exits=NOTES)
def metadata_remove_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF KEY...", "The version, and the keys to remove.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Remove values from a version."""
    from edl_ckpt.core.operations.annotate import remove_metadata

    ref, keys = arguments.split_names(words, out, "KEY", "key")
    version = references.resolve_named(ref, out, "metadata remove", *keys)
    remove_metadata(version, keys, **o.locking(out, lock_wait))
    _show_metadata(out, references.resolve_ref(version.ref, out))


def _show_metadata(out: Output, version: Version) -> None:
    from edl_ckpt.cli.render.metadata import metadata_document, metadata_human, metadata_rows

    out.show(lambda: metadata_document(version), metadata_human(version), lambda: metadata_rows(version))


def _is_ref(word: str) -> bool:
    """Say whether the first word is a reference: the names of locations and the values of keys may have a '='."""
    key, equals, _ = word.partition("=")
    return not equals or "@" in key or "/" in key or os.path.isdir(word.rpartition("@")[0] or word)


def _json_value(key: str, text: str) -> Any:
    from edl_ckpt.core.state.document import parse_value

    try:
        return parse_value(text)
    except ValueError as error:
        if text.startswith(_AS_TEXT):
            raise UsageError(f"{key}: not JSON: {error}", hint="a text that begins so needs quotes of JSON") from None
        return text
