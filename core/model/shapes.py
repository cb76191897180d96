"""The most dimensions that an array may have: files have more, and numpy, which holds all values here, does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError

MOST_DIMENSIONS: Final = 64
"""The limit of numpy 2, and of torch."""


def check_dimensions(name: str, shape: Sequence[int], path: str | None = None) -> None:
    """Raise UnsupportedError for an array of more dimensions than can be read into memory or written for numpy.

    >>> check_dimensions("w", [1] * 65)
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UnsupportedError: 'w' has 65 dimensions, the limit is 64
    """
    if len(shape) > MOST_DIMENSIONS:
        raise UnsupportedError(f"{name!r} has {len(shape)} dimensions, the limit is {MOST_DIMENSIONS}", path=path)
