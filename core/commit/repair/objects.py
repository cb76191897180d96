"""Recovery on object storage: journals, placeholder objects, and uploads that no listing shows.

A process that goes on after its lock was taken over, and is killed then, leaves what no journal lists: another process
has settled its own. Those are placeholder objects, and shards next to another set. They are removed where one complete
set of shards remains, and only if they are surely ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.base.words import abridged, counted, rounded_duration
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.commit.deletion.removal import settle_deletions
from edl_ckpt.core.commit.interface import LOOK, Settled
from edl_ckpt.core.commit.journal import Journal, parse_journals
from edl_ckpt.core.commit.meeting import TOKEN
from edl_ckpt.core.commit.publish.objects import settle_remote
from edl_ckpt.core.commit.publish.single_file import sweep_work, works_in
from edl_ckpt.core.commit.publish.uploads import MARK, settle_marked
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.sources.registry import directory_named, shard_named
from edl_ckpt.core.state.lock_proof import prove_lock, write_proved
from edl_ckpt.core.state.owner import (
    is_me,
    is_presumed_dead,
)
from edl_ckpt.core.state.paths import (
    JOURNAL,
    KEPT_DIR,
    META_DIR,
    STAGE_DIR,
    damaged_name,
)
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage.interface import SMALL_BYTES, ObjectStore, OpenUpload

_OLD_TOKEN_SECONDS: Final = 600.0
_OLD_UPLOAD_SECONDS: Final = 24 * 3600.0
_LATER: Final = "`recover` aborts those of shards after a day; let a lifecycle rule of the bucket abort the others"
_MARKER: Final = re.compile(r"resharding-(?:[0-9a-f]+-)?0\.\d+")


class ObjectRepair:
    """Finishes or rolls back what dead commands left at a location without rename; the caller holds its lock."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names at the location."""
        return list(self._store.names(""))

    def has_uploads(self) -> bool:
        """Say whether there are unfinished objects, which no listing shows, or the note of a killed export on them."""
        return bool(works_in(self._store)) or any(self._store.open_uploads())

    def is_interrupted(self) -> bool:
        """Return False: a version never has no name while it is replaced."""
        return False

    def settle(self, settled: Settled) -> None:
        """Settle the journals, finish deletions, and remove old tokens and copies of metadata."""
        store = self._store
        for relative in store.tree(STAGE_DIR):
            stage, _, name = relative.rpartition("/")
            settled.done += _put_back(store, relative, f"{META_DIR}/{name}") if stage == KEPT_DIR else ()
            found = store.stat(relative) if name.startswith(TOKEN) else None  # a question to workers, without the lock
            if found is not None and found.age_seconds > _OLD_TOKEN_SECONDS:
                store.remove(relative)
            if name == MARK:
                settled.done += settle_marked(store, relative, exclusive=settled.exclusive)
            data = store.read_small(relative) if name == JOURNAL else None
            if data is not None:
                self._settle_journal(relative, data, settled)

    def _settle_journal(self, relative: str, data: bytes, settled: Settled) -> None:
        store, stage = self._store, os.path.dirname(relative)
        try:
            journals = parse_journals(data, store.path(relative))
        except ValueError:
            settled.left.append(f"{relative} is damaged; the files that it lists stay as they are; {LOOK}")
            if settled.exclusive and len(data) < SMALL_BYTES:  # it was read to its end
                new = f"{STAGE_DIR}/{damaged_name(f'{os.path.basename(stage)}-{JOURNAL}')}"
                store.write_small(new, data)
                store.remove(relative)
                settled.left[-1] += f"; it was set aside as {new}"
            return
        for journal in journals[:1]:
            if not (settled.exclusive or _is_dead(store, relative, journal)) or settled.keeps(journal):
                return
        try:
            if all(journal.deletes for journal in journals):
                settled.done += settle_deletions(store, stage, journals)
            else:
                settled.done.append(settle_remote(store, stage, journals[0]))
        except RefusedError as error:
            settled.leave(error)

    def sweep(self, settled: Settled) -> None:
        """Remove what no journal lists: strays, the work of dead exports, abandoned uploads."""
        settled.done += _sweep_strays(self._store) if settled.exclusive else []
        settled.done += sweep_work(self._store)
        _sweep_uploads(self._store, settled)


def _put_back(store: ObjectStore, kept: str, relative: str) -> Iterator[str]:
    """Put back a file that a process which had lost the lock wrote over; drop a copy that is needed no more."""
    data = store.read_small(kept) if prove_lock(store.location) else None
    present = store.read_small(relative)
    if data is None or present is None:
        store.remove(kept)
    elif data != present:
        write_proved(store, relative, data)
        yield f"put back {relative}, which a command wrote that had lost the lock"


def _is_dead(store: ObjectStore, relative: str, journal: Journal) -> bool:
    """Say whether the owner of a journal is dead, on storage without locks; this process is not writing just now."""
    found = store.stat(relative)
    return found is not None and (is_me(journal.owner) or is_presumed_dead(journal.owner, found.age_seconds))


def _sweep_strays(store: ObjectStore) -> list[str]:
    """Remove what no journal lists beside complete versions; return what was done, or could not be decided.

    The caller holds the lock, and has settled all journals.
    """
    done: list[str] = []
    for version in list_versions(store.location, grace_seconds=0.0).versions:
        if version.is_named:  # nothing of ours
            continue
        markers = [name for name in version.extra if _MARKER.fullmatch(name)]
        sets: dict[int, list[ShardFile]] = {}
        for shard in version.shards:
            sets.setdefault(shard.ps_num, []).append(shard)
        if not markers and len(sets) < 2:
            continue
        whole = [count for count, shards in sets.items() if {s.ps_id for s in shards} == set(range(count))]
        kept = _choose(store, version, sets, whole)
        strays = [shard for count, shards in sets.items() if count != kept for shard in shards]
        if kept is None or not all(_is_ours(store, shard) for shard in strays):
            done.append(f"version {version.version} has shards of several sets; nothing was changed: inspect them")
            continue
        prove_lock(store.location)
        store.remove_many([_relative(store, shard.path) for shard in strays])
        store.remove_many([_relative(store, f"{version.path}/{name}") for name in markers])
        number = len(strays) + len(markers)
        done.append(f"removed {counted(number, 'object')} of a lost command next to version {version.version}")
    return done


def _sweep_uploads(store: ObjectStore, settled: Settled) -> None:
    """Abort uploads of shards that are in no journal and a day old; note what was done, and what stays open.

    A command is killed before it can write a journal, and a job uploads shards without the lock.
    """
    journals = [store.read_small(name) or b"" for name in store.tree(STAGE_DIR) if name.endswith(JOURNAL)]
    still_open: list[OpenUpload] = []
    for upload in store.open_uploads():
        if any(upload.upload_id.encode() in data for data in journals):  # a damaged one too
            continue
        folder, _, name = upload.relative.partition("/")
        ours = directory_named(folder) is not None and shard_named(name) is not None
        if ours:
            prove_lock(store.location)
        if ours and upload.age_seconds > _OLD_UPLOAD_SECONDS and store.abort_upload(upload.relative, upload.upload_id):
            settled.done.append(f"aborted an abandoned upload of {upload.relative}")
        else:
            still_open.append(upload)
    if still_open:
        oldest = rounded_duration(max(upload.age_seconds for upload in still_open))
        names = abridged(sorted({upload.relative for upload in still_open}), 8)
        settled.kept.append(f"{counted(len(still_open), 'open upload')}, the oldest since {oldest}: {names}; {_LATER}")


def _choose(store: ObjectStore, version: Version, sets: dict[int, list[ShardFile]], whole: list[int]) -> int | None:
    """Return the shard count of the set that stays: the sealed one, or the only one that is whole."""
    try:
        seal = read_seal(store, version.version)
    except EdlCkptError:
        return None
    if seal is not None:
        names = {shard.name for shard in seal.shards}
        sealed = [count for count in whole if {version.name_of(shard.path) for shard in sets[count]} == names]
        if sealed:
            return sealed[0]
    return whole[0] if len(whole) == 1 else None


def _is_ours(store: ObjectStore, shard: ShardFile) -> bool:
    """Say whether edl-ckpt wrote a shard: then it has a write id."""
    found = store.stat(_relative(store, shard.path))
    return found is not None and bool(found.write_id)


def _relative(store: ObjectStore, path: str) -> str:
    return path.removeprefix(store.path(""))
