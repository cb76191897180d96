"""The entries of a storage as versions: those of a location, as one flat listing has them, and a checkpoint by itself.

Sources claim the versions of a location; all other entries are foreign. A single-file checkpoint of 2019, or one merged
shard, is a version under any name. Its number comes from the model in the file. Nothing next to the file belongs to it:
no seal, no metadata, no other version.
"""

from __future__ import annotations

import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

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
from edl_ckpt.core.catalog.bounds import MOST_REQUESTS, look
from edl_ckpt.core.catalog.interest import Interest
from edl_ckpt.core.catalog.ownership import with_owners
from edl_ckpt.core.catalog.record import with_record
from edl_ckpt.core.catalog.small_reads import SmallReads
from edl_ckpt.core.model.versions import CheckpointRef, ForeignEntry, Listing, ShardFile, State, Version
from edl_ckpt.core.sources import registry
from edl_ckpt.core.sources.elasticdl.loader import elasticdl_version
from edl_ckpt.core.sources.interface import FlatListing, Source
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.registry import ALONE, directory_named, shard_named, version_named
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, STATE_DIR, is_resumable
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import Entry, Store, lists_marks
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
    """Return the checkpoint of another system that a directory is; CorruptError where it is none."""
    version = _alone(Location(path), path, "")
    if version is None:
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


def grouped(store: Store, entries: list[Entry], fresh_after: float) -> Listing:
    """Return the versions among the entries of a location, without metadata; `fresh_after` as in `FlatListing`.

    Where built-in sources claim nothing, and there is something, the sources of other packages have a listing.
    """
    system = store.location.system
    listing = _grouped(store, entries, fresh_after, registry.chosen(system))
    listing = with_record(store, replace(listing, versions=with_owners(store, listing.versions)), entries)
    if listing.versions or not listing.foreign or not (others := registry.others()):
        return listing
    others = tuple(source for source in others if system in {"", *source.systems})
    known = Interest(store)
    wider = look(store, lambda inside: known(inside) or registry.looked_into(inside, others)).entries
    return _grouped(store, wider, fresh_after, others)


def look_at(store: Store, directory: str, fresh_after: float = math.inf) -> Version | None:
    """Return the version in one directory of a location, without its metadata; None when there is no such version."""
    listed = store.below(directory, Interest(store)) if lists_marks(store) else store.entries(directory.__eq__)
    inside = [entry for entry in listed if directory in {entry.relative, entry.parent}]
    return next(iter(grouped(store, inside, fresh_after).versions), None)


def _grouped(store: Store, entries: list[Entry], fresh_after: float, sources: Sequence[Source]) -> Listing:
    inside: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        inside[entry.parent].append(entry)
    has_state = any(entry.name == STATE_DIR for entry in inside[""])
    listing = FlatListing(store.location, inside, fresh_after, has_state)
    versions = registry.claimed(listing, SmallReads(store), sources)
    claimed = {version.path for version in versions} | {file.path for v in versions for file in v.files}
    others = (e for e in inside[""] if e.path not in claimed and e.name != STATE_DIR)
    foreign = sorted(
        (ForeignEntry(entry.name, elasticdl_version(entry.name), not entry.is_dir) for entry in others),
        key=lambda entry: entry.name,
    )
    return Listing(store.location, tuple(versions), tuple(foreign))


def has_journal(entries: Iterable[Entry]) -> bool:
    """Say whether there is a journal of a commit among the entries of a location; one of a copy does not count."""
    return not all(is_resumable(entry.parent) for entry in journals_among(entries))


def journals_among(state: Iterable[Entry]) -> list[Entry]:
    """Return the journals of commits and copies among the entries of a location."""
    return [entry for entry in state if entry.name == JOURNAL and entry.relative.startswith(f"{STAGE_DIR}/")]
