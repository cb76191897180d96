"""Versions with their metadata, and with what their seals say: all of a listing, or one of a large location.

On an object store both come from the index of metadata (`state/index.py`) as far as it is up to date. What it lacks is
read, many files at a time.

There a listing of everything takes a request for each thousand files, and a thousand versions may have ten thousand. So
for one version the directories are listed without what is in them, all of them are taken for complete, and of the one
that is chosen everything is listed. Only if it is complete, and nothing is unusual, is it the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edl_ckpt.core.base.errors import EdlCkptError, IncompleteError, NotFoundError, UnavailableError, UsageError
from edl_ckpt.core.base.parallel import SMALL_READS, run_parallel
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.catalog.grouping import has_journal, is_of_interest, look_at
from edl_ckpt.core.model.versions import Listing, State, Version, differing_sizes
from edl_ckpt.core.sources.registry import version_named
from edl_ckpt.core.state.document import read_seal
from edl_ckpt.core.state.index import Known, SealFacts, take_index
from edl_ckpt.core.state.metadata import LocationMetadata, is_unread, read_metadata, unread_fault
from edl_ckpt.core.state.paths import (
    INDEX_FILE,
    META_DIR,
    NOTES_DIR,
    STATE_DIR,
    metadata_owner,
    noted_version,
    seal_file,
)
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry, MarkedStore, Store

Choose = Callable[[Listing], Version]
"""Returns one version of a listing, or raises the error that there is no such version."""


def listed_metadata(store: Store, state: Iterable[Entry], known: Known | None = None) -> LocationMetadata:
    """Return the metadata of a location whose state was listed just now; `known` as in `list_versions`."""
    files = {entry.name: entry for entry in state if entry.parent == META_DIR}
    marks = {name: entry.mark for name, entry in files.items()}
    known = Known(trusts_index=True) if known is None else known
    take_index(store, known, marks, files[INDEX_FILE].size_bytes if INDEX_FILE in files else None)
    return read_metadata(store, marks, known)


def with_metadata(
    store: Store,
    versions: Iterable[Version],
    metadata: LocationMetadata,
    unknown: Fault | None = None,
    *,
    seals: bool = True,
) -> tuple[Version, ...]:
    """Return versions with their metadata, and with what their seals say; reads the seals that `metadata` names.

    `unknown` is why no metadata can be read. Without `seals` none is read.
    """
    described = [annotated(version, metadata, unknown) for version in versions]
    sealed = _sealed(store, [v for v in described if seals and v.key in metadata.sealed and not v.fault], metadata)
    return tuple(sealed.get(v.path, v) for v in described)


def annotated(version: Version, metadata: LocationMetadata, unknown: Fault | None = None) -> Version:
    """Return a version with its metadata, without its seal; `unknown` as in `with_metadata`."""
    own = metadata.versions.get(version.key)
    if unknown:  # it may have any tags
        return replace(version, metadata_fault=unknown.message, unread=unknown)
    if own is None:
        return version
    return replace(
        version,
        metrics=own.metrics,
        tags=own.tags,
        note=own.note,
        metadata={**version.metadata, **own.metadata},
        metadata_fault=own.fault,
        unread=own.unread or version.unread,
    )


def _sealed(store: Store, versions: Sequence[Version], metadata: LocationMetadata) -> dict[str, Version]:
    """Return versions that have seals, by path, with their fingerprints or the faults of their seals."""
    marks = {v.version: metadata.marks.get(base_name(seal_file(v.version)), "") for v in versions}
    facts = {v.path: metadata.known.seal(base_name(seal_file(v.version)), marks[v.version]) for v in versions}
    sealed = {
        version.path: replace(version, fingerprint=found.fingerprint)
        for version in versions
        if (found := facts[version.path]) is not None and found.fits(version)
    }

    def read(version: Version) -> Version:
        try:
            seal = read_seal(store, version.version, with_chunks=False)
        except UnavailableError:
            raise  # a fault of the storage, not of the seal
        except EdlCkptError as error:
            unread = unread_fault(error, version.path)
            why = f"it cannot be read now: {error.message}" if is_unread(error) else error.message
            return replace(version, seal_fault=why, unread=version.unread or unread)
        if seal is None:  # removed since the listing
            return version
        metadata.known.keep(base_name(seal_file(version.version)), marks[version.version], SealFacts.of(seal))
        fault = next(iter(differing_sizes(seal, version)), "")
        return replace(version, fingerprint="" if fault else seal.fingerprint, seal_fault=fault)

    unknown = [version for version in versions if version.path not in sealed]
    return sealed | {v.path: v for v in run_parallel(read, unknown, store.properties.at_a_time(SMALL_READS))}


def one_of_many(store: MarkedStore, choose: Choose, fresh_after: float, *, by_metadata: bool) -> Version | None:
    """Return the version that is chosen, with its files and its metadata; None when everything must be listed.

    `by_metadata` says whether the choice needs the metadata of all versions. An incomplete version that changed after
    `fresh_after`, in seconds since the epoch, counts as being written.
    """
    directories = _directories(store)
    state = store.below(STATE_DIR, is_of_interest)
    if directories is None or has_journal(state):
        return None
    metadata = listed_metadata(store, state) if by_metadata else LocationMetadata()
    versions = tuple(annotated(version, metadata) for version in directories)
    try:
        chosen = choose(Listing(store.location, versions, (), metadata.modes, modes_fault=metadata.fault))
    except (NotFoundError, IncompleteError, UsageError):  # the whole listing says why
        return None
    listed = look_at(store, chosen.path.removeprefix(store.path("")), fresh_after)
    # Notes of servers may show two runs, which the whole listing tells.
    noted = {noted_version(entry.name) for entry in state if entry.parent == NOTES_DIR}
    if listed is None or listed.state is not State.COMPLETE or listed.version in noted:
        return None
    if not by_metadata:
        metadata = listed_metadata(store, [e for e in state if metadata_owner(e.name) == listed.version])
    version = with_metadata(store, [listed], metadata)[0]
    return None if version.seal_fault else version


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
