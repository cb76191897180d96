"""Recovery on a disk: staging directories and the trash, by their journals and owners.

Recovery on object storage: journals, placeholder objects, and uploads that no listing shows.

A process that goes on after its lock was taken over, and is killed then, leaves what no journal lists: another process
has settled its own. Those are placeholder objects, and shards beside another set. They are removed where one complete
set of shards remains, and only if they are surely ours.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.base.words import abridged, counted, rounded_duration
from edl_ckpt.core.catalog.files import check_is_no_file
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.commit.deletion.records import RECORD, damaged_records
from edl_ckpt.core.commit.deletion.removal import settle_deletions
from edl_ckpt.core.commit.deletion.trash import Trash
from edl_ckpt.core.commit.interface import LOOK, Settled, discarded_copy
from edl_ckpt.core.commit.journal import Journal, parse_journals
from edl_ckpt.core.commit.publish.disk import read_journal, settle_stage
from edl_ckpt.core.commit.publish.objects import settle_remote
from edl_ckpt.core.commit.publish.single_file import sweep_work
from edl_ckpt.core.commit.publish.staging import remove_empty_state, remove_stage
from edl_ckpt.core.commit.publish.uploads import MARK, settle_marked
from edl_ckpt.core.commit.writers import TOKEN
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.sources.registry import directory_named, shard_named
from edl_ckpt.core.state.aside import make_way, set_aside
from edl_ckpt.core.state.lock_proof import prove_lock, write_proved
from edl_ckpt.core.state.owner import (
    OWNER_FILE,
    has_our_owner,
    if_abandoned,
    is_abandoned,
    is_me,
    is_presumed_dead,
    is_stage_name,
    owner_in,
)
from edl_ckpt.core.state.paths import (
    JOURNAL,
    KEPT_DIR,
    META_DIR,
    STAGE_DIR,
    STATE_DIR,
    TRASH_DIR,
    damaged_name,
    is_damaged,
    is_resumable,
)
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import LocalStore
from edl_ckpt.core.storage.beneath import Directory, kind_of
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import NEW
from edl_ckpt.core.storage.interface import SMALL_BYTES, ObjectStore, OpenUpload

_MOVE: Final = "edl-ckpt did not make it, so it is left alone; inspect it, and move it away"


class DiskRepair:
    """Finishes or rolls back what dead commands left at a location on a disk; the caller holds its lock.

    While it settles, `_root` and `_state` are the open directories.
    """

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names at the location; NotFoundError when it is no directory."""
        check_is_no_file(self._store.location)
        with storage_errors(self._store.root):
            return os.listdir(self._store.root)

    def has_uploads(self) -> bool:
        """Return False: what is being written is in staging directories."""
        return False

    def is_interrupted(self) -> bool:
        """Say whether a dead command left the journal of a replacement; the caller needs no lock."""
        try:
            names = self._store.names(STAGE_DIR)
        except RefusedError:  # it is none of ours, and a command that takes the lock sets it aside
            return False
        stages = [f"{STAGE_DIR}/{name}" for name in names if not is_resumable(name)]
        root = self._store.root
        return any(_has_journal(root, stage) and is_abandoned(root, stage) for stage in stages)

    def settle(self, settled: Settled) -> None:
        """Finish, roll back or keep what dead commands left; finish deletions."""
        with Directory.open(self._store.root) as root, root.find(STATE_DIR) as state:
            self._root, self._state, self._settled = root, state, settled
            self._settle_state()
        settled.done += map(str, Trash(self._store).sweep())

    def sweep(self, settled: Settled) -> None:
        """Do nothing: on a disk everything that a dead command left is in our state."""

    def _settle_state(self) -> None:
        """Settle the staging directories and the trash; see to it that both can be used."""
        if self._settled.exclusive:
            for path in (STAGE_DIR, TRASH_DIR):
                self._settled.done += filter(None, [make_way(self._state, os.path.basename(path))])
        with self._root.find(STAGE_DIR) as stages:
            for name in stages.names():
                if not is_damaged(name):
                    self._settle_entry(stages, name)
        remove_empty_state(self._root)
        with self._root.find(TRASH_DIR) as trash:
            self._settled.left += [_strange(trash, name) for name in trash.names() if not trash.is_directory(name)]
            for name, why in list(damaged_records(trash)) if self._settled.exclusive else ():
                with trash.enter(name) as entry:
                    self._settled.done.append(set_aside(self._state, entry, RECORD, f"cannot be used ({why})"))
        _sweep_replacements(self._root)

    def _settle_entry(self, stages: Directory, name: str) -> None:
        """Settle an entry of the staging directories. What we did not make is left alone."""
        if not stages.is_directory(name):
            if not self._freed(stages, name, "is no directory"):
                self._settled.left.append(_strange(stages, name))
        elif not is_stage_name(name):
            if not stages.rmdir(name):  # if it was empty, no process was at work in it
                self._settled.left.append(f"{stages.join(name)}: {_MOVE}")
        else:
            with stages.enter(name) as stage, if_abandoned(stage) as dead:
                self._settle_ours(stages, stage, name, dead=dead)

    def _settle_ours(self, stages: Directory, stage: Directory, name: str, *, dead: bool) -> None:
        """Settle a directory that has a name as we give them; without an owner's file of ours it may be another's."""
        if has_our_owner(stage):
            if dead:
                self._settle_abandoned(stages, stage, name)
        elif not stage.names():
            if dead or not owner_in(name):
                stages.rmdir(name)
        elif not self._freed(stages, name, f"has no {OWNER_FILE} of ours"):
            self._settled.left.append(f"{stage.path} has no {OWNER_FILE} of edl-ckpt: {_MOVE}")

    def _freed(self, stages: Directory, name: str, why: str) -> bool:
        """Set something aside if we need its name; say whether that was done."""
        if not is_resumable(name) or not self._settled.exclusive:
            return False
        self._settled.done.append(set_aside(self._state, stages, name, why))
        return True

    def _settle_abandoned(self, stages: Directory, stage: Directory, name: str) -> None:
        """Settle one abandoned staging directory of ours."""
        settled = self._settled
        try:
            journal = read_journal(stage)
        except (RefusedError, ValueError) as error:
            aside = set_aside(self._state, stages, name, f"has a {JOURNAL} that cannot be used ({error})")
            settled.left.append(f"{aside}; {LOOK}")
            return
        if journal is not None and settled.keeps(journal):
            return
        if journal is None:
            settled.done.append(f"removed the abandoned staging directory {name}")
        elif journal.source:
            settled.done.append(discarded_copy(journal.key))
        else:
            try:
                settled.done += filter(None, [settle_stage(self._root, stage)])
            except RefusedError as error:
                settled.leave(error)
                return
        remove_stage(self._root, stage)


def _has_journal(root: str, stage: str) -> bool:
    with suppress(EdlCkptError), Directory.beneath(root, stage) as directory:
        return directory.is_file(JOURNAL)
    return False


def _strange(directory: Directory, name: str) -> str:
    found = directory.stat(name)
    kind = kind_of(found.st_mode if found else 0)
    return f"{directory.join(name)} is {kind}: {_MOVE}"


def _sweep_replacements(root: Directory) -> None:
    """Remove the temporary small files of dead processes: each was about to replace another (`Directory.replace`)."""
    with suppress(EdlCkptError), root.find(META_DIR) as folder:
        for name in folder.names():
            owner = owner_in(name) if name.startswith(".") and name.endswith(NEW) else {}
            found = folder.stat(name) if owner else None
            if found is not None and is_presumed_dead(owner, time.time() - found.st_mtime):
                folder.unlink(name)


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
        """Say whether there are unfinished objects, which no listing shows."""
        return any(self._store.open_uploads())

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
        sets = {count: [s for s in version.shards if s.ps_num == count] for count in {s.ps_num for s in version.shards}}
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
