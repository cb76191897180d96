"""A checkpoint by itself: the directory or the files of one step, which a reference names without a number."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from contextlib import suppress

from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    NotFoundError,
    RefusedError,
)
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.bounds import MOST_REQUESTS
from edl_ckpt.core.catalog.small_reads import SmallReads
from edl_ckpt.core.model.versions import CheckpointRef, Version
from edl_ckpt.core.sources import registry
from edl_ckpt.core.sources.interface import FlatListing
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.interface import Entry


def named_step(ref: CheckpointRef) -> Version | None:
    """Return the checkpoint of another system in the file, or the files of one prefix, that a reference names.

    It belongs to no location. None for a reference to anything else.
    """
    folder, name = ref.location.split()
    path = ref.location.local_path
    is_prefix = path is not None and not os.path.lexists(path)
    if ref.version != "latest" or not name or not (is_prefix or registry.may_be_file(name)):
        return None
    with suppress(EdlCkptError):  # what comes next says why
        return _alone(folder, ref.location.url, name)
    return None


def directory_alone(location: Location) -> Version | None:
    """Return the checkpoint of another system that a directory is by itself; None for any other directory.

    It has files of a format itself, or in directories with the names that systems give to parts of a step. A directory
    with others, such as runs, is no checkpoint, whatever lies below.
    """
    store = open_location(location)
    names = [*store.level("", MOST_REQUESTS).names]
    if not (registry.has_format(names) or registry.is_whole(names) or any(map(registry.is_part, names))):
        return None
    is_whole = registry.is_whole(names) or registry.has_format(n for n in names if not registry.is_part(n))
    path = location.url.rstrip("/") or location.url
    return _alone(location, path, "", parts=None if is_whole else frozenset(filter(registry.is_part, names)))


def alone_at(place: LocationLike) -> Version:
    """Return the checkpoint of another system that a directory is; CorruptError where it is none.

    Raises the error of listing a directory in it: one bad read is no fact.
    """
    place = Location.of(place)
    path = place.url
    version = _alone(place, path, "")
    if version is None:
        version = _alone(place, path, "")
    if version is None:
        for entry in open_location(place).entries(lambda _: True):
            if entry.fault is not None:
                raise entry.fault.error()
        raise CorruptError("the files are no checkpoint of any system that can be read", path=path)
    return version


def _alone(folder: Location, path: str, name: str, *, parts: frozenset[str] | None = None) -> Version | None:
    """Return the checkpoint of a name in a directory, or the directory itself without a name.

    Of its directories only the `parts` are looked into, None for all.
    """
    store = open_location(folder)
    inside: defaultdict[str, list[Entry]] = defaultdict(list)

    def is_within(directory: str) -> bool:
        is_link = folder.local_path is not None and os.path.islink(store.path(directory))
        is_wanted = not name and (parts is None or directory.partition("/")[0] in parts)
        return is_wanted and not is_link and registry.is_within_step(f"step/{directory}")

    for entry in store.entries(is_within):
        inside[entry.parent].append(entry)
    return registry.alone(FlatListing(store.location, inside, math.inf), path, name, SmallReads(store))


def open_location(location: LocationLike) -> LocalStore | ObjectStore:
    """Return the store of a location; errors as `check_is_no_file`."""
    store = open_store(location)
    check_is_no_file(store.location)
    return store


def check_is_no_file(location: Location) -> None:
    """Raise NotFoundError for a file where a location is needed; a URL costs a request, and is not looked at."""
    path = location.local_path
    if path is not None and os.path.isfile(path):
        raise NotFoundError(
            "a file, and not the directory of a location",
            path=path,
            hint="if it is a checkpoint, make a version of it: "
            + command("import", str(path), "LOCATION@VERSION", "--ranks", "N"),
        )


def check_in_location(version: Version) -> None:
    """Raise RefusedError for a checkpoint by itself, which has no location that could be changed."""
    if version.is_alone:
        what = "file" if version.has_only_shards else "checkpoint"
        raise RefusedError(
            f"a single {what}, not the directory of a run: it has no metrics, tags, note or seal, and is not replaced",
            path=version.path,
            hint="make a version of it: "
            + command("import", version.path, f"LOCATION@{version.version}", "--ranks", "N"),
        )
