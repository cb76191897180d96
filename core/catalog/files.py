"""A checkpoint by itself: a file, or the directory of one step, that a reference names without a number.

A single-file checkpoint of 2019, or one merged shard, is a version under any name. Its number comes from the model in
the file. Nothing next to the file belongs to it: no seal, no metadata, no other version.
"""

from __future__ import annotations

import math
import os
import stat
from collections import defaultdict
from contextlib import suppress

from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.bounds import MOST_REQUESTS
from edl_ckpt.core.catalog.small_reads import SmallReads
from edl_ckpt.core.model.versions import CheckpointRef, ShardFile, State, Version
from edl_ckpt.core.sources import registry
from edl_ckpt.core.sources.interface import FlatListing
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.registry import ALONE, directory_named, shard_named, version_named
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import Entry
from edl_ckpt.core.storage.user_files import check_input


def named_file(ref: CheckpointRef) -> Version | None:
    """Return the checkpoint in the file that a reference names; None when it names a location or one of its versions.

    At a URL, where it takes a request to know, only names with the ending of a checkpoint count as files. Raises
    UsageError for a version in a file, which has only one, and the errors of `file_version`.
    """
    place, path = ref.location, ref.location.local_path
    whole = f"{place}@{ref.version}"
    if path is not None and ref.version != "latest" and not os.path.lexists(path) and os.path.isfile(whole):
        place, path = place.with_url(whole), whole  # an '@' in its name
        ref = CheckpointRef(place, "latest")
    name = place.split()[1]
    named = version_named(name)
    if (named and named.is_file) or place.system not in {"", *ALONE.systems}:
        return None  # a version of the location that it lies in, or of no interest
    if not name.endswith(ALONE.endings) if path is None else not _is_file(path):
        return None
    if ref.version != "latest":
        raise UsageError(f"a file has one version, so '@{ref.version}' cannot follow it", path=place.url)
    return file_version(place)


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


def alone_at(path: str) -> Version:
    """Return the checkpoint of another system that a directory is; CorruptError where it is none.

    Raises the error of listing a directory in it: one bad read is no fact.
    """
    version = _alone(Location(path), path, "")
    if version is None:
        version = _alone(Location(path), path, "")
    if version is None:
        for entry in open_location(Location(path)).entries(lambda _: True):
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


def _is_file(path: str) -> bool:
    """Say whether a path is not that of a directory; one that cannot be looked at is left to the listing."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return os.path.lexists(path)
    except OSError:
        return False


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
            + command("import", str(path), "LOCATION@VERSION", "--ps", "N"),
        )


def check_in_location(version: Version) -> None:
    """Raise RefusedError for a checkpoint by itself, which has no location that could be changed."""
    if version.is_alone:
        what = "file" if version.is_elasticdl else "checkpoint"
        raise RefusedError(
            f"a {what} by itself is in no location: it has no metrics, tags, note or seal, and is never replaced",
            path=version.path,
            hint="make a version of it: " + command("import", version.path, f"LOCATION@{version.version}", "--ps", "N"),
        )


def file_version(location: Location) -> Version | None:
    """Return the checkpoint in a file as a complete version of one shard; None when there is no such file.

    Raises CorruptError for a file that does not begin as a checkpoint does, UnsupportedError where it begins as one of
    another format, IncompleteError for one shard of several, UsageError for a pipe, a device or a socket.
    """
    folder, name = location.split()
    path = location.local_path
    store = open_store(folder)
    if path is None:
        stat = store.stat(name)
        if stat is None:
            return None
        path, size, modified = store.path(name), stat.size_bytes, stat.modified
    else:
        check_input(path)
        if not _is_file(path):
            return None
        with storage_errors(path):
            local = os.stat(path)
        size, modified = local.st_size, local.st_mtime
    _check_alone(folder, path)
    with store.open(path) as reader:
        try:
            number = ALONE.number_in_file(reader, name)
        except CorruptError as error:
            if words := recognised_file(reader):
                raise UnsupportedError(words, path=path, code="other-format") from error
            raise
    shard = ShardFile(0, 1, path, size, modified)
    return Version(folder, number, path, ALONE.alone, State.COMPLETE, 1, (shard,), modified=modified)


def _check_alone(folder: Location, path: str) -> None:
    """Raise IncompleteError for the file of one shard of several."""
    parts = shard_named(path.rpartition("/")[2])
    if parts is None or parts.ps_num == 1:
        return
    above, name = folder.split()
    number = directory_named(name)
    place = f"{above}@{number}" if number is not None else "the directory with all of them"
    raise IncompleteError(
        f"one shard of {parts.ps_num} is not a whole version", path=path, hint=f"name the version instead: {place}"
    )
