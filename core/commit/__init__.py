"""How a version becomes visible, and how an interrupted commit is finished, rolled back or resumed."""

from __future__ import annotations

from edl_ckpt.core.commit.interface import LockedLocation, Resume, VersionOutput
from edl_ckpt.core.commit.local import LocalOutput
from edl_ckpt.core.commit.remote import RemoteOutput
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.storage import LocalStore, open_store


def open_output(
    place: LockedLocation,
    layout: Layout,
    number: int,
    *,
    purpose: str,
    replaces: Version | None = None,
    keep_old: bool = False,
    memory_bytes: int | None = None,
    resumes: Resume | None = None,
    reporter: Reporter = WARNINGS,
) -> VersionOutput:
    """Return where to write a version of a locked location; `replaces` is the version whose place it takes, if any.

    `keep_old` moves the replaced shards to the trash. The open parts of a remote version take at most `memory_bytes`
    (by default `PART_MEMORY_BYTES`), and the others wait on the local disk. `resumes` continues an interrupted run of
    the same work. The reporter is warned when a replaced version's owner, group or ACL cannot be kept.
    """
    store = open_store(place.location)
    if isinstance(store, LocalStore):
        return LocalOutput(
            place,
            store,
            layout,
            number,
            purpose,
            replaces=replaces,
            keep_old=keep_old,
            resumes=resumes,
            reporter=reporter,
        )
    return RemoteOutput(
        place, store, layout, number, purpose, replaces=replaces, memory_bytes=memory_bytes, resumes=resumes
    )
