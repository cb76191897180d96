"""The holder of a location's lock, as a person sees it, and the error of a command that lost its lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.state.owner import format_owner


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock, or held it when it died.

    `silent_seconds` is the time since its last sign of life; None where the storage does not say.
    """

    owner: Mapping[str, Any]
    is_alive: bool
    silent_seconds: float | None
    key: str = field(default="", repr=False)
    """The name of its claim, on storage where each process has one."""


def lost_lock(place: str, owner: Mapping[str, Any]) -> LockedError:
    """Return the error of a command that lost the lock; `owner` is the holder now, {} when there is none."""
    holder = format_owner(owner) if owner else "no process"
    return LockedError(
        f"this command lost the lock while it was stopped; the lock is held by {holder} now",
        path=place,
        hint="nothing further was changed; try again",
    )
