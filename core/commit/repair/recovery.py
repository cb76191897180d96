"""Finishing, rolling back and keeping what killed commands left behind.

Whatever takes several steps has a journal, and whatever is being written has an owner. A command that takes the lock of
a location settles first, so the next command puts an end to every crash; `edl-ckpt recover` does only that. Every
writer holds the lock while it writes. So a process with an exclusive lock knows that each journal belongs to a dead
command. On storage without locks it settles the journals of its own process, and of processes presumed dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import describe, escaped
from edl_ckpt.core.catalog.files import directory_alone
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.commit.interface import LockedLocation, Settled
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.sources.registry import completes, shard_named, version_named
from edl_ckpt.core.state.document import is_newer, schema_at_head
from edl_ckpt.core.state.holder import LostLockError
from edl_ckpt.core.state.index import refresh_index
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS, holding, open_lock
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import META_DIR, STATE_DIR, is_of_a_name, may_be_described, metadata_owner
from edl_ckpt.core.state.shard_note import sweep_notes
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.beneath import ForeignError
from edl_ckpt.core.storage.directories import made_directory

if TYPE_CHECKING:
    from edl_ckpt.core.commit.repair.disk import DiskRepair
    from edl_ckpt.core.commit.repair.objects import ObjectRepair


def forget_gone(store: LocalStore | ObjectStore, present: Iterable[int]) -> list[EdlCkptError]:
    """Remove the metadata of gone versions: a restarted job may use their numbers. The caller holds the lock.

    Returns why some could not be removed, which the next prune tries again.

    `present` are the numbers in a listing. On a local disk each name of another number is looked up as well, and only
    what has no name is gone. Storage whose listings may lack something keeps all metadata.
    """
    if not store.properties.whole_listings:
        return []
    listed = set(present)
    try:
        names = store.names(META_DIR)
        named = _forget_names(store, [name for name in names if is_of_a_name(name)])
        owners = {name: metadata_owner(name) for name in names}
        gone = {name: number for name, number in owners.items() if number is not None and number not in listed}
        newer = {gone[name] for name in gone if is_newer(schema_at_head(store.read_small(f"{META_DIR}/{name}")))}
        gone = {name: number for name, number in gone.items() if number not in newer}
        return kind_of(store).trash.forget(gone) if gone or named else []
    except ForeignError:  # the directory of the metadata is none of ours, of which the listing warns
        return []
    except EdlCkptError as error:
        return [error]


def _forget_names(store: LocalStore | ObjectStore, files: Sequence[str]) -> list[str]:
    """Remove the metadata of versions that their names tell from others, where no entry has such a name any more."""
    entries = store.names("") if files else {}
    if not entries:  # our state itself is an entry: what shows none says nothing
        return []
    gone = [file for file in files if not any(may_be_described(file, entry) for entry in entries)]
    gone = [file for file in gone if not is_newer(schema_at_head(store.read_small(f"{META_DIR}/{file}")))]
    for file in gone:
        prove_lock(store.location)
        store.remove(f"{META_DIR}/{file}")
    return gone


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


@contextmanager
def location_lock(
    location: LocationLike,
    purpose: str,
    *,
    create: bool = False,
    may_be_empty: bool = False,
    frees_space: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> Iterator[LockedLocation]:
    """Hold the lock of a location while the block runs, after settling what dead commands left there.

    The reporter is warned of what was settled. With `create`, for commands that write a version, a local directory that
    does not exist is made first, and removed again if the block fails and leaves nothing in it. With `frees_space`, for
    commands that only delete, the lock can be taken on a full disk. Raises NotFoundError
    for a directory without versions and without state of ours, which `may_be_empty` allows to commands that write
    nothing there; UsageError for a version's own directory; LockedError, which names the holder, when the lock is not
    free within `wait_seconds`.
    """
    store, repair = _opened(location)
    where = store.location
    COMMIT.more()
    with made_directory(where.local_path if create else None):
        _check_location(where, repair, lambda: create or may_be_empty)
        lock = open_lock(store, purpose, reporter, frees_space=frees_space)
        try:
            with holding(lock, where, wait_seconds=wait_seconds):
                settled = Settled(lock.is_exclusive)
                repair.settle(settled)
                for text in (*settled.done, *settled.left):
                    reporter.warn(f"{where}: {text}")
                yield LockedLocation(store, lock.is_exclusive, lock.check)
                refresh_index(store)
        except LostLockError:  # its last request may have come too late
            waiting = location_lock(where, purpose, may_be_empty=True, wait_seconds=wait_seconds, reporter=reporter)
            with suppress(EdlCkptError), waiting:
                pass
            raise


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
    store, repair = _opened(location)
    where = store.location
    # A killed command may have left nothing but uploads, which no listing shows.
    _check_location(where, repair, repair.has_uploads)
    lock = open_lock(store, "recover", reporter, frees_space=True)
    with holding(lock, where, wait_seconds=wait_seconds):
        settled = Settled(lock.is_exclusive, drop_copies)
        repair.settle(settled)
        refresh_index(store, whole=True)
        repair.sweep(settled)
        with COMMIT, suppress(ForeignError):  # no directory of ours
            settled.done += sweep_notes(store)
    return Recovery(where, tuple(settled.done), tuple(settled.kept), tuple(settled.left))


def _opened(location: LocationLike) -> tuple[LocalStore | ObjectStore, DiskRepair | ObjectRepair]:
    store = open_store(location)
    return store, kind_of(store).repair


def _check_location(location: Location, repair: DiskRepair | ObjectRepair, may_be_empty: Callable[[], bool]) -> None:
    """Raise NotFoundError where there are neither versions nor state of ours, unless that is allowed.

    Raises UsageError for a version's directory, which must stay as it is: state in it would make ElasticDL's scan fail.
    """
    names = repair.names()
    is_known = STATE_DIR in names or any(map(version_named, names))
    if not is_known and any(map(completes, names)):  # bundles side by side, whose names have no numbers
        is_known = bool(list_versions(location, wait_seconds=0.0, seals=False).versions)
    is_step = not is_known and any(map(completes, names)) and directory_alone(location) is not None
    if is_step or any(map(shard_named, names)):
        raise UsageError("is one version's directory", path=location.url, hint="name the directory it is in")
    if not is_known and not may_be_empty():
        why = "no checkpoint here; nothing was written"
        raise NotFoundError(why, path=location.url, hint="is this the right directory?")


def settle_first(location: Location, *, reporter: Reporter = WARNINGS) -> None:
    """Settle what a dead command left, before a version is looked up that may be between two places just now.

    Takes the lock only where a dead command left the journal of a replacement.
    """
    if _opened(location)[1].is_interrupted():
        with location_lock(location, "recover", reporter=reporter):
            return
