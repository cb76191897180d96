"""Checkpoint directories below a directory: of an experiment, of a user, or of a bucket."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.job import WARNINGS, Reporter
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.sources.registry import is_own_name, version_named
from edl_ckpt.core.storage import Location


def versions_among(location: Location, names: Collection[str]) -> set[str]:
    """Return the names of a location that are versions; it is listed where others use such names, too."""
    versions = set(filter(is_own_name, names))
    if any(name not in versions and version_named(name) for name in names):
        versions |= {version.path.rpartition("/")[2] for version in list_versions(location, wait_seconds=0).versions}
    return versions


def locations_below(
    location: Location, *, depth: int | None = None, reporter: Reporter = WARNINGS
) -> Iterator[Location]:
    """Yield the locations with versions in a directory and below it, by name, each before those below it.

    `depth` limits how far below; 0 is the directory itself. Hidden directories and links to directories are left out. A
    directory below that cannot be listed is a warning. One listing for each directory. Raises the error of listing the
    directory itself.
    """
    names = sorted(open_location(location).names(""))
    versions = versions_among(location, names)
    if versions:
        yield location
    if depth == 0:
        return
    for name in names:
        place = location.with_url(f"{location.url.rstrip('/')}/{name}")
        path = place.local_path
        if name.startswith(".") or name in versions or (path and (os.path.islink(path) or not os.path.isdir(path))):
            continue
        try:
            yield from locations_below(place, depth=None if depth is None else depth - 1, reporter=reporter)
        except EdlCkptError as error:
            reporter.warn(f"{error}; everything below it is left out")
