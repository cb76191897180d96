"""What a process leaves on storage without rename when it goes on after its lock was taken over, and is killed then.

Its journal was settled by another process, so nothing lists what it made later: placeholder objects, and shards beside
another set. They are removed where one complete set of shards remains, and only if they are surely ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import abridged, base_name, counted, rounded_duration
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.sources.registry import directory_named, shard_named
from edl_ckpt.core.state.holder import prove_lock
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage.interface import ObjectStore, OpenUpload

OLD_UPLOAD_SECONDS: Final = 24 * 3600.0
_LATER: Final = "`recover` aborts those of shards after a day; let a lifecycle rule of the bucket abort the others"
_MARKER: Final = re.compile(r"resharding-(?:[0-9a-f]+-)?0\.\d+")


def sweep_strays(store: ObjectStore) -> list[str]:
    """Remove what no journal lists beside complete versions; return what was done, or could not be decided.

    The caller holds the lock, and has settled all journals.
    """
    done: list[str] = []
    for version in list_versions(store.location, grace_seconds=0.0).versions:
        if version.uuid:  # nothing of ours
            continue
        markers = [name for name in version.extra if _MARKER.fullmatch(name)]
        sets = _by_count(version.shards)
        if not markers and len(sets) < 2:
            continue
        whole = [count for count, shards in sets.items() if {s.ps_id for s in shards} == set(range(count))]
        kept = _choose(store, version, sets, whole)
        strays = [shard for count, shards in sets.items() if count != kept for shard in shards]
        if kept is None or not all(_is_ours(store, shard) for shard in strays):
            done.append(f"version {version.version} has shards of several sets; nothing was changed: look at them")
            continue
        prove_lock(store.location)
        store.remove_many([_relative(store, shard.path) for shard in strays])
        store.remove_many([_relative(store, f"{version.path}/{name}") for name in markers])
        number = len(strays) + len(markers)
        done.append(f"removed {counted(number, 'object')} of a lost command beside version {version.version}")
    return done


def sweep_uploads(store: ObjectStore) -> tuple[list[str], list[str]]:
    """Abort uploads of shards that are in no journal and a day old; return what was done, and what stays open.

    A command is killed before it can write a journal, and a job uploads shards without the lock.
    """
    journals = [store.read_small(name) or b"" for name in store.tree(STAGE_DIR) if name.endswith(JOURNAL)]
    done: list[str] = []
    still_open: list[OpenUpload] = []
    for upload in store.open_uploads():
        if any(upload.upload_id.encode() in data for data in journals):  # a damaged one too
            continue
        folder, _, name = upload.relative.partition("/")
        ours = directory_named(folder) is not None and shard_named(name) is not None
        if ours:
            prove_lock(store.location)
        if ours and upload.age_seconds > OLD_UPLOAD_SECONDS and store.abort_upload(upload.relative, upload.upload_id):
            done.append(f"aborted an abandoned upload of {upload.relative}")
        else:
            still_open.append(upload)
    if not still_open:
        return done, []
    oldest = rounded_duration(max(each.age_seconds for each in still_open))
    names = abridged(sorted({each.relative for each in still_open}), 8)
    return done, [f"{counted(len(still_open), 'open upload')}, the oldest since {oldest}: {names}; {_LATER}"]


def _by_count(shards: Iterable[ShardFile]) -> dict[int, list[ShardFile]]:
    sets: dict[int, list[ShardFile]] = {}
    for shard in shards:
        sets.setdefault(shard.ps_num, []).append(shard)
    return sets


def _choose(store: ObjectStore, version: Version, sets: dict[int, list[ShardFile]], whole: list[int]) -> int | None:
    """Return the shard count of the set that stays: the sealed one, or the only one that is whole."""
    try:
        seal = read_seal(store, version.version)
    except EdlCkptError:
        return None
    if seal is not None:
        names = {shard.name for shard in seal.shards}
        sealed = [count for count in whole if {base_name(shard.path) for shard in sets[count]} == names]
        if sealed:
            return sealed[0]
    return whole[0] if len(whole) == 1 else None


def _is_ours(store: ObjectStore, shard: ShardFile) -> bool:
    """Say whether edl-ckpt wrote a shard: then it has a write id."""
    found = store.stat(_relative(store, shard.path))
    return found is not None and bool(found.write_id)


def _relative(store: ObjectStore, path: str) -> str:
    return path.removeprefix(store.path(""))
