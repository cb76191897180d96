"""Sizes, durations and limits as options take them."""

from __future__ import annotations

import math
import re

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.patterns import LatePattern

_SIZE = LatePattern(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE | re.ASCII)
_NUMBER = LatePattern(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DURATION = LatePattern(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_size(text: str) -> int:
    """Return the bytes of `512MiB`, `10GB`, `4096B`, `0`; UsageError for anything else.

    A number without a unit is refused: its author may have meant GB.

    >>> parse_size("512MiB"), parse_size("10GB"), parse_size("1.5k"), parse_size("0")
    (536870912, 10000000000, 1500, 0)
    """
    if _NUMBER.fullmatch(text.strip()) and float(text):
        number = text.strip()
        raise UsageError(f"{number!r} has no unit (did you mean {number}GB, {number}MiB or {number}B?)")
    match = _SIZE.fullmatch(text.strip())
    base = 1024 if match and match[3] else 1000
    found = float(match[1]) * base ** " kmgtp".index(match[2].lower() or " ") if match else math.inf
    if math.isinf(found):
        raise UsageError(f"{text!r} is not a size (expected one such as 512MiB or 10GB)")
    return int(found)


def parse_duration(text: str) -> float:
    """Return the seconds of `90m`, `36h`, `7d`, `0`; UsageError for anything else, such as a number without a unit.

    >>> parse_duration("90m"), parse_duration("7d"), parse_duration("0")
    (5400.0, 604800.0, 0.0)
    """
    if text.strip() == "0":
        return 0.0
    if _NUMBER.fullmatch(text.strip()):
        number = text.strip()
        raise UsageError(f"{number!r} has no unit (did you mean {number}s, {number}m, {number}h or {number}d?)")
    match = _DURATION.fullmatch(text.strip())
    found = float(match[1]) * _SECONDS[match[2]] if match else math.inf
    if math.isinf(found):
        raise UsageError(f"{text!r} is not a duration (expected one such as 90m, 36h or 7d)")
    return found


def parse_limit(text: str) -> float | None:
    """Return the seconds of a duration, also of a plain 0; None for `none`.

    >>> parse_limit("2h"), parse_limit("0"), parse_limit("none")
    (7200.0, 0.0, None)
    """
    word = text.strip().lower()
    return None if word == "none" else parse_duration(word)
