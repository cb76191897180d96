"""Finishing, rolling back and keeping what killed commands left behind.

Whatever takes several steps has a journal, and whatever is being written has an owner. A command that takes the lock of
a location settles first, so the next command puts an end to every crash; `edl-ckpt recover` does only that. Every
writer holds the lock while it writes. So a process with an exclusive lock knows that each journal belongs to a dead
command. On storage without locks it settles the journals of its own process, and of processes presumed dead.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.checkpoint.files import check_is_no_file
from edl_ckpt.core.commit.deletions import RECORD, damaged_records
from edl_ckpt.core.commit.interface import LockedLocation
from edl_ckpt.core.commit.journal import Journal, discarded_copy, parse_journals
from edl_ckpt.core.commit.local import read_journal, settle_stage
from edl_ckpt.core.commit.notes import sweep_notes
from edl_ckpt.core.commit.remote import settle_remote
from edl_ckpt.core.commit.removal import settle_deletions
from edl_ckpt.core.commit.single_file import sweep_work
from edl_ckpt.core.commit.staging import remove_empty, remove_stage
from edl_ckpt.core.commit.strays import sweep_strays, sweep_uploads
from edl_ckpt.core.commit.trash import sweep
from edl_ckpt.core.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format.names import is_uuid, parse_shard_file, parse_single_file, parse_version_dir
from edl_ckpt.core.interruption import COMMIT
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.aside import make_way, set_aside
from edl_ckpt.core.state.holder import LostLockError, prove_lock, write_proved
from edl_ckpt.core.state.index import refresh_index
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS, holding, open_lock
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
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.beneath import Directory, ForeignError, kind_of
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import NEW
from edl_ckpt.core.storage.interface import SMALL_BYTES
from edl_ckpt.core.storage.local import is_gone
from edl_ckpt.core.storage.meeting import TOKEN
from edl_ckpt.core.words import describe, escaped

_OLD_TOKEN_SECONDS: Final = 600.0


_LOOK: Final = "what it describes is not known: look at the versions with `edl-ckpt verify --all`"
_MOVE: Final = "look at it, and move it away"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was finished or removed, what is kept so that it can be resumed, and what is left alone, in words."""

    location: Location
    done: tuple[str, ...]
    kept: tuple[str, ...]
    left: tuple[str, ...] = ()
    """What is not ours, or cannot be settled: a person must look at it."""

    def __repr__(self) -> str:
        return describe(
            "Recovery",
            escaped(self.location.url),
            f"{len(self.done)} done",
            f"{len(self.kept)} kept",
            f"{len(self.left)} left" if self.left else "",
        )


@dataclass(slots=True)
class _Settled:
    """What a look at all journals of a location led to, in words."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@contextmanager
def location_lock(
    location: LocationLike,
    purpose: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
    create: bool = False,
    may_be_empty: bool = False,
) -> Iterator[LockedLocation]:
    """Hold the lock of a location while the block runs, after settling what dead commands left there.

    The reporter is warned of what was settled. With `create`, for commands that write a version, a local directory that
    does not exist is made first, and removed again if the block fails and leaves nothing in it. Raises NotFoundError
    for a directory without versions and without state of ours, which `may_be_empty` allows to commands that write
    nothing there; UsageError for a version's own directory; LockedError, which names the holder, when the lock is not
    free within `wait_seconds`.
    """
    where = Location.of(location)
    COMMIT.more()
    with made_directory(where.local_path if create else None):
        store = open_store(where)
        if not _is_location(store) and not (create or may_be_empty):
            raise _no_location(where)
        lock = open_lock(store, purpose, reporter)
        try:
            with holding(lock, where, wait_seconds=wait_seconds):
                settled = _settle(store, exclusive=lock.is_exclusive)
                for text in (*settled.done, *settled.left):
                    reporter.warn(f"{where}: {text}")
                yield LockedLocation(where, lock.is_exclusive, lock.check)
                refresh_index(store)
        except LostLockError:  # its last request may have come too late
            again = location_lock(where, purpose, wait_seconds=wait_seconds, reporter=reporter, may_be_empty=True)
            with suppress(EdlCkptError), again:
                pass
            raise


@contextmanager
def made_directory(path: str | None, *, keep: bool = True) -> Iterator[None]:
    """Make a directory and those above it; at the end remove those that were made and are empty.

    Those that a block has made without an error stay, unless `keep` is False.
    """
    missing: list[str] = []
    above = os.path.abspath(path) if path is not None else ""
    while above and is_gone(above):
        missing.append(above)
        above = os.path.dirname(above)
    if path is not None:
        with storage_errors(path):
            try:
                os.makedirs(path, exist_ok=True)
            except FileExistsError:  # `makedirs` takes any error in looking at it for a file in its place
                os.listdir(path)
    stay = False
    try:
        yield
        stay = keep
    finally:
        if not stay:
            with suppress(OSError):
                for each in missing:
                    os.rmdir(each)


def recover(
    location: LocationLike,
    *,
    drop_copies: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> Recovery:
    """Settle all that killed commands left in a location; with `drop_copies` discard interrupted copies too.

    Raises LockedError while another command is at work there, NotFoundError where there is nothing of ours.
    """
    where = Location.of(location)
    store = open_store(where)
    # A killed command may have left nothing but uploads, which no listing shows.
    if not _is_location(store) and (isinstance(store, LocalStore) or not any(store.open_uploads())):
        raise _no_location(where)
    lock = open_lock(store, "recover", reporter)
    with holding(lock, where, wait_seconds=wait_seconds):
        settled = _settle(store, exclusive=lock.is_exclusive, drop_copies=drop_copies)
        refresh_index(store, whole=True)
        if not isinstance(store, LocalStore):
            settled.done += sweep_strays(store) if lock.is_exclusive else []
            settled.done += sweep_work(store)
            aborted, still_open = sweep_uploads(store)
            settled.done += aborted
            settled.kept += still_open
        with COMMIT, suppress(ForeignError):  # no directory of ours
            settled.done += sweep_notes(store)
    return Recovery(where, tuple(settled.done), tuple(settled.kept), tuple(settled.left))


def _is_location(store: LocalStore | ObjectStore) -> bool:
    """Say whether there are versions or state of ours; UsageError for a version's directory, which must stay as it is.

    State in another directory would make ElasticDL's scan of it fail.
    """
    if isinstance(store, LocalStore):
        check_is_no_file(store.location)
        with storage_errors(store.root):
            names = os.listdir(store.root)
    else:
        names = list(store.names(""))
    if any(map(parse_shard_file, names)):
        raise UsageError("is one version's directory", path=store.location.url, hint="name the directory it is in")
    return STATE_DIR in names or any(map(_is_version_name, names))


def _is_version_name(name: str) -> bool:
    return parse_version_dir(name) is not None or parse_single_file(name) is not None or is_uuid(name)


def _no_location(location: Location) -> NotFoundError:
    return NotFoundError("no checkpoint here; nothing was written", path=location.url, hint="is this a checkpoint_dir?")


def settle_first(location: Location, *, wait_seconds: float = LOCK_WAIT_SECONDS, reporter: Reporter = WARNINGS) -> None:
    """Settle what a dead command left, before a version is looked up that may be between two places just now.

    Takes the lock only where a dead command left the journal of a replacement.
    """
    store = open_store(location)
    if isinstance(store, LocalStore):
        try:
            names = store.names(STAGE_DIR)
        except RefusedError:  # it is none of ours, and a command that takes the lock sets it aside
            return
        stages = [f"{STAGE_DIR}/{name}" for name in names if not is_resumable(name)]
        if any(_has_journal(store.root, stage) and is_abandoned(store.root, stage) for stage in stages):
            with location_lock(location, "recover", wait_seconds=wait_seconds, reporter=reporter):
                return


def _has_journal(root: str, stage: str) -> bool:
    with suppress(EdlCkptError):
        directory = Directory.beneath(root, stage)
        if directory is not None:
            with directory:
                return directory.is_file(JOURNAL)
    return False


def _settle(store: LocalStore | ObjectStore, *, exclusive: bool, drop_copies: bool = False) -> _Settled:
    """Finish, roll back or keep what dead commands left. The caller holds the lock, or knows that there is none."""
    settled = _Settled()
    if not isinstance(store, LocalStore):
        _settle_objects(store, settled, exclusive=exclusive, drop_copies=drop_copies)
        return settled
    with Directory.open(store.root) as root:
        state = root.find(STATE_DIR)
        if state is not None:
            with state:
                _LocalState(root, state, settled, exclusive, drop_copies).settle()
    settled.done += map(str, sweep(store))
    return settled


@dataclass(frozen=True, slots=True)
class _LocalState:
    """The open state of a location on a local disk that is being settled."""

    root: Directory
    state: Directory
    settled: _Settled
    exclusive: bool
    drop_copies: bool

    def settle(self) -> None:
        """Settle the staging directories and the trash; see to it that both can be used."""
        if self.exclusive:
            for path in (STAGE_DIR, TRASH_DIR):
                self.settled.done += filter(None, [make_way(self.state, os.path.basename(path))])
        stages = self.root.find(STAGE_DIR)
        if stages is not None:
            with stages:
                for name in stages.names():
                    if not is_damaged(name):
                        self._settle_entry(stages, name)
            remove_empty(self.root)
        trash = self.root.find(TRASH_DIR)
        if trash is not None:
            with trash:
                self._check_trash(trash)
        _sweep_replacements(self.root)

    def _check_trash(self, trash: Directory) -> None:
        self.settled.left += [_strange(trash, name) for name in trash.names() if not trash.is_directory(name)]
        for name, why in list(damaged_records(trash)) if self.exclusive else ():
            with trash.enter(name) as entry:
                self.settled.done.append(set_aside(self.state, entry, RECORD, f"cannot be used ({why})"))

    def _settle_entry(self, stages: Directory, name: str) -> None:
        """Settle an entry of the staging directories. What we did not make is left alone."""
        if not stages.is_directory(name):
            if not self._freed(stages, name, "is no directory"):
                self.settled.left.append(_strange(stages, name))
        elif not is_stage_name(name):
            if not stages.rmdir(name):  # if it was empty, no process was at work in it
                self.settled.left.append(f"{stages.join(name)} is not ours; it is left alone; {_MOVE}")
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
            self.settled.left.append(f"{stage.path} has no {OWNER_FILE} of ours; it is left alone; {_MOVE}")

    def _freed(self, stages: Directory, name: str, why: str) -> bool:
        """Set something aside if we need its name; say whether that was done."""
        if not is_resumable(name) or not self.exclusive:
            return False
        self.settled.done.append(set_aside(self.state, stages, name, why))
        return True

    def _settle_abandoned(self, stages: Directory, stage: Directory, name: str) -> None:
        """Settle one abandoned staging directory of ours."""
        settled = self.settled
        try:
            journal = _journal_of(stage)
        except (RefusedError, ValueError) as error:
            aside = set_aside(self.state, stages, name, f"has a {JOURNAL} that cannot be used ({error})")
            settled.left.append(f"{aside}; {_LOOK}")
            return
        if journal is not None and journal.source:
            if not self.drop_copies:
                settled.kept.append(_resumes(journal.version))
                return
            settled.done.append(discarded_copy(journal.version))
        elif journal is not None:
            try:
                done = settle_stage(self.root, stage)
            except RefusedError as error:
                settled.left.append(_unsettled(error))
                return
            settled.done += [done] if done else []
        else:
            settled.done.append(f"removed the abandoned staging directory {name}")
        remove_stage(self.root, stage)


def _journal_of(stage: Directory) -> Journal | None:
    """Return the journal of a staging directory, None without one; ValueError or RefusedError when it is damaged."""
    found = stage.stat(JOURNAL)
    if found is not None and stat.S_ISREG(found.st_mode) and not found.st_size:
        return None  # a power cut; nothing had been done when it was written
    return read_journal(stage)


def _strange(directory: Directory, name: str) -> str:
    found = directory.stat(name)
    kind = "gone" if found is None else kind_of(found.st_mode)
    return f"{directory.join(name)} is {kind}, which is not ours; it is left alone; {_MOVE}"


def _sweep_replacements(root: Directory) -> None:
    """Remove the temporary small files of dead processes: each was about to replace another (`Directory.replace`)."""
    with suppress(EdlCkptError):
        folder = root.find(META_DIR)
        if folder is None:
            return
        with folder:
            for name in folder.names():
                owner = owner_in(name) if name.startswith(".") and name.endswith(NEW) else {}
                found = folder.stat(name) if owner else None
                if found is not None and is_presumed_dead(owner, time.time() - found.st_mtime):
                    folder.unlink(name)


def _unsettled(error: RefusedError) -> str:
    """Return what cannot be settled, and what a person can do about it."""
    return f"{error}; {error.hint}" if error.hint else str(error)


def _resumes(version: int) -> str:
    return f"an interrupted copy of version {version} resumes when the same copy is run again"


def _settle_objects(store: ObjectStore, settled: _Settled, *, exclusive: bool, drop_copies: bool) -> None:
    """Settle the journals of storage without rename."""
    for relative in store.tree(STAGE_DIR):
        stage, _, name = relative.rpartition("/")
        settled.done += _put_back(store, relative, f"{META_DIR}/{name}") if stage == KEPT_DIR else ()
        if name.startswith(TOKEN):
            _sweep_token(store, relative)
        data = store.read_small(relative) if name == JOURNAL else None
        if data is None:
            continue
        try:
            journals = parse_journals(data, store.path(relative))
        except ValueError:
            settled.left.append(f"{relative} is damaged; the files that it lists stay as they are; {_LOOK}")
            if exclusive and len(data) < SMALL_BYTES:  # it was read to its end
                new = f"{STAGE_DIR}/{damaged_name(f'{os.path.basename(stage)}-{JOURNAL}')}"
                store.write_small(new, data)
                store.remove(relative)
                settled.left[-1] += f"; it was set aside as {new}"
            continue
        if not exclusive and not all(_is_dead(store, relative, journal) for journal in journals[:1]):
            continue
        if journals and journals[0].source and not drop_copies:
            settled.kept.append(_resumes(journals[0].version))
            continue
        try:
            settled.done += _settle_object(store, stage, journals)
        except RefusedError as error:
            settled.left.append(_unsettled(error))


def _sweep_token(store: ObjectStore, relative: str) -> None:
    """Remove an old question to workers, which is asked without the lock."""
    found = store.stat(relative)
    if found is not None and found.age_seconds > _OLD_TOKEN_SECONDS:
        store.remove(relative)


def _put_back(store: ObjectStore, kept: str, relative: str) -> Iterator[str]:
    """Put back a file that a process which had lost the lock wrote over; drop a copy that is needed no more."""
    data = store.read_small(kept) if prove_lock(store.location) else None
    present = store.read_small(relative)
    if data is None or present is None:
        store.remove(kept)
    elif data != present:
        write_proved(store, relative, data)
        yield f"put back {relative}, which a command wrote that had lost the lock"


def _settle_object(store: ObjectStore, stage: str, journals: Sequence[Journal]) -> list[str]:
    if all(journal.deletes for journal in journals):
        return settle_deletions(store, stage, journals)
    return [settle_remote(store, stage, journals[0])]


def _is_dead(store: ObjectStore, relative: str, journal: Journal) -> bool:
    """Say whether the owner of a journal is dead, on storage without locks; this process is not writing just now."""
    found = store.stat(relative)
    return found is not None and (is_me(journal.owner) or is_presumed_dead(journal.owner, found.age_seconds))
