"""Removing the lock of a dead command by hand, after a look at its holder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from edl_ckpt.core.base.errors import LockedError, RefusedError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.job import WARNINGS, Reporter
from edl_ckpt.core.base.words import duration
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.state.lock import open_lock
from edl_ckpt.core.state.owner import Holder, format_owner, is_here
from edl_ckpt.core.storage import Location, LocationLike
from edl_ckpt.core.storage.faults import storage_errors


def unlock(
    location: LocationLike,
    *,
    confirm: Callable[[Sequence[Holder]], bool],
    reporter: Reporter = WARNINGS,
) -> tuple[Holder, ...]:
    """Remove the lock of a location whose holder is dead, and return the holders; () when there is no lock.

    What the holder was doing stays as it is; the next command or `recover` settles it. Raises LockedError when a holder
    is alive: its process is here, or it showed a sign of life from another host in the last minutes. Raises
    RefusedError when `confirm` returns False.
    """
    store = open_location(location)
    where, path = store.location, store.location.local_path
    if path is not None:
        with storage_errors(path):
            os.stat(path)
    lock = open_lock(store, "unlock", reporter)
    holders = tuple(lock.holders())
    for holder in holders:
        if holder.is_alive:
            raise _alive(where, holder)
    if not holders:
        return ()
    if not confirm(holders):
        names = " and ".join(map(format_holder, holders))
        raise RefusedError(f"not confirmed; the lock of {names} stays", path=where.url, hint="in a script: --yes")
    with COMMIT:
        for holder in holders:
            if not lock.remove(holder):
                raise _alive(where, holder)
    return holders


def format_holder(holder: Holder) -> str:
    """Return a holder in words, with its last sign of life."""
    text = format_owner(holder.owner)
    if holder.silent_seconds is not None:
        text += f", last sign of life {duration(round(holder.silent_seconds))} ago"
    if holder.kept_by:
        text += f", its lock is kept by {' and '.join(f'process {pid}' for pid in holder.kept_by)}"
    return text


def _alive(location: Location, holder: Holder) -> LockedError:
    hint = "wait for it: --lock-wait 10m; if its host is gone, try again in three minutes"
    if is_here(holder.owner):
        hint = f"wait for it, or stop it first: kill {holder.owner.get('pid')}"
    return LockedError(f"the lock holder is alive: {format_holder(holder)}", path=location.url, hint=hint)
