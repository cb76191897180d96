"""What `interrupted.json` in a staging directory says of a move that was killed, checked like any file of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edl_ckpt.core.model.listings import InterruptedMove
from edl_ckpt.core.model.versions import UNNUMBERED

_MOST_BYTES: Final = 1 << 63
_MOST_LETTERS: Final = 40


def move_in(document: Mapping[str, Any]) -> InterruptedMove | None:
    """Return the move that a document describes; None for a document that is damaged.

    >>> move_in({"version": 7, "work": "edit", "directory": "version_7", "new": {"variables-0-of-1.ckpt": 5}})
    InterruptedMove(version=7, work='edit', size_bytes=5)
    """
    number, name, work, sizes = (document.get(key) for key in ("version", "directory", "work", "new"))
    if not (isinstance(number, int) and isinstance(name, str) and isinstance(work, str) and isinstance(sizes, dict)):
        return None
    if not (work.isalpha() and work.isascii() and len(work) <= _MOST_LETTERS):
        return None
    if not all(isinstance(size, int) and 0 <= size < _MOST_BYTES for size in sizes.values()):
        return None
    return InterruptedMove(name if number == UNNUMBERED else number, work, min(sum(sizes.values()), _MOST_BYTES))
