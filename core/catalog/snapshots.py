"""The versions of a location, listed again and again by one that follows it, at the price of what has changed.

A look at a location is one listing. Metadata and seals are read when their files have changed since the last look. On a
network file system a look leaves out the directories that its caller calls settled, while their times stay the same: a
thousand versions cost one listing of the location itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.catalog.annotated import listed_metadata, with_metadata
from edl_ckpt.core.catalog.bounds import look
from edl_ckpt.core.catalog.entries import grouped, has_journal
from edl_ckpt.core.catalog.evidence import with_doubts
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.interest import Interest
from edl_ckpt.core.catalog.swaps import DOUBTFUL, GRACE_SECONDS, Settling
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state.metadata import LocationMetadata, read_metadata, sealed_versions
from edl_ckpt.core.state.paths import (
    INDEX_FILE,
    LOCATION_FILE,
    META_DIR,
    STATE_DIR,
    described_key,
    seal_file,
    sealed_version,
    stored_key,
    version_file,
)
from edl_ckpt.core.state.verdicts import VerdictFiles
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry

_SURE_SECONDS: Final = 2.0
"""Two writes of a file in so short a time may have the same time and size, so it is read once more after that."""
_OLD_SECONDS: Final = 60.0
"""A file that is older than this was not written just now, whatever the clocks of two machines say."""
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


def _files_to_read(entries: Mapping[str, Entry], versions: Collection[Version], stale: Collection[str]) -> list[Entry]:
    """Return the entries of META_DIR, by name, that have something of some versions, or of the location if stale."""
    keys = {stored_key(version.key) for version in versions}
    chosen = []
    for name, entry in entries.items():
        is_of_location = name == INDEX_FILE or (name == LOCATION_FILE and name in stale)
        if is_of_location or _owner(name) in keys:
            chosen.append(entry)
    return chosen


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
        entries = {entry.name: entry for entry in self._entries if entry.parent == META_DIR}
        files = {name: (entry.size_bytes, entry.modified) for name, entry in entries.items()}
        unknown = self._state_fault()
        stale = {name for name, facts in files.items() if not self._is_known(name, facts)}
        removed = self._known.keys() - files.keys()
        changed = {_owner(name) for name in stale | removed}
        wanted = [v for v in listing.versions if stored_key(v.key) in changed or not self._is_annotated(v)]
        metadata = listed_metadata(self.store, _files_to_read(entries, wanted, stale))
        if LOCATION_FILE in stale or LOCATION_FILE not in files:
            self._location_metadata = metadata
        self._remember(files, stale, now)
        fresh = {version.path: version for version in with_metadata(self.store, wanted, metadata, unknown)}
        versions = tuple(fresh.get(version.path) or self._as_before(version) for version in listing.versions)
        self._annotated = {version.path: version for version in versions}
        fault = unknown.error() if unknown else self._location_metadata.fault
        return replace(listing, versions=versions, modes=self._location_metadata.modes, modes_fault=fault)

    def _state_fault(self) -> Fault | None:
        """Return why the directories of our state could not be listed; None where they were."""
        for entry in self._entries:
            if entry.relative in {STATE_DIR, META_DIR} and entry.fault:
                return entry.fault
        return None

    def _as_before(self, version: Version) -> Version:
        """Return a version with the metadata and the seal that it had at the last look."""
        before = self._annotated[version.path]
        return replace(
            version,
            metrics=before.metrics,
            tags=before.tags,
            note=before.note,
            metadata=before.metadata,
            fingerprint=before.fingerprint,
            seal_fault=before.seal_fault,
        )

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
