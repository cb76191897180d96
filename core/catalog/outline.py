"""One version of a large location on an object store, found without listing all the others.

A listing of everything takes a request for each thousand files, and a thousand versions may have ten thousand. So the
directories are listed without what is in them, all of them are taken for complete, and of the one that is chosen
everything is listed. Only if it is complete, and nothing is unusual, is it the answer; else everything must be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edl_ckpt.core.base.errors import IncompleteError, NotFoundError, UsageError
from edl_ckpt.core.catalog.annotated import annotated, listed_metadata, with_metadata
from edl_ckpt.core.catalog.grouping import has_journal, is_of_interest, look_at
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.registry import version_named
from edl_ckpt.core.state.paths import META_DIR, NOTES_DIR, STATE_DIR, metadata_owner, noted_version
from edl_ckpt.core.storage.interface import Entry, MarkedStore

Choose = Callable[[Listing], Version]
"""Returns one version of a listing, or raises the error that there is no such version."""


def one_of_many(store: MarkedStore, choose: Choose, fresh_after: float, *, by_metadata: bool) -> Version | None:
    """Return the version that is chosen, with its files and its metadata; None when everything must be listed.

    `by_metadata` says whether the choice needs the metadata of all versions. An incomplete version that changed after
    `fresh_after`, in seconds since the epoch, counts as being written.
    """
    directories = _directories(store)
    state = store.below(STATE_DIR, is_of_interest)
    if directories is None or has_journal(state):
        return None
    listing = Listing(store.location, directories, ())
    if by_metadata:
        metadata = listed_metadata(store, state)
        versions = tuple(annotated(version, metadata) for version in directories)
        listing = Listing(store.location, versions, (), metadata.modes, modes_fault=metadata.fault)
    try:
        chosen = choose(listing)
    except (NotFoundError, IncompleteError, UsageError):  # the whole listing says why
        return None
    found = look_at(store, chosen.path.removeprefix(store.path("")), fresh_after)
    if found is None or found.state is not State.COMPLETE or _has_notes(state, found.version):
        return None
    if not by_metadata:
        metadata = listed_metadata(store, [entry for entry in state if _is_of(entry, found.version)])
    version = with_metadata(store, [found], metadata)[0]
    return None if version.seal_fault else version


def _has_notes(state: Iterable[Entry], number: int) -> bool:
    """Say whether servers left notes on a version: they may show two runs, which the whole listing tells."""
    return any(entry.parent == NOTES_DIR and noted_version(entry.name) == number for entry in state)


def _is_of(entry: Entry, number: int) -> bool:
    return entry.parent == META_DIR and metadata_owner(entry.name) == number


def _directories(store: MarkedStore) -> tuple[Version, ...] | None:
    """Return all versions as if they were complete, by number; None where names do not tell which are versions."""
    versions = []
    for name, path in store.names("").items():
        named = version_named(name)
        if named is None:
            continue
        if named.number is None or named.is_file or named.layout.needs_shards:  # others use such names
            return None
        versions.append(Version(store.location, named.number, path, named.layout, State.COMPLETE, None, ()))
    return tuple(sorted(versions, key=lambda version: (version.version, version.path)))
