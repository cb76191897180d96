"""The entries of a location, as one flat listing has them, grouped into versions; nothing is read.

A version is complete when its directory has all its ps_num files and no other entry.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from edl_ckpt.core.format import names
from edl_ckpt.core.format.model import UNNUMBERED, ForeignEntry, ShardFile, State, Version
from edl_ckpt.core.format.names import SINGLE_FILE, Layout
from edl_ckpt.core.state.paths import JOURNAL, META_DIR, NOTES_DIR, STAGE_DIR, STATE_DIR, is_resumable
from edl_ckpt.core.storage.interface import Entry
from edl_ckpt.core.storage.location import Location


def is_of_interest(directory: str) -> bool:
    """Say whether a listing of a location looks into a directory: versions, metadata, and journals of commits."""
    top, _, rest = directory.partition("/")
    if top == STATE_DIR:
        return directory in {STATE_DIR, META_DIR, NOTES_DIR, STAGE_DIR} or os.path.dirname(directory) == STAGE_DIR
    return not rest and (names.parse_version_dir(top) is not None or names.is_uuid(top))


def versions_among(
    entries: Iterable[Entry], where: Location, fresh_after: float
) -> tuple[tuple[Version, ...], tuple[ForeignEntry, ...]]:
    """Return the versions among the entries of a location, without metadata, and its foreign entries; reads nothing.

    An incomplete version that changed after `fresh_after`, in seconds since the epoch, counts as being written.
    """
    content: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        content[entry.parent].append(entry)
    versions: list[Version] = []
    foreign: list[ForeignEntry] = []
    for entry in content[""]:
        parsed = names.parse_version_dir(entry.name)
        single = names.parse_single_file(entry.name)
        inside = [below.name for below in content.get(entry.relative, ())]
        is_version = entry.fault or (entry.is_dir and is_version_dir(entry.name, inside))
        if is_version and (parsed or names.is_uuid(entry.name)):
            versions.append(_sharded(where, parsed, entry, content.get(entry.relative, ()), fresh_after))
        elif single is not None and not entry.is_dir:
            versions.append(_single(where, single, entry))
        elif entry.name != STATE_DIR:
            foreign.append(ForeignEntry(entry.name, names.elasticdl_version(entry.name), not entry.is_dir))
    versions.sort(key=lambda v: (v.version, v.path))
    foreign.sort(key=lambda f: f.name)
    return tuple(versions), tuple(foreign)


def is_version_dir(name: str, inside: Iterable[str]) -> bool:
    """Say whether a directory with these entries is a version.

    `model_v3` and a UUID are versions only with shards: others use such names.
    """
    parsed = names.parse_version_dir(name)
    if parsed is None and not names.is_uuid(name):
        return False
    return (parsed is not None and parsed[0] != names.MODEL_V.prefix) or any(map(names.parse_shard_file, inside))


def _single(location: Location, version: int, entry: Entry) -> Version:
    shard = ShardFile(0, 1, entry.path, entry.size_bytes, entry.modified, entry.linked)
    state = State.UNREADABLE if entry.fault else State.COMPLETE
    return Version(
        location,
        version,
        entry.path,
        SINGLE_FILE,
        state,
        1,
        (shard,),
        modified=entry.modified,
        fault=entry.fault,
        linked=entry.linked,
    )


def _sharded(
    location: Location, parsed: tuple[str, int] | None, directory: Entry, content: Iterable[Entry], fresh_after: float
) -> Version:
    """Return the version in a directory; `parsed` is its name in its parts, None for a UUID."""
    prefix, number = parsed or ("", UNNUMBERED)
    shards: list[ShardFile] = []
    extra: list[str] = []
    suffixes: set[str] = set()
    modified = directory.modified
    fault = directory.fault
    for entry in content:
        modified = max(modified, entry.modified)
        parts = names.parse_shard_file(entry.name)
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


def has_journal(entries: Iterable[Entry]) -> bool:
    """Say whether there is a journal of a commit among the entries of a location; one of a copy does not count."""
    return not all(is_resumable(entry.parent) for entry in journals_among(entries))


def journals_among(state: Iterable[Entry]) -> list[Entry]:
    """Return the journals of commits and copies among the entries of a location."""
    return [entry for entry in state if entry.name == JOURNAL and entry.relative.startswith(f"{STAGE_DIR}/")]
