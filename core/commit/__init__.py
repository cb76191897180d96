"""How something new becomes visible, and how a crash half-way is settled."""

from __future__ import annotations

from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.local import LocalOutput
from edl_ckpt.core.commit.remote import RemoteOutput
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.storage import LocalStore, open_store
from edl_ckpt.core.storage.location import Location


def open_output(
    location: Location,
    layout: Layout,
    number: int,
    *,
    purpose: str,
    replaces: Version | None = None,
    keep_old: bool = False,
    spool: bool = False,
) -> VersionOutput:
    """Return where to write a version of a location; `replaces` is the one whose place it takes, if any.

    The caller holds the lock of a location in which a version is replaced. `spool` has a remote version written to the
    local disk first, where its parts would take too much memory (`open_memory`).
    """
    store = open_store(location)
    if isinstance(store, LocalStore):
        return LocalOutput(store, layout, number, purpose, replaces, keep_old=keep_old)
    return RemoteOutput(store, layout, number, purpose, replaces, spool=spool)
