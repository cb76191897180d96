"""One version of a location on object storage, without a listing of all files.

There a listing of everything takes a request for each thousand files, and a thousand versions may have ten thousand. So
for one version the directories are listed without what is in them, all of them are taken for complete, and of the one
that is chosen everything is listed. Only if it is complete, and nothing is unusual, is it the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edl_ckpt.core.base.errors import (
    IncompleteError,
    NotFoundError,
    UsageError,
)
from edl_ckpt.core.catalog.annotated import annotated, listed_metadata, with_metadata
from edl_ckpt.core.catalog.entries import has_journal, look_at
from edl_ckpt.core.catalog.evidence import needs_evidence
from edl_ckpt.core.catalog.interest import is_of_interest
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.registry import version_named
from edl_ckpt.core.state.metadata import LocationMetadata
from edl_ckpt.core.state.paths import (
    META_DIR,
    NOTES_DIR,
    STATE_DIR,
    metadata_owner,
    noted_version,
)
from edl_ckpt.core.state.verdicts import VerdictFiles
from edl_ckpt.core.storage.interface import Entry, MarkedStore

Choose = Callable[[Listing], Version]
"""Returns one version of a listing, or raises the error that there is no such version."""


def one_of_many(store: MarkedStore, choose: Choose, fresh_after: float, *, by_metadata: bool) -> Version | None:
    """Return the version that is chosen, with its files and its metadata; None when everything must be listed.

    `by_metadata` says whether the choice needs the metadata of all versions. An incomplete version that changed after
    `fresh_after`, in seconds since the epoch, counts as being written.
    """
    directories = _directories(store)
    if directories is None:
        return None
    state = store.below(STATE_DIR, is_of_interest)
    if has_journal(state):
        return None
    metadata = listed_metadata(store, state) if by_metadata else LocationMetadata()
    versions = tuple(annotated(version, metadata) for version in directories)
    try:
        chosen = choose(Listing(store.location, versions, (), metadata.modes, modes_fault=metadata.fault))
    except (NotFoundError, IncompleteError, UsageError):  # the whole listing says why
        return None
    listed = look_at(store, chosen.path.removeprefix(store.path("")), fresh_after)
    if listed is None or listed.state is not State.COMPLETE or _has_notes(listed, state):
        return None
    if not by_metadata:
        metadata = listed_metadata(store, [entry for entry in state if metadata_owner(entry.name) == listed.version])
    described = with_metadata(store, [listed], metadata)
    (version,) = VerdictFiles(store).of(described, [entry.name for entry in state if entry.parent == META_DIR])
    if needs_evidence(version) and not version.fingerprint:  # the versions before it tell
        return None
    return None if version.seal_fault or version.damage else version


def _has_notes(version: Version, state: Iterable[Entry]) -> bool:
    """Return True where servers left notes on a version: they may show two runs, which the whole listing tells."""
    return any(entry.parent == NOTES_DIR and noted_version(entry.name) == version.version for entry in state)


def _directories(store: MarkedStore) -> tuple[Version, ...] | None:
    """Return all versions as if they were complete, by number; None where names do not tell which are versions."""
    first = store.level("", 1)
    if not first.is_whole and not any(map(version_named, first.names)):
        return None
    versions: list[Version] = []
    for name in first.names if first.is_whole else store.names(""):
        named = version_named(name)
        if named is None:
            continue
        if named.number is None or named.is_file or named.layout.needs_shards:  # others use such names
            return None
        versions.append(Version(store.location, named.number, store.path(name), named.layout, State.COMPLETE, None, ()))
    return tuple(sorted(versions, key=lambda version: (version.version, version.path)))
