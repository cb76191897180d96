"""Whole numbers that a caller gives: versions, counts, steps."""

from __future__ import annotations

import operator

from edl_ckpt.core.errors import UsageError


def whole_number(what: str, number: object, *, least: int | None = None) -> int:
    """Return a number of any integer type, numpy's too, as an int; UsageError for anything else, or below `least`.

    >>> whole_number("ps_num", 4)
    4
    """
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what} must be a whole number, got {number!r}") from None
    if isinstance(number, bool):
        raise UsageError(f"{what} must be a whole number, got {number!r}")
    if least is not None and value < least:
        raise UsageError(f"{what} must be at least {least}, got {value}")
    return value
