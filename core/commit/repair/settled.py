"""The outcome of a recovery in words, and the sentences that disks and object storage share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.base.errors import RefusedError

LOOK: Final = "what it describes is not known: look at the versions with `edl-ckpt verify --all`"
MOVE: Final = "look at it, and move it away"


@dataclass(slots=True)
class Settled:
    """What became of all journals of a location, in words."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def unsettled(error: RefusedError) -> str:
    """Return what cannot be settled, and what a person can do about it."""
    return f"{error}; {error.hint}" if error.hint else str(error)


def resumes(version: int) -> str:
    """Return how an interrupted copy goes on."""
    return f"an interrupted copy of version {version} resumes when the same copy is run again"
