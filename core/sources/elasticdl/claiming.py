"""Which entries of a location are ElasticDL's versions, from their names alone.

A version is complete when its directory has all its ps_num files and no other entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import UNNUMBERED, ShardFile, State, Version
from edl_ckpt.core.sources.elasticdl import names
from edl_ckpt.core.sources.interface import FlatListing, ReadSmall
from edl_ckpt.core.storage.interface import Entry
from edl_ckpt.core.storage.location import Location


def claims(listing: FlatListing, read_small: ReadSmall) -> list[Version]:  # noqa: ARG001 - names suffice
    """Return the versions among the entries of a location, without metadata."""
    versions: list[Version] = []
    for entry in listing.inside.get("", ()):
        named = names.version_named(entry.name)
        if named is None:
            continue
        content = listing.inside.get(entry.relative, ())
        if named.is_file:
            if not entry.is_dir:
                versions.append(_single(listing.location, entry, named.number or 0))
        elif entry.fault or (entry.is_dir and _is_version(named.layout, content)):
            versions.append(_sharded(listing.location, entry, content, listing.fresh_after))
    return versions


def _is_version(layout: Layout, content: Iterable[Entry]) -> bool:
    return not layout.needs_shards or any(names.shard_named(entry.name) for entry in content)


def _single(location: Location, entry: Entry, version: int) -> Version:
    shard = ShardFile(0, 1, entry.path, entry.size_bytes, entry.modified, entry.linked)
    state = State.UNREADABLE if entry.fault else State.COMPLETE
    return Version(
        location,
        version,
        entry.path,
        names.SINGLE_FILE,
        state,
        1,
        (shard,),
        modified=entry.modified,
        fault=entry.fault,
        linked=entry.linked,
    )


def _sharded(location: Location, directory: Entry, content: Iterable[Entry], fresh_after: float) -> Version:
    """Return the version in a directory."""
    parsed = names.parse_version_dir(directory.name)  # None for a UUID
    prefix, number = parsed or ("", UNNUMBERED)
    shards: list[ShardFile] = []
    extra: list[str] = []
    suffixes: set[str] = set()
    modified = directory.modified
    fault = directory.fault
    for entry in content:
        modified = max(modified, entry.modified)
        parts = names.shard_named(entry.name)
        if parts is None or entry.is_dir or (parsed and names.layout_of(prefix, parts[2]) is None):
            extra.append(entry.name)
            continue
        fault = fault or entry.fault
        suffixes.add(parts[2])
        shards.append(ShardFile(parts[0], parts[1], entry.path, entry.size_bytes, entry.modified, entry.linked))
    shards.sort(key=lambda s: (s.ps_num, s.ps_id, s.path))
    counts = {shard.ps_num for shard in shards}
    ps_num = counts.pop() if len(counts) == 1 and len(suffixes) == 1 else None
    if fault:
        state = State.UNREADABLE
    elif shards and ps_num is None:
        state = State.MIXED
    elif ps_num is None or len(shards) < ps_num:
        state = State.WRITING if modified >= fresh_after else State.INCOMPLETE
    else:
        state = State.INVALID if extra and parsed else State.COMPLETE
    return Version(
        location,
        number,
        directory.path,
        _layout(prefix, suffixes) if parsed else names.UUID_LAYOUTS[min(suffixes, default=".chkpt")],
        state,
        ps_num,
        tuple(shards),
        tuple(sorted(extra)) if parsed else (),  # ElasticDL never reads a directory named by a UUID
        modified,
        fault=fault,
        linked=directory.linked,
    )


def _layout(prefix: str, suffixes: set[str]) -> Layout:
    """Return the layout of a directory; one without shards has the layout in which such names are most common."""
    return names.layout_of(prefix, min(suffixes, default="")) or names.directory_layout(prefix)
