"""Taking back the last prune or reshard, from the trash."""

from __future__ import annotations

import os
from functools import partial

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.listing import command_to_keep, list_versions, shared_tags
from edl_ckpt.core.catalog.target import apart, layouts_at
from edl_ckpt.core.commit.deletion.records import TrashEntry
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.sources.registry import version_named
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import LocationLike, Store


def undo(
    location: LocationLike,
    version: int | None = None,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> tuple[str, ...]:
    """Put the versions of the last deletion in the trash back, with their metadata; return their names.

    With `version`, a number, only that one comes back, from the last deletion that has it. A version that `keep_old` of
    a reshard kept changes places with the new one: a second undo brings that back. Takes the lock itself. Warns
    of a tag that another version got meanwhile: then both have it. Raises NotFoundError when there is no such deletion,
    RefusedError, before anything moves, when a version of such a name exists again or the location has versions of
    another layout, and UnsupportedError on storage that has no trash.
    """
    with location_lock(location, "undo", wait_seconds=wait_seconds, reporter=reporter) as locked:
        where, check = locked.store.location, partial(_check_layouts, locked.store)
        names = kind_of(locked.store).trash.put_back(version, check, reporter)
    for tag, versions in shared_tags(list_versions(where).versions).items():
        if any(set(v.names_outside) & set(names) for v in versions):
            numbers = " and ".join(str(v.version) for v in versions)
            reporter.warn(
                f"{where}: versions {numbers} have the tag {tag!r}, so @{tag} names none of them;"
                f" to keep it on one: {command_to_keep(tag, versions)}"
            )
    return names


def _check_layouts(store: Store, entry: TrashEntry) -> None:
    """Raise RefusedError if the deleted versions have another layout than those that are at the location now."""
    there = layouts_at(store)
    versions = {os.path.basename(version.path): version for version in list_versions(entry.path).versions}
    for name, named in zip(entry.recorded, map(version_named, entry.recorded), strict=True):
        others = apart(named.layout, there) if named else frozenset()
        if named and others:
            version = versions.get(name)  # loose files are in a directory of their own
            layouts = " and ".join(sorted(layout.name for layout in others))
            raise RefusedError(
                f"{name} has the {(version or named).layout.name} layout, and the location has versions"
                f" in the {layouts} layout: ElasticDL's scan would crash; nothing was restored",
                path=store.location.url,
                hint="try: "
                + command(
                    "reshard", version.ref, "--ranks", str(version.ps_num or "N"), "--output", str(store.location)
                )
                if version
                else None,
            )
