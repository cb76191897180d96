"""Versions that another command of ours is replacing at the moment of a listing.

A listing is not one instant, and a replacement is not one step where the storage has no exchange of directories: for a
moment a version has too few shards, too many, placeholder objects, or no name at all. Its journal says so, and the
process that writes it holds the lock. So a listing that meets such a version waits for the command, or is made again
when the command is done, before the version is called incomplete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.catalog.entries import has_journal
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state.lock import open_lock
from edl_ckpt.core.state.metadata import read_document
from edl_ckpt.core.state.owner import OWNER_FILE, format_owner, is_dead, is_me
from edl_ckpt.core.state.paths import (
    JOURNAL,
    STAGE_DIR,
    is_resumable,
)
from edl_ckpt.core.state.stage_owner import is_abandoned
from edl_ckpt.core.storage import LocalStore, ObjectStore, Store
from edl_ckpt.core.storage.beneath import ForeignError
from edl_ckpt.core.storage.interface import Entry

GRACE_SECONDS: Final = 600.0
"""An incomplete version that changed within this time counts as still being written (`--grace`)."""
DOUBTFUL: Final = frozenset({State.INCOMPLETE, State.WRITING, State.MIXED, State.INVALID})
"""The states in which a listing may find a version that is being replaced."""
_POLL_SECONDS: Final = 0.05
REMOTE_POLL_SECONDS: Final = 0.5
_LISTINGS: Final = 5
"""How often a location is listed again without a command at work: each time something had changed meanwhile."""
_BUSY_SECONDS: Final = 5.0
"""For so long it is listed again in any case: a busy machine gives one listing the time of several changes."""
TICK_NS: int = 20_000_000
"""Two changes of a directory in so short a time may have the same time. Tests set it."""


class Settling:
    """Decides after each listing of a location whether it can be relied on, or must be made again."""

    def __init__(self, store: LocalStore | ObjectStore, wait_seconds: float) -> None:
        self._store = store
        begin = time.monotonic()
        self._deadline = begin + wait_seconds
        self._busy_until = begin + min(wait_seconds, _BUSY_SECONDS)
        self._listings = 0
        self._seen: Mapping[str, Any] = {}
        self._changed = names_changed_ns(self._store)
        self._replacing: dict[str, tuple[int, str]] = {}

    def wait(self, listing: Listing, state: Sequence[Entry]) -> bool:
        """Wait where a version of a listing was being replaced; True when the location must be listed again.

        After the deadline it is False; `marked` then names the versions. `state` is what of ours the listing has.
        """
        pause = self._pause(listing, state)
        if pause:
            time.sleep(pause)
        return pause is not None

    def _pause(self, listing: Listing, state: Sequence[Entry]) -> float | None:
        """Return how long to wait for the next listing, in seconds; None when this one can be relied on."""
        self._replacing = {}
        doubtful: dict[str, tuple[object, ...]] = {}
        for version in listing.versions:
            if version.state in DOUBTFUL or version.seal_fault:
                doubtful[base_name(version.path)] = _shape(version)
        has_moved = self._has_moved(state)
        if not (has_journal(state) or has_moved or (doubtful and state)):
            return None
        present = {base_name(version.path) for version in listing.versions}
        for directory, swap in replacements_at_work(self._store):
            if directory in doubtful or directory not in present:
                self._replacing[directory] = swap
        if self._replacing:
            if time.monotonic() >= self._deadline:
                return None
            return REMOTE_POLL_SECONDS if self._store.properties.round_trips else _POLL_SECONDS
        self._listings += 1
        unchanged = doubtful == self._seen
        self._seen = doubtful
        if unchanged and not has_moved:
            return None
        if self._listings > _LISTINGS and time.monotonic() >= self._busy_until:
            return None
        return TICK_NS / 1e9 if has_moved else 0.0

    def _has_moved(self, state: Sequence[Entry]) -> bool:
        """Return True where names in the location may have changed during the listing, by a command of ours."""
        before = self._changed
        self._changed = names_changed_ns(self._store)
        return bool(state) and (before != self._changed or 0 <= time.time_ns() - before < TICK_NS)

    def marked(self, listing: Listing) -> Listing:
        """Return a listing in which the versions that are still being replaced say by whom."""
        if not self._replacing:
            return listing
        versions: list[Version] = []
        for version in listing.versions:
            swap = self._replacing.get(base_name(version.path))
            versions.append(version if swap is None else replace(version, replaced_by=swap[1]))
        numbers = dict(self._replacing.values())
        problems = [f"{listing.location}@{n}: {owner} is replacing it" for n, owner in sorted(numbers.items())]
        return replace(listing, versions=tuple(versions), replacing=numbers, problems=(*listing.problems, *problems))


def names_changed_ns(store: LocalStore | ObjectStore) -> int:
    """Return when names in a location last changed, in ns since the epoch; 0 where a listing is one answer."""
    if not store.properties.rename:
        return 0
    with suppress(OSError):  # the listing says why
        return os.stat(store.path("")).st_mtime_ns
    return 0


def _shape(version: Version) -> tuple[object, ...]:
    """Return what a listing says of a version that changes while it is replaced.

    Its seal is read after its names, so it may be that of the next shards.
    """
    return version.state, version.names_inside, version.seal_fault


def staged_paths(store: LocalStore | ObjectStore) -> Iterator[str]:
    """Yield the paths that living processes will give what they are staging; none on storage without rename."""
    for stage in _stages(store) if store.properties.rename else ():
        with suppress(ForeignError):
            if not is_abandoned(store.path(""), stage):
                yield from map(store.path, store.names(stage))


def replacements_at_work(store: LocalStore | ObjectStore) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the directories of versions that a living process is replacing, with number and process."""
    journals = [(stage, document) for stage in _stages(store) if (document := _read(store, f"{stage}/{JOURNAL}"))]
    if not journals:
        return
    holder: Mapping[str, Any] = {}
    if not store.properties.rename:
        holder = _living_holder(store)  # it writes all of them there
    for stage, document in journals:
        owner = _process_in(store, stage) if store.properties.rename else holder
        rows = document.get("deletions")  # of many versions together, or it is of one
        for row in rows if isinstance(rows, list) else [document]:
            if not owner or not isinstance(row, dict):
                continue
            directory, number = row.get("directory"), row.get("version")
            if isinstance(directory, str) and isinstance(number, int):
                yield directory, (number, format_owner(owner))


def _living_holder(store: LocalStore | ObjectStore) -> Mapping[str, Any]:
    """Return the other process that holds the lock; {} for none."""
    for holder in open_lock(store, "list", SILENT).holders():
        if holder.is_alive and not is_me(holder.owner):
            return holder.owner
    return {}


def _stages(store: LocalStore | ObjectStore) -> list[str]:
    """Return the staging directories; on a disk not those of copies, which appear in one step."""
    if not isinstance(store, LocalStore):
        return [os.path.dirname(path) for path in store.tree(STAGE_DIR) if path.endswith(f"/{JOURNAL}")]
    try:
        return [f"{STAGE_DIR}/{name}" for name in store.names(STAGE_DIR) if not is_resumable(name)]
    except ForeignError:  # no directory of ours
        return []


def _process_in(store: Store, stage: str) -> Mapping[str, Any]:
    """Return the living process that works in a staging directory on a disk, {} when it is dead or this one."""
    owner = _read(store, f"{stage}/{OWNER_FILE}")
    if not owner or is_me(owner):
        return {}
    silent = 0.0
    with suppress(OSError):
        silent = time.time() - os.stat(store.path(f"{stage}/{OWNER_FILE}")).st_mtime
    return {} if is_dead(owner, silent) or is_abandoned(store.path(""), stage) else owner


def _read(store: Store, relative: str) -> dict[str, Any]:
    """Return a small document of another process, {} when it is gone or being written."""
    with suppress(EdlCkptError):
        return read_document(store, relative) or {}
    return {}
