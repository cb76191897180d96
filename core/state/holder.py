"""The holder of a location's lock, as a person sees it, and the error of a command that lost the lock to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.state.owner import format_owner


class LostLockError(LockedError):
    """Another process has the lock that this command had, so the command ends here."""


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
    kept_by: Sequence[int] = ()
    """The processes of this host that have the file of a dead holder open, and so may keep its lock."""


def lost_lock(place: str, owner: Mapping[str, Any]) -> LostLockError:
    """Return the error of a command that lost the lock; `owner` is the holder now, {} when there is none."""
    holder = format_owner(owner) if owner else "no process"
    return LostLockError(
        f"this command lost the lock while it was stopped; the lock is held by {holder} now",
        path=place,
        hint="nothing further was changed; try again",
    )
