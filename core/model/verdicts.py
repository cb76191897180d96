"""What verify found for a version: a level, whether it found errors, when, and the first of them.

A verdict is about the files that were read. The digest of `Version.files_identity` tells these from any others:
`state/verdicts.py` remembers it with the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from edl_ckpt.core.base.choices import Level

DEPTHS: Final[dict[str, int]] = {"quick": 0, "default": 1, "deep": 2}
"""How much each level reads: a deeper one finds all that a less deep one finds."""
READ_AT: Final[dict[str, str]] = {
    "quick": "headers checked only",
    "default": "headers and ids checked, not values",
    "deep": "every value checked",
}
"""What a version without errors is known to be, by the level of its verdict."""


class Verdict(NamedTuple):
    """The result of one verification; `at` in seconds since the epoch."""

    level: Level
    ok: bool
    at: float
    errors: int = 0
    first: str = ""
    """The first error in a few words, such as 'checksum of user.weight'; '' without errors."""

    @property
    def date(self) -> str:
        """Return the day of the verification in UTC, as 2026-11-28."""
        return datetime.fromtimestamp(self.at, UTC).date().isoformat()

    @property
    def words(self) -> str:
        """Return what was found, with the day.

        >>> Verdict("deep", False, 0.0, 1, "checksum of user.weight").words
        'damaged: checksum of user.weight, 1970-01-01'
        >>> Verdict("deep", True, 0.0).words
        'every value checked, 1970-01-01'
        """
        more = f" and {self.errors - 1} more" if self.errors > 1 else ""
        return f"{READ_AT[self.level] if self.ok else f'damaged: {self.first}{more}'}, {self.date}"

    def supersedes(self, other: Verdict) -> bool:
        """Say whether this verdict of the same files makes another one obsolete: it is later, and as deep."""
        return self.at >= other.at and DEPTHS[self.level] >= DEPTHS[other.level]


def verdict_of(found: Iterable[Verdict]) -> Verdict | None:
    """Return the one verdict of the same files from all that is known of them; None without any.

    An error counts until a later verification that is as deep finds none. Without errors the deepest one counts.

    >>> good, bad = Verdict("deep", True, 1.0), Verdict("quick", False, 2.0, 1, "truncated")
    >>> verdict_of([good, bad]).ok, verdict_of([good, bad, Verdict("default", True, 3.0)]).level
    (False, 'deep')
    """
    every = list(found)
    errors = [v for v in every if not v.ok and not any(w.ok and w.supersedes(v) for w in every)]
    return max(errors or every, key=lambda v: (DEPTHS[v.level], v.at), default=None)
