"""Numbers and times as the page of a report has them, in charts and in tables."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def when(seconds: float) -> str:
    """Return a time in UTC, to the minute; '' for an unknown one.

    >>> when(0.0), when(1_790_000_000.5)
    ('', '2026-09-21 14:13')
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else ""


def number(value: float | None) -> str:
    """Return a number to read.

    >>> number(0.123456789), number(None), number(float("nan")), number(1e-9)
    ('0.123457', '', 'NaN', '1e-09')
    """
    return "" if value is None else "NaN" if math.isnan(value) else f"{value:.6g}"
