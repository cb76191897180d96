"""Words on the command line: a reference before names, and pairs such as NAME=VALUE."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError

Value = TypeVar("Value")
_FILES: Final = (".chkpt", ".ckpt", ".pt", ".pth", ".pth.tar", ".bin", ".safetensors", ".index", ".index.json")
"""How the names of files end that can be a checkpoint by themselves."""


def pair_of(word: str, flag: str, form: str) -> tuple[str, str]:
    """Return both sides of a value such as OLD=NEW; UsageError where one is missing.

    >>> pair_of("a=b", "--rename", "OLD=NEW")
    ('a', 'b')
    """
    name, _, value = word.partition("=")
    if not (name and value):
        raise UsageError(f"{flag}: expected {form}, got {word!r}")
    return name, value


def looks_like_ref(word: str, out: Output) -> bool:
    """Return True for a reference among other arguments: a version, a URL, a directory, a storage, or a file."""
    if out.storages is not None and out.storages.split(word)[0]:
        return True
    is_file = word.endswith(_FILES) and os.path.exists(word)
    return "@" in word or "://" in word or is_file or os.path.isdir(word)


def split_word(words: list[str], out: Output, name: str, advice: str = "") -> tuple[str | None, str]:
    """Return (reference, word) of `REF NAME`; UsageError without the word, and with `advice` for more than one."""
    expected = f"expected REF {name}"
    if len(words) > 2:
        raise UsageError(f"{expected}{advice}")
    if len(words) == 1 and looks_like_ref(words[0], out):
        raise UsageError(f"{name} is missing", hint=expected)
    return words[0] if len(words) == 2 else None, words[-1]


def split_names(words: list[str], out: Output, name: str, what: str) -> tuple[str | None, list[str]]:
    """Return (reference, names) of `REF NAME...`; UsageError without a name, which is that of `what` to remove."""
    ref, names = (words[0], words[1:]) if looks_like_ref(words[0], out) else (None, words)
    if not names:
        raise UsageError(f"{name} is missing, the {what} to remove", hint=f"expected REF {name}...")
    return ref, names


def split_pairs(
    words: list[str], pair: str, value_of: Callable[[str, str], Value], *, has_ref: bool
) -> tuple[str | None, dict[str, Value]]:
    """Return (reference, values) of `REF NAME=VALUE...`; UsageError for a word that is no `pair`, and without any.

    `value_of` makes the value of a name and a text.
    """
    values: dict[str, Value] = {}
    for word in words[has_ref:]:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r}: expected {pair}")
        values[name] = value_of(name, text)
    if not values:
        raise UsageError(f"{pair} is missing", hint=f"expected REF {pair}...")
    return words[0] if has_ref else None, values
