"""Finishing, rolling back and keeping what killed commands left behind.

Whatever takes several steps has a journal, and whatever is being written has an owner. A command that takes the lock of
a location settles first, so the next command puts an end to every crash; `edl-ckpt recover` does only that. Every
writer holds the lock while it writes. So a process with an exclusive lock knows that each journal belongs to a dead
command. On storage without locks it settles the journals of its own process, and of processes presumed dead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.commit.interface import LockedLocation
from edl_ckpt.core.commit.journal import Journal, discarded_copy, parse_journal
from edl_ckpt.core.commit.local import read_journal, settle_stage, sweep_replacements
from edl_ckpt.core.commit.remote import settle_remote
from edl_ckpt.core.commit.staging import remove_empty, remove_stage
from edl_ckpt.core.commit.trash import sweep
from edl_ckpt.core.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format.names import parse_shard_file, parse_single_file, parse_version_dir
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS, holding, open_lock
from edl_ckpt.core.state.owner import if_abandoned, is_abandoned, is_me, is_presumed_dead, owner_in
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, STATE_DIR, is_resumable
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.faults import storage_errors

OLD_UPLOAD_SECONDS: Final = 24 * 3600.0
"""`recover` aborts an upload of a shard that is in no journal when it is a day old."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was finished or removed, and what is kept so that it can be resumed, in words."""

    location: Location
    done: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(slots=True)
class _Settled:
    """What a look at all journals of a location led to, in words."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


@contextmanager
def location_lock(
    location: LocationLike,
    purpose: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
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
    with _made_directory(where.local_path if create else None):
        store = open_store(where)
        if not _is_location(store) and not (create or may_be_empty):
            raise _no_location(where)
        lock = open_lock(store, purpose, reporter)
        with holding(lock, where, wait_seconds=wait_seconds):
            for text in _settle(store, exclusive=lock.is_exclusive).done:
                reporter.warn(f"{where}: {text}")
            yield LockedLocation(where, lock.is_exclusive, lock.check)


@contextmanager
def _made_directory(path: str | None) -> Iterator[None]:
    """Make a directory and those above it; when the block fails, remove those that were made and are empty."""
    missing: list[str] = []
    above = os.path.abspath(path) if path is not None else ""
    while above and not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    if path is not None:
        with storage_errors(path):
            os.makedirs(path, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for each in missing:
                os.rmdir(each)
        raise


def recover(
    location: LocationLike,
    *,
    drop_copies: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
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
        if not isinstance(store, LocalStore):
            settled.done += _abort_old_uploads(store)
    return Recovery(where, tuple(settled.done), tuple(settled.kept))


def _is_location(store: LocalStore | ObjectStore) -> bool:
    """Say whether there are versions or state of ours; UsageError for a version's directory, which must stay as it is.

    State in another directory would make ElasticDL's scan of it fail.
    """
    if isinstance(store, LocalStore):
        with storage_errors(store.root):
            names = os.listdir(store.root)
    else:
        names = list(store.names(""))
    if any(map(parse_shard_file, names)):
        raise UsageError("is one version's directory", path=store.location.url, hint="name the directory it is in")
    return STATE_DIR in names or any(parse_version_dir(n) or parse_single_file(n) is not None for n in names)


def _no_location(location: Location) -> NotFoundError:
    return NotFoundError("no checkpoint here; nothing was written", path=location.url, hint="is this a checkpoint_dir?")


def settle_first(location: Location, *, wait_seconds: float = LOCK_WAIT_SECONDS, reporter: Reporter = SILENT) -> None:
    """Settle what a dead command left, before a version is looked up that may be between two places just now.

    Takes the lock only where a dead command left the journal of a replacement.
    """
    store = open_store(location)
    if isinstance(store, LocalStore):
        stages = [stage for stage in store.names(STAGE_DIR).values() if not is_resumable(stage)]
        if any(os.path.lexists(os.path.join(stage, JOURNAL)) and is_abandoned(stage) for stage in stages):
            with location_lock(location, "recover", wait_seconds=wait_seconds, reporter=reporter):
                return


def _settle(store: LocalStore | ObjectStore, *, exclusive: bool, drop_copies: bool = False) -> _Settled:
    """Finish, roll back or keep what dead commands left. The caller holds the lock, or knows that there is none."""
    settled = _Settled()
    if not isinstance(store, LocalStore):
        _settle_objects(store, settled, exclusive=exclusive, drop_copies=drop_copies)
        return settled
    for stage in sorted(store.names(STAGE_DIR).values()):
        with if_abandoned(stage) as dead:
            if dead:
                _settle_directory(store.root, stage, settled, drop_copies=drop_copies)
        if not dead and not owner_in(stage):  # it names no owner; if it is empty, no process is at work in it
            remove_empty(stage)
    with suppress(OSError):  # not empty, or not there: a killed command may have removed all that was in it
        os.rmdir(store.path(STAGE_DIR))
    sweep_replacements(store.root)
    settled.done += map(str, sweep(store))
    return settled


def _settle_directory(root: str, stage: str, settled: _Settled, *, drop_copies: bool) -> None:
    """Settle one abandoned staging directory of a local disk."""
    try:
        journal = read_journal(stage)
    except ValueError:  # cut short, so nothing had been done when it was written
        journal = None
    if journal is not None and journal.source:
        if not drop_copies:
            settled.kept.append(_resumes(journal.version))
            return
        settled.done.append(discarded_copy(journal.version))
    elif journal is not None:
        try:
            done = settle_stage(root, stage)
        except RefusedError as error:
            settled.done.append(str(error))
            return
        settled.done += [done] if done else []
    else:
        settled.done.append(f"removed the abandoned staging directory {os.path.basename(stage)}")
    remove_stage(stage)


def _resumes(version: int) -> str:
    return f"an interrupted copy of version {version} resumes when the same copy is run again"


def _settle_objects(store: ObjectStore, settled: _Settled, *, exclusive: bool, drop_copies: bool) -> None:
    """Settle the journals of storage without rename."""
    for relative in store.tree(STAGE_DIR):
        stage, _, name = relative.rpartition("/")
        data = store.read_small(relative) if name == JOURNAL else None
        if data is None:
            continue
        try:
            journal = parse_journal(data)
        except ValueError:
            settled.done.append(f"{relative} is damaged; the files that it lists stay as they are")
            continue
        if not exclusive and not _is_dead(store, relative, journal):
            continue
        if journal.source and not drop_copies:
            settled.kept.append(_resumes(journal.version))
            continue
        try:
            settled.done.append(settle_remote(store, stage, journal))
        except RefusedError as error:
            settled.done.append(str(error))


def _is_dead(store: ObjectStore, relative: str, journal: Journal) -> bool:
    """Say whether the owner of a journal is dead, on storage without locks; this process is not writing just now."""
    found = store.stat(relative)
    return found is not None and (is_me(journal.owner) or is_presumed_dead(journal.owner, found.age_seconds))


def _abort_old_uploads(store: ObjectStore) -> list[str]:
    """Abort uploads of shards that are in no journal: of a run that was killed before it could write one."""
    done: list[str] = []
    if any(name.endswith(JOURNAL) for name in store.tree(STAGE_DIR)):
        return done
    for upload in store.open_uploads():
        folder, _, name = upload.relative.partition("/")
        ours = parse_version_dir(folder) is not None and parse_shard_file(name) is not None
        if ours and upload.age_seconds > OLD_UPLOAD_SECONDS:
            store.abort_upload(upload.relative, upload.upload_id)
            done.append(f"aborted an abandoned upload of {upload.relative}")
    return done
