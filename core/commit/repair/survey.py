"""What `recover` would do at a location, from what killed commands left there; nothing is changed, and no lock taken.

It names each piece of work that waits: staged versions, journals, deletions, uploads that no listing shows, and the
process that holds the lock. Whether a commit is finished or rolled back shows only when it is settled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import abridged, counted, rounded_duration
from edl_ckpt.core.commit.deletion.records import DROP, read_record
from edl_ckpt.core.commit.journal import Journal, parse_journals
from edl_ckpt.core.commit.publish.disk import read_journal
from edl_ckpt.core.commit.publish.interrupted import interrupted_move
from edl_ckpt.core.state.holder import Holder
from edl_ckpt.core.state.lock import open_lock
from edl_ckpt.core.state.owner import format_owner, read_owner
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, TRASH_DIR, is_damaged
from edl_ckpt.core.state.stage_owner import has_our_owner, is_abandoned, is_stage_name
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.beneath import Directory


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What waits at a location: work that `recover` settles, copies and moves that it keeps, and who holds the lock."""

    location: Location
    work: tuple[str, ...]
    """Each piece of work, and what becomes of it, in words."""
    copies: tuple[int | str, ...]
    """The versions whose interrupted copies can resume."""
    moves: tuple[str, ...]
    """The interrupted moves that can resume, in words."""
    holders: tuple[Holder, ...]

    def __bool__(self) -> bool:
        return bool(self.work or self.copies or self.moves or self.holders)


def unfinished_work(location: LocationLike, *, reporter: Reporter = WARNINGS) -> Unfinished:
    """Return what killed commands left at a location, which may not exist; errors are those of storage."""
    store = open_store(location)
    work: list[str] = []
    copies: list[int | str] = []
    moves: list[str] = []
    found = _on_disk(store) if isinstance(store, LocalStore) else _on_objects(store)
    for one in found:
        if isinstance(one, Journal) and one.work:
            moves.append(one.in_words())
        elif isinstance(one, Journal):
            copies.append(one.key)
        else:
            work.append(one)
    copies.sort(key=lambda key: (isinstance(key, str), key))
    holders = tuple(open_lock(store, "recover", reporter).holders())
    return Unfinished(store.location, tuple(work), tuple(copies), tuple(moves), holders)


def _on_disk(store: LocalStore) -> Iterator[str | Journal]:
    """Yield what waits in the staging directories and in the trash; a journal is that of a copy or a move."""
    with Directory.open(store.root) as root:
        with root.find(STAGE_DIR) as stages:
            for name in stages.names():
                is_ours = not is_damaged(name) and stages.is_directory(name) and is_stage_name(name)
                if is_ours and is_abandoned(store.root, f"{STAGE_DIR}/{name}"):
                    with stages.enter(name) as stage:
                        yield from _staged(stage, name)
        with root.find(TRASH_DIR) as trash:
            for name in trash.names():
                if trash.is_directory(name):
                    with trash.enter(name) as entry:
                        yield from _trashed(entry, name)


def _staged(stage: Directory, name: str) -> Iterator[str | Journal]:
    if not has_our_owner(stage):
        return
    by = format_owner(read_owner(stage))
    try:
        journal = read_journal(stage)
    except (RefusedError, ValueError):
        yield f"a damaged {JOURNAL} of {by}: it is set aside"
        return
    move = interrupted_move(stage)
    if move is not None:
        yield move
    elif journal is None:
        yield f"the staging directory {name} of {by}: it is removed"
    elif journal.source:
        yield journal
    else:
        yield f"{_commit_of(journal)} by {by}: it is finished, or rolled back"


def _trashed(entry: Directory, name: str) -> Iterator[str]:
    record, damage = read_record(entry)
    if name.startswith(DROP) or (damage is None and not record.get("keep", True)):
        numbers = record.get("versions")
        versions = ", ".join(map(str, numbers)) if isinstance(numbers, list) else "unknown"
        yield f"the deletion of version {versions}: it is finished"


def _on_objects(store: ObjectStore) -> Iterator[str | Journal]:
    """Yield what waits in journals and in uploads; a journal is that of a copy."""
    for relative in store.tree(STAGE_DIR):
        if os.path.basename(relative) == JOURNAL:
            yield from _journals(store, relative)
    uploads = list(store.open_uploads())
    if uploads:
        oldest = rounded_duration(max(upload.age_seconds for upload in uploads))
        names = abridged(sorted({upload.relative for upload in uploads}), 8)
        found = f"{counted(len(uploads), 'open upload')}, the oldest since {oldest}: {names}"
        yield f"{found}: those of dead commands are aborted"


def _journals(store: ObjectStore, relative: str) -> Iterator[str | Journal]:
    try:
        journals = parse_journals(store.read_small(relative) or b"", store.path(relative))
    except (EdlCkptError, ValueError):
        yield f"{relative} is damaged: it is set aside"
        return
    for journal in journals:
        if journal.source:
            yield journal
        elif journal.deletes:
            yield f"the deletion of version {journal.version}: it is finished, unless the version has changed since"
        else:
            yield f"{_commit_of(journal)} by {format_owner(journal.owner)}: it is finished, or rolled back"


def _commit_of(journal: Journal) -> str:
    return f"the {'replacement' if journal.replaces else 'commit'} of version {journal.key}"
