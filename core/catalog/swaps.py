"""Versions that another command of ours is replacing at the moment of a listing.

A listing is not one instant, and a replacement is not one step where the storage has no exchange of directories: for a
moment a version has too few shards, too many, placeholder objects, or no name at all. Its journal says so, and the
process that writes it holds the lock. So a listing that meets such a version waits for the command, or is made again
when the command is done, before the version is called incomplete.

The versions of a location, listed again and again by one that follows it, at the price of what has changed.

A look at a location is one listing. Metadata and seals are read when their files have changed since the last look. On a
network file system a look leaves out the directories that its caller calls settled, while their times stay the same: a
thousand versions cost one listing of the location itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.catalog.annotated import listed_metadata, with_metadata
from edl_ckpt.core.catalog.bounds import look
from edl_ckpt.core.catalog.evidence import with_doubts
from edl_ckpt.core.catalog.files import grouped, has_journal, open_location
from edl_ckpt.core.catalog.interest import Interest
from edl_ckpt.core.model.versions import Listing, State, Version
from edl_ckpt.core.state.lock import open_lock
from edl_ckpt.core.state.metadata import LocationMetadata, read_document, read_metadata, sealed_versions
from edl_ckpt.core.state.owner import OWNER_FILE, format_owner, is_abandoned, is_dead, is_me
from edl_ckpt.core.state.paths import (
    INDEX_FILE,
    JOURNAL,
    LOCATION_FILE,
    META_DIR,
    STAGE_DIR,
    STATE_DIR,
    described_key,
    is_resumable,
    seal_file,
    sealed_version,
    stored_key,
    version_file,
)
from edl_ckpt.core.state.verdicts import VerdictFiles
from edl_ckpt.core.storage import LocalStore, LocationLike, ObjectStore, Store
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
_TICK_NS: Final = 20_000_000
"""Two changes of a directory in so short a time may have the same time."""


class Settling:
    """Decides after each listing of a location whether it can be relied on, or must be made again."""

    def __init__(self, store: LocalStore | ObjectStore, wait_seconds: float) -> None:
        self._store = store
        self._deadline = time.monotonic() + wait_seconds
        self._listings = 0
        self._seen: Mapping[str, Any] = {}
        self._changed = self._root_time()
        self._replacing: dict[str, tuple[int, str]] = {}

    def _root_time(self) -> int:
        """Return when names in the location last changed; 0 where a listing is one answer of the storage."""
        if not self._store.properties.rename:
            return 0
        with suppress(OSError):  # the listing says why
            return os.stat(self._store.path("")).st_mtime_ns
        return 0

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
        doubtful = {base_name(v.path): _shape(v) for v in listing.versions if v.state in DOUBTFUL or v.seal_fault}
        before, self._changed = self._changed, self._root_time()
        moved = bool(state) and (before != self._changed or 0 <= time.time_ns() - before < _TICK_NS)
        if not (has_journal(state) or moved or (doubtful and state)):
            return None
        present = {base_name(v.path) for v in listing.versions}
        at_work = replacements_at_work(self._store)
        self._replacing = {d: swap for d, swap in at_work if d in doubtful or d not in present}
        if self._replacing:
            if time.monotonic() >= self._deadline:
                return None
            return REMOTE_POLL_SECONDS if self._store.properties.round_trips else _POLL_SECONDS
        self._listings += 1
        unchanged = doubtful == self._seen
        self._seen = doubtful
        if self._listings > _LISTINGS or (unchanged and not moved):
            return None
        return _TICK_NS / 1e9 if moved else 0.0

    def marked(self, listing: Listing) -> Listing:
        """Return a listing in which the versions that are still being replaced say by whom."""
        if not self._replacing:
            return listing
        versions = tuple(
            replace(v, replaced_by=self._replacing[base_name(v.path)][1]) if base_name(v.path) in self._replacing else v
            for v in listing.versions
        )
        numbers = dict(self._replacing.values())
        problems = tuple(f"{listing.location}@{n}: {owner} is replacing it" for n, owner in sorted(numbers.items()))
        return replace(listing, versions=versions, replacing=numbers, problems=(*listing.problems, *problems))


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
    remote = bool(journals) and not store.properties.rename  # there the holder of the lock writes all of them
    holders = open_lock(store, "list", SILENT).holders() if remote else ()
    holder = next((h.owner for h in holders if h.is_alive and not is_me(h.owner)), {})
    for stage, document in journals:
        owner = _process_in(store, stage) if store.properties.rename else holder
        rows = document.get("deletions")  # of many versions together, or it is of one
        for row in rows if isinstance(rows, list) else [document]:
            directory, number = (row.get("directory"), row.get("version")) if isinstance(row, dict) else (None, None)
            if owner and isinstance(directory, str) and isinstance(number, int):
                yield directory, (number, format_owner(owner))


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


_SURE_SECONDS: Final = 2.0
"""Two writes of a file in so short a time may have the same time and size, so it is read once more after that."""
_OLD_SECONDS: Final = 60.0
"""A file that is older than this was not written just now, whatever the clocks of two machines say."""
_DESCRIBED: Final = ("metrics", "tags", "note", "metadata", "fingerprint", "seal_fault")
"""What a version has from its metadata and its seal."""
_FULL_EVERY: Final = 6
"""Each so many-th look goes into settled directories too: a shard that is written in place changes no directory."""


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """What was read of one file of metadata, and when: its size and time, when these were first seen, and last read."""

    facts: tuple[int, float]
    first: float
    read: float

    def is_sure(self) -> bool:
        return self.read - self.first >= _SURE_SECONDS or self.first - self.facts[1] >= _OLD_SECONDS


def _is_followed(version: Version) -> bool:
    """Say whether one can wait for a version: by its number, or by its name where that has no number."""
    return not version.is_named or (version.number is None and not version.uuid)


def _owner(name: str) -> int | str | None:
    """Return the stored key of the version whose metadata or seal a file of META_DIR has, None for any other file."""
    sealed = sealed_version(name)
    if sealed is not None:
        return sealed
    return described_key(name)


class Snapshots:
    """Lists one location again and again; it remembers what it has read. Not for several threads."""

    def __init__(self, location: LocationLike) -> None:
        self.store = open_location(location)
        self.location = self.store.location
        self._entries: list[Entry] = []
        self._bound = 0
        self._complete: frozenset[str] = frozenset()
        self._looks = 0
        self._known: dict[str, _ReadFile] = {}
        self._annotated: dict[str, Version] = {}
        self._location_metadata = LocationMetadata()
        self._verdicts = VerdictFiles(self.store)

    def take(self, now: float, *, settled: Collection[str] = ()) -> Listing | None:
        """Return the versions of the location without their metadata; None when there is no such location.

        Directories named by a UUID, and others of one number, are left out: who follows a location goes by the order of
        numbers, or of the record or the times of versions without one. `now` is in seconds since the epoch. `settled`
        are paths of versions in which nothing happens any more; they are not listed again in most looks, which is
        for a file system on a network. Versions that another command is replacing just now are marked as in
        `list_versions`, without waiting. Raises the error of listing the location.
        """
        settling = Settling(self.store, 0.0)
        while True:
            try:
                self._entries = self._listed(settled)
            except NotFoundError:
                self._entries, self._complete = [], frozenset()
                return None
            listing = replace(grouped(self.store, self._entries, now - GRACE_SECONDS), bound=self._bound)
            listing = replace(listing, versions=tuple(filter(_is_followed, listing.versions)))
            state = [entry for entry in self._entries if entry.relative.startswith(f"{STATE_DIR}/")]
            if not has_journal(state) and not (state and self._lost(listing.versions)):
                break
            if not settling.wait(listing, state):
                listing = settling.marked(listing)
                break
        names = [entry.name for entry in state if entry.parent == META_DIR]
        judged = with_doubts(
            self._verdicts.of(listing.versions, names),
            fresh_after=now - GRACE_SECONDS,
            beside={entry.name for entry in self._entries if not entry.parent and not entry.is_dir},
            sealed=sealed_versions(names),
        )
        listing = replace(listing, versions=judged)
        present = {v.path for v in listing.versions if v.state is State.COMPLETE}
        self._complete = frozenset(present | {v.path for v in listing.versions if v.replaced_by})
        return listing

    def _lost(self, versions: Iterable[Version]) -> bool:
        """Say whether a version is gone, or doubtful, that was complete at the last look."""
        states = {version.path: version.state for version in versions}
        return any(path not in states or states[path] in DOUBTFUL for path in self._complete)

    def _listed(self, settled: Collection[str]) -> list[Entry]:
        """Return the entries of the location; those of settled directories are the ones of the last look."""
        self._looks += 1
        if not settled or self._looks % _FULL_EVERY == 0 or self.store.properties.round_trips:
            seen = look(self.store, Interest(self.store))
            self._bound = seen.bound
            return seen.entries
        before = {entry.relative: entry for entry in self._entries if not entry.parent}
        top = self.store.entries(lambda _: False)
        quiet = {
            entry.relative
            for entry in top
            if entry.path in settled and entry.relative in before and entry == before[entry.relative]
        }
        kept = [entry for entry in self._entries if entry.parent and entry.relative.partition("/")[0] in quiet]
        is_wanted = Interest(self.store)
        return [*self.store.entries(lambda inside: inside not in quiet and is_wanted(inside)), *kept]

    def annotated(self, listing: Listing, now: float) -> Listing:
        """Return a listing that `take` just returned, with the metadata and the seals of its versions."""
        files = {e.name: (e.size_bytes, e.modified) for e in self._entries if e.parent == META_DIR}
        unknown = next((e.fault for e in self._entries if e.relative in {STATE_DIR, META_DIR} and e.fault), None)
        stale = {name for name, facts in files.items() if not self._is_known(name, facts)}
        owners = set(map(_owner, stale | (self._known.keys() - files.keys())))
        wanted = [v for v in listing.versions if stored_key(v.key) in owners or not self._is_annotated(v)]
        keys = {stored_key(v.key) for v in wanted}
        names = [n for n in files if _owner(n) in keys or (n == LOCATION_FILE and n in stale)]
        state = [entry for entry in self._entries if entry.parent == META_DIR and entry.name in {*names, INDEX_FILE}]
        metadata = listed_metadata(self.store, state)
        if LOCATION_FILE in stale or LOCATION_FILE not in files:
            self._location_metadata = metadata
        self._remember(files, stale, now)
        fresh = {v.path: v for v in with_metadata(self.store, wanted, metadata, unknown)}
        before = {path: {name: getattr(v, name) for name in _DESCRIBED} for path, v in self._annotated.items()}
        versions = tuple(fresh.get(v.path) or replace(v, **before[v.path]) for v in listing.versions)
        self._annotated = {v.path: v for v in versions}
        fault = unknown.error() if unknown else self._location_metadata.fault
        return replace(listing, versions=versions, modes=self._location_metadata.modes, modes_fault=fault)

    def described(self, version: Version) -> Version:
        """Return one version with its metadata and its seal, which are read now."""
        files = [version_file(version.key), *([seal_file(version.key)] if version.has_place_for_seal else [])]
        metadata = read_metadata(self.store, [path.rpartition("/")[2] for path in files])
        return with_metadata(self.store, [version], metadata)[0]

    def _is_known(self, name: str, facts: tuple[int, float]) -> bool:
        known = self._known.get(name)
        return known is not None and known.facts == facts and known.is_sure()

    def _is_annotated(self, version: Version) -> bool:
        """Say whether what is remembered of a version is of these shards, and was all there was to read."""
        before = self._annotated.get(version.path)
        return before is not None and before.shards == version.shards and not (before.unread or before.metadata_fault)

    def _remember(self, files: dict[str, tuple[int, float]], stale: Collection[str], now: float) -> None:
        for name in self._known.keys() - files.keys():
            del self._known[name]
        for name in stale:
            before = self._known.get(name)
            first = before.first if before and before.facts == files[name] else now
            self._known[name] = _ReadFile(files[name], first, now)
