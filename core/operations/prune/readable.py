"""The versions that a prune looks at, and which of them cannot be read: only a version that can be read counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl_ckpt.core.base.errors import EdlCkptError, LockedError
from edl_ckpt.core.catalog.swaps import staged_paths
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.retention import by_location
from edl_ckpt.core.reading.newest import newest_readable
from edl_ckpt.core.storage import open_store


def prunable(versions: Iterable[Version]) -> list[Version]:
    """Return the versions that a prune looks at: all but those that only a name tells from others.

    Those with a UUID are Determined's; of others without a number of their own nothing says which is the older one.

    They neither go nor count: the newest complete version is one with a number.
    """
    return [version for version in versions if not version.is_named]


def looked_at(
    versions: Iterable[Version], errors: list[EdlCkptError] | None = None
) -> tuple[list[Version], dict[str, str]]:
    """Return the versions that a prune looks at, and by path why complete ones cannot be read, as `find_unreadable`.

    An incomplete version of which a living process is saving a shard is being written, even if the process has not
    touched the version for longer than the grace period. On object storage nothing shows it.
    """
    listed = prunable(versions)
    places = {version.location for version in listed if version.state is State.INCOMPLETE}
    staged: set[str] = set()
    for place in places:
        staged.update(staged_paths(open_store(place)))
    looked: list[Version] = []
    for version in listed:
        is_saved_now = version.state is State.INCOMPLETE and version.path in staged
        looked.append(replace(version, state=State.WRITING) if is_saved_now else version)
    return looked, find_unreadable(looked, errors)


def find_unreadable(versions: Iterable[Version], errors: list[EdlCkptError] | None = None) -> dict[str, str]:
    """Return, by path, why good versions cannot be read: from each location's newest down to the first that can.

    Reads headers only: a shard that is still being written is shorter than its headers say, grows while it is read, or
    ends before it describes its tables. `errors` gets the errors of reading, which say nothing of the content.
    """
    faults: dict[str, str] = {}
    found: list[EdlCkptError] = []
    for trial in by_location(v for v in versions if v.is_good):
        faults |= newest_readable(trial, found)[1]
    if errors is not None:
        errors += [error for error in found if not isinstance(error, LockedError)]
    return faults
