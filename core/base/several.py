"""Arguments that take several elements: a single text or path is one element, not the sequence of its letters."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from edl_ckpt.core.base.errors import UsageError

Element = TypeVar("Element")


def several(given: Iterable[Element], what: str) -> tuple[Element, ...]:
    """Return the elements of what a caller gave, in their order; a text, a path or a single value is one element.

    `what` is the name of the argument, for the message. Raises UsageError for bytes and for None.

    >>> several(["a", "b"], "names"), several("ab", "names"), several(7, "delete")
    (('a', 'b'), ('ab',), (7,))
    """
    value: Any = given
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        raise UsageError(f"{what} must be one element or several, got {value!r:.80}")
    if isinstance(value, str | os.PathLike) or not isinstance(value, Iterable):
        return cast("tuple[Element, ...]", (value,))
    return tuple(value)


def several_pairs(given: Iterable[tuple[str, Element]], what: str) -> tuple[tuple[str, Element], ...]:
    """Return pairs of an old name and what it becomes; one pair by itself is one element, as in `several`.

    Raises UsageError for values that are not pairs, such as a text of two letters.

    >>> several_pairs([("a", "b")], "rename"), several_pairs(("a", "b"), "rename")
    ((('a', 'b'),), (('a', 'b'),))
    """
    found: tuple[Any, ...] = several(given, what)
    if len(found) == 2 and isinstance(found[0], str):
        found = (found,)
    for pair in found:
        if isinstance(pair, str) or not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"{what} must have pairs (old, new), got {pair!r:.80}")
    return tuple((old, new) for old, new in found)
