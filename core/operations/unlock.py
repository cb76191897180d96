"""Taking the lock of a dead command off a location, by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.state.blocked import format_holder, unlock_refused
from edl_ckpt.core.state.holder import Holder
from edl_ckpt.core.state.lock import open_lock
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.faults import storage_errors


def unlock(
    location: LocationLike,
    *,
    confirm: Callable[[Sequence[Holder]], bool],
    reporter: Reporter = WARNINGS,
) -> tuple[Holder, ...]:
    """Remove the lock of a location whose holder is dead, and return the holders; () when there is no lock.

    What the holder was doing stays as it is; the next command or `recover` settles it. Raises LockedError when a holder
    is alive, because its process is here, or may be: it showed a sign of life from another host in the last
    minutes. Raises RefusedError when `confirm` returns False.
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
            raise unlock_refused(where, holder)
    if not holders:
        return ()
    if not confirm(holders):
        names = " and ".join(map(format_holder, holders))
        raise RefusedError(f"not confirmed; the lock of {names} stays", path=where.url, hint="in a script: --yes")
    with COMMIT:
        for holder in holders:
            if not lock.remove(holder):
                raise unlock_refused(where, holder)
    return holders
