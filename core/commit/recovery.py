"""What commands that were killed left half-done: finished where that was begun, removed where it was not.

Everything of ours that takes several steps has a journal (`publish.py`, `output.py`); everything that is being written
has an owner. Whoever takes a location's lock settles first, so that a crash is over with the next command; `edl-ckpt
recover` does only that. What a living process is at work on is never touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.core.commit.interface import LockedLocation
from edl_ckpt.core.commit.local import remove_stage, settle_stage, sweep_replacements, sweep_stages
from edl_ckpt.core.commit.remote import ACTIVE, drop_copy, settle_remote
from edl_ckpt.core.commit.trash import sweep
from edl_ckpt.core.errors import RefusedError, UsageError
from edl_ckpt.core.format.names import parse_shard_file, parse_version_dir
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS, holding, open_lock
from edl_ckpt.core.state.metadata import read_document
from edl_ckpt.core.state.owner import if_abandoned, is_abandoned, is_me, is_presumed_dead
from edl_ckpt.core.state.paths import JOURNAL, PROGRESS, STAGE_DIR
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.faults import storage_errors

OLD_UPLOAD_SECONDS: Final = 24 * 3600.0
"""An upload that nobody wrote down, of a file named as ours are, is dropped when it is a day old."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was finished or removed, and what is kept so that it can go on, in words."""

    location: Location
    done: tuple[str, ...]
    kept: tuple[str, ...]


@contextmanager
def location_lock(
    location: LocationLike,
    purpose: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
    create: bool = False,
) -> Iterator[LockedLocation]:
    """Hold the lock of a location while the block runs, and settle first what dead commands left half-done there.

    The reporter is warned of what was settled. With `create` a local directory that does not exist is made first.
    Raises LockedError, which names the holder, when the lock is not free within `wait_seconds`.
    """
    where = Location.of(location)
    path = where.local_path
    if create and path is not None:
        with storage_errors(path):
            os.makedirs(path, exist_ok=True)
    with _settled_lock(where, purpose, wait_seconds, reporter) as place:
        for text in place.settled:
            reporter.warn(f"{location}: {text}")
        yield place


@contextmanager
def _settled_lock(
    location: Location, purpose: str, wait_seconds: float, reporter: Reporter
) -> Iterator[LockedLocation]:
    store = open_store(location)
    lock = open_lock(store, purpose, reporter)
    with holding(lock, location, wait_seconds=wait_seconds):
        settled = _settle(store, exclusive=lock.is_exclusive)
        yield LockedLocation(location, lock.is_exclusive, tuple(settled))


def recover(
    location: LocationLike,
    *,
    drop_copies: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
) -> Recovery:
    """Settle all that killed commands left in a location; with `drop_copies` interrupted copies too.

    Raises LockedError while another command is at work there.
    """
    where = Location.of(location)
    with _settled_lock(where, "recover", wait_seconds, reporter) as place:
        done = list(place.settled)
        store = open_store(where)
        if isinstance(store, LocalStore):
            kept = _local_copies(store.root, done, drop=drop_copies)
        else:
            kept = _remote_copies(store, done, drop=drop_copies)
            done += _old_uploads(store, kept)
    return Recovery(where, tuple(done), tuple(kept))


def settle_first(location: Location, *, wait_seconds: float = LOCK_WAIT_SECONDS, reporter: Reporter = SILENT) -> None:
    """Settle what a dead command left, before a version is looked for that may be between two places just now.

    Takes the lock only where there is a journal of a dead command.
    """
    store = open_store(location)
    if isinstance(store, LocalStore):
        stages = store.names(STAGE_DIR).values()
        if any(os.path.lexists(os.path.join(stage, JOURNAL)) and is_abandoned(stage) for stage in stages):
            with location_lock(location, "recover", wait_seconds=wait_seconds, reporter=reporter):
                return


def _settle(store: LocalStore | ObjectStore, *, exclusive: bool) -> list[str]:
    """Finish or roll back what journals of dead commands say; return what was done. The caller holds the lock.

    `exclusive` says that it really does: on storage without locks only silence tells that a command is dead.
    """
    if not isinstance(store, LocalStore):
        return _settle_remote(store, exclusive=exclusive)
    root = store.root
    done: list[str] = []
    for stage in sorted(store.names(STAGE_DIR).values()):
        if not os.path.lexists(os.path.join(stage, JOURNAL)):
            continue
        with if_abandoned(stage) as dead:
            if dead:
                try:
                    settled = settle_stage(root, stage)
                except RefusedError as error:
                    done.append(str(error))
                    continue
                remove_stage(stage)
                done += [settled] if settled else []
    done += [f"removed {os.path.basename(path)}, left by a killed command" for path in sweep_stages(root)]
    sweep_replacements(root)
    return [*done, *sweep(store)]


def _settle_remote(store: ObjectStore, *, exclusive: bool) -> list[str]:
    done: list[str] = []
    for relative in store.tree(STAGE_DIR):
        stage, _, name = relative.rpartition("/")
        if name != JOURNAL:
            continue
        journal = _document(store, relative) or {}
        owner = journal.get("owner", {})
        found = store.stat(relative)
        # What replaces a version is done under the lock, which is ours now: its owner has lost it, or is dead.
        ours = (exclusive and bool(journal.get("old"))) or (is_me(owner) and stage not in ACTIVE)
        if found is None or not (ours or is_presumed_dead(owner, found.age_seconds)):
            continue
        try:
            done.append(settle_remote(store, stage, journal))
        except RefusedError as error:
            done.append(str(error))
        except (KeyError, TypeError, ValueError, AttributeError):
            done.append(f"{relative} is damaged: what it was of was left as it is")
    return done


def _document(store: ObjectStore, relative: str) -> dict[str, Any] | None:
    try:
        return read_document(store, relative)
    except UsageError:  # damaged
        return {}


def _local_copies(root: str, done: list[str], *, drop: bool) -> list[str]:
    """Return the interrupted copies that wait to go on, or drop them."""
    kept: list[str] = []
    top = os.path.join(root, STAGE_DIR)
    for name in _names(top):
        stage = os.path.join(top, name)
        if not os.path.lexists(os.path.join(stage, PROGRESS)):
            continue
        with if_abandoned(stage) as dead:
            if dead and drop:
                remove_stage(stage)
            if dead:
                (done if drop else kept).append(_copy_in_words(name, dropped=drop))
    return kept


def _remote_copies(store: ObjectStore, done: list[str], *, drop: bool) -> list[str]:
    kept: list[str] = []
    for relative in store.tree(STAGE_DIR):
        stage, _, name = relative.rpartition("/")
        if name != PROGRESS:
            continue
        progress = _document(store, relative) or {}
        found = store.stat(relative)
        owner = progress.get("owner", {})
        if found is None or not (is_me(owner) or is_presumed_dead(owner, found.age_seconds)):
            continue  # somebody is at work on it
        if drop:
            drop_copy(store, progress)
            store.remove(relative)
        (done if drop else kept).append(_copy_in_words(stage.rpartition("/")[2], dropped=drop))
    return kept


def _copy_in_words(stage: str, *, dropped: bool) -> str:
    version = stage.removeprefix("copy-")
    if dropped:
        return f"dropped the interrupted copy of version {version}"
    return f"an interrupted copy of version {version}: the same `edl-ckpt copy` goes on; --drop-copies removes it"


def _old_uploads(store: ObjectStore, kept: list[str]) -> list[str]:
    """Abort uploads of shards that no journal knows: of a run that was killed before it could write one."""
    done: list[str] = []
    if kept or any(name.endswith((JOURNAL, PROGRESS)) for name in store.tree(STAGE_DIR)):
        return done
    for upload in store.open_uploads():
        folder, _, name = upload.relative.partition("/")
        ours = parse_version_dir(folder) is not None and parse_shard_file(name) is not None
        if ours and upload.age_seconds > OLD_UPLOAD_SECONDS:
            store.abort_upload(upload.relative, upload.upload_id)
            done.append(f"dropped an upload of {upload.relative} that was left")
    return done


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
