"""What a storage can do, as facts for people: each with a verdict, and what is slower or weaker without it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What a fact means for the commands."""

    FINE = "fine"
    WEAKER = "weaker"
    """Commands work, and something is slower or less safe."""
    BROKEN = "broken"
    """Commands fail."""
    UNKNOWN = "unknown"
    """It was not tried, or the storage does not say."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One property: its name, what was found, and why that matters, '' where nothing follows from it."""

    name: str
    value: str
    verdict: Verdict = Verdict.FINE
    why: str = ""


def judged(name: str, value: str, why: str, *, weak: bool, verdict: Verdict = Verdict.WEAKER) -> Fact:
    """Return a fact with a verdict, and what follows from it, where it is weak; without both where it is fine."""
    return Fact(name, value, verdict, why) if weak else Fact(name, value)


def yes(name: str, why: str, *, able: bool, verdict: Verdict = Verdict.WEAKER) -> Fact:
    """Return the fact of something that a storage can or cannot do; `why` is what follows where it cannot.

    >>> yes("rename", "no trash", able=True), yes("rename", "no trash", able=False).why
    (Fact(name='rename', value='yes', verdict=<Verdict.FINE: 'fine'>, why=''), 'no trash')
    """
    return judged(name, "yes" if able else "no", why, weak=not able, verdict=verdict)
