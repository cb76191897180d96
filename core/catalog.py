"""Versions in a location and their state, from listings alone, and references to them.

A version is complete when all its ps_num files are there and nothing else is. No shard is opened: the answer for
a thousand versions is one listing per directory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from edl_ckpt.core import layout as names
from edl_ckpt.core.errors import IncompleteError, NotFoundError, UsageError
from edl_ckpt.core.layout import SINGLE_FILE, STATE_DIR, Layout
from edl_ckpt.core.model import CheckpointRef, ForeignEntry, Listing, ShardFile, State, Version
from edl_ckpt.core.store import Entry, Store, open_store

GRACE_SECONDS: Final = 600.0
"""An incomplete version touched within this time may still be being written (`--grace`)."""


def list_versions(
    location: str,
    *,
    grace_seconds: float = GRACE_SECONDS,
    now: float | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Listing:
    """Return the versions of a location, by number; an existing directory without any gives an empty listing.

    `now` is seconds since the epoch, the current time when None. Raises NotFoundError when there is no such
    directory. One listing per directory on a local disk, one for all on an object store.
    """
    store = open_store(location, storage_options)
    top, children = store.scan(store.root)
    moment = time.time() if now is None else now
    versions: list[Version] = []
    foreign: list[ForeignEntry] = []
    for entry in top:
        parsed = names.parse_version_dir(entry.name)
        single = names.parse_single_file(entry.name)
        if parsed and entry.is_dir:
            content = children.get(entry.name, ())
            versions.append(_sharded(location, parsed, entry, content, moment - grace_seconds))
        elif single is not None and not entry.is_dir:
            versions.append(_single(location, single, entry))
        elif entry.name != STATE_DIR:
            foreign.append(ForeignEntry(entry.name, names.elasticdl_version(entry.name)))
    versions.sort(key=lambda v: (v.version, v.path))
    return Listing(location, tuple(versions), tuple(sorted(foreign, key=lambda f: f.name)))


def _single(location: str, version: int, entry: Entry) -> Version:
    shard = ShardFile(0, 1, entry.path, entry.size_bytes, entry.modified)
    return Version(location, version, entry.path, SINGLE_FILE, State.COMPLETE, 1, (shard,), modified=entry.modified)


def _sharded(
    location: str, parsed: tuple[str, int], directory: Entry, content: Iterable[Entry], fresh_after: float
) -> Version:
    """Build a version from what its directory holds."""
    separator, number = parsed
    shards: list[ShardFile] = []
    extra: list[str] = []
    suffixes: set[str] = set()
    modified = directory.modified
    for entry in content:
        modified = max(modified, entry.modified)
        parts = names.parse_shard_file(entry.name)
        if parts is None or entry.is_dir or names.layout_of(separator, parts[2]) is None:
            extra.append(entry.name)
            continue
        suffixes.add(parts[2])
        shards.append(ShardFile(parts[0], parts[1], entry.path, entry.size_bytes, entry.modified))
    shards.sort(key=lambda s: (s.ps_num, s.ps_id, s.path))
    counts = {shard.ps_num for shard in shards}
    ps_num = counts.pop() if len(counts) == 1 and len(suffixes) == 1 else None
    if shards and ps_num is None:
        state = State.MIXED
    elif ps_num is None or len(shards) < ps_num:
        state = State.WRITING if modified >= fresh_after else State.INCOMPLETE
    else:
        state = State.INVALID if extra else State.COMPLETE
    return Version(
        location,
        number,
        directory.path,
        _layout(separator, suffixes),
        state,
        ps_num,
        tuple(shards),
        tuple(sorted(extra)),
        modified,
    )


def _layout(separator: str, suffixes: set[str]) -> Layout:
    """Return the layout of a directory; a directory without shards has the one its name is most used in."""
    found = names.layout_of(separator, min(suffixes, default=""))
    return found or (names.ELASTICDL if separator == "-" else names.DESIGN)


def parse_ref(text: str, *, default_location: str = ".") -> CheckpointRef:
    """Split `[LOCATION][@VERSION]`; what follows the last '@' is a version unless it holds a '/'.

    >>> parse_ref("s3://bucket/run@best:auc")
    CheckpointRef(location='s3://bucket/run', version='best:auc')
    >>> parse_ref("@100"), parse_ref("runs/a")
    (CheckpointRef(location='.', version=100), CheckpointRef(location='runs/a', version='latest'))
    """
    location, at, version = text.rpartition("@")
    if not at or "/" in version:
        return CheckpointRef(text or default_location, "latest")
    if not version:
        raise UsageError(f"{text!r}: no version after '@' (a number, latest, best, best:METRIC or a tag)")
    number = int(version) if version.isascii() and version.isdigit() and len(version) < 20 else None
    return CheckpointRef(location or default_location, version if number is None else number)


def split_version_dir(location: str) -> tuple[str, int] | None:
    """Return (checkpoint_dir, version) when a location is itself one version's directory, else None.

    >>> split_version_dir("runs/a/version-30/")
    ('runs/a', 30)
    """
    head, _, name = location.rstrip("/").rpartition("/")
    parsed = names.parse_version_dir(name)
    single = names.parse_single_file(name)
    version = parsed[1] if parsed else single
    if version is None:
        return None
    return head or ("/" if location.startswith("/") else "."), version


def resolve(
    ref: CheckpointRef,
    *,
    storage_options: Mapping[str, str] | None = None,
    grace_seconds: float = GRACE_SECONDS,
    now: float | None = None,
) -> Version:
    """Return the version a reference names; 'latest' is the newest complete one.

    Raises NotFoundError, naming what is there, and IncompleteError for 'latest' where no version is complete.
    """
    split = split_version_dir(ref.location)
    if split and ref.version == "latest":
        ref = CheckpointRef(*split)
    listing = list_versions(ref.location, grace_seconds=grace_seconds, now=now, storage_options=storage_options)
    return pick(listing, ref.version)


def pick(listing: Listing, wanted: int | str) -> Version:
    """Return one version of a listing, by number or word; errors as `resolve`."""
    if isinstance(wanted, int):
        found = [v for v in listing.versions if v.version == wanted]
        if len(found) > 1:
            paths = ", ".join(v.path for v in found)
            raise UsageError(f"version {wanted} is there twice: {paths}", path=listing.location)
        if found:
            return found[0]
        raise _not_found(listing, f"no version {wanted}")
    if wanted != "latest":
        raise _not_found(listing, f"no version or tag {wanted!r}")
    complete = [v for v in listing.versions if v.state is State.COMPLETE]
    if complete:
        return complete[-1]
    if listing.versions:
        raise IncompleteError(
            "no complete version",
            path=listing.location,
            hint=f"try: edl-ckpt list {listing.location}",
        )
    raise _not_found(listing, "no checkpoint here")


def _not_found(listing: Listing, what: str) -> NotFoundError:
    known = ", ".join(str(v.version) for v in listing.versions[-8:])
    more = "... " if len(listing.versions) > 8 else ""
    hint = f"versions there: {more}{known}" if known else "is this a checkpoint_dir?"
    return NotFoundError(what, path=listing.location, hint=hint)


def open_for_version(version: Version, storage_options: Mapping[str, str] | None = None) -> Store:
    """Return the store that a version's files are in."""
    return open_store(version.location, storage_options)
