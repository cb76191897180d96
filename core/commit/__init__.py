"""How something new becomes visible, and how a crash half-way is settled."""

from __future__ import annotations

from edl_ckpt.core.commit.interface import LockedLocation, VersionOutput
from edl_ckpt.core.commit.local import LocalOutput
from edl_ckpt.core.commit.remote import RemoteOutput
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.storage import LocalStore, open_store


def open_output(
    place: LockedLocation,
    layout: Layout,
    number: int,
    *,
    purpose: str,
    replaces: Version | None = None,
    keep_old: bool = False,
    spool: bool = False,
) -> VersionOutput:
    """Return where to write a version of a location; `replaces` is the one whose place it takes, if any.

    `spool` has a remote version written to the
    local disk first, where its parts would take too much memory (`open_memory`).
    """
    store = open_store(place.location)
    if isinstance(store, LocalStore):
        return LocalOutput(store, layout, number, purpose, replaces, keep_old=keep_old)
    return RemoteOutput(store, layout, number, purpose, replaces, spool=spool)
