"""The error of a command that does not get the lock: who holds it, since when, the last sign of life, and the way on.

A process of this host can be looked up, so it is alive or has ended. Of a process on another host only its last sign of
life is known: it is never called alive, and `unlock` works once it has been silent for MISSED_SECONDS.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.words import command, duration
from edl_ckpt.core.state.holder import Holder
from edl_ckpt.core.state.owner import format_owner, has_ended, is_here
from edl_ckpt.core.state.remote_lock import MISSED_SECONDS
from edl_ckpt.core.storage.location import Location

_WAIT = "try again when it is done, or wait for it: --lock-wait 10m"


def format_holder(holder: Holder) -> str:
    """Return a holder in words, with its last sign of life."""
    text = format_owner(holder.owner)
    if holder.silent_seconds is not None:
        text += f", last sign of life {duration(round(holder.silent_seconds))} ago"
    if holder.kept_by:
        text += f", its lock is kept by {' and '.join(f'process {pid}' for pid in holder.kept_by)}"
    return text


def locked_error(location: Location, holders: Sequence[Holder]) -> LockedError:
    """Return the error of a command that did not get the lock in time; `holders` may be empty."""
    if not holders:
        return LockedError("locked by another edl-ckpt", path=location.url, hint=_WAIT)
    holder = holders[0]
    return LockedError(f"locked by {format_holder(holder)}", path=location.url, hint=_way_on(location, holder))


def unlock_refused(location: Location, holder: Holder) -> LockedError:
    """Return the error of `unlock` while the holder is alive, or may be."""
    if is_here(holder.owner):
        hint = f"wait for it, or stop it first: kill {holder.owner.get('pid')}"
        return LockedError(f"the lock holder is alive: {format_holder(holder)}", path=location.url, hint=hint)
    return LockedError(
        f"the lock holder may be alive: {format_holder(holder)}",
        path=location.url,
        hint=f"unlock works {_from_when(holder)}; or wait for it: --lock-wait 10m",
    )


def _way_on(location: Location, holder: Holder) -> str:
    unlock = command("unlock", location.url)
    if has_ended(holder.owner):
        return f"that process has ended, and another one keeps its lock: {unlock}"
    if is_here(holder.owner):
        return _WAIT
    host = holder.owner.get("host") or "its host"
    return f"{_WAIT}; if {host} is gone: {unlock}, which works {_from_when(holder)}"


def _from_when(holder: Holder) -> str:
    """Return from when on a person may remove the lock of a process on another host, in words."""
    waited = f"{duration(MISSED_SECONDS)} after its last sign of life"
    left = MISSED_SECONDS - (holder.silent_seconds or 0.0)
    if left <= 0:
        return f"now, {waited}"
    return f"from {time.strftime('%H:%M:%S', time.gmtime(time.time() + left + 1))} UTC on, {waited}"
