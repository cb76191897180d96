"""Versions with their metadata, and with what their seals say.

On an object store both come from the index of metadata (`state/index.py`) as far as it is up to date. What it lacks is
read, many files at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edl_ckpt.core.base.errors import (
    EdlCkptError,
    UnavailableError,
)
from edl_ckpt.core.base.parallel import SMALL_READS, run_parallel
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.model.seals import differing_sizes
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.index import Known, SealFacts, take_index
from edl_ckpt.core.state.metadata import LocationMetadata, is_unread, read_metadata, unread_fault
from edl_ckpt.core.state.paths import (
    INDEX_FILE,
    META_DIR,
    seal_file,
    stored_key,
)
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry, Store


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
    seals: bool | frozenset[int] = True,
) -> tuple[Version, ...]:
    """Return versions with their metadata, and with what their seals say; reads the seals that `metadata` names.

    `unknown` is why no metadata can be read. Without `seals` none is read; of numbers, those of their versions.
    """
    described = [annotated(version, metadata, unknown) for version in _with_names(versions, metadata)]
    with_seals = [v for v in described if v.has_place_for_seal and stored_key(v.key) in metadata.sealed]
    if not isinstance(seals, bool):
        with_seals = [v for v in with_seals if v.version in seals]
    sealed = _sealed(store, [v for v in with_seals if seals and not v.fault], metadata)
    return tuple(sealed.get(v.path, v) for v in described)


def _with_names(versions: Iterable[Version], metadata: LocationMetadata) -> Iterable[Version]:
    """Return versions, those told apart by name that have metadata under their names.

    They got it when a neighbour had their number. Without this, their tags would be lost once that neighbour is gone.
    """
    names = {key for key in metadata.versions if isinstance(key, str)}
    if not names:
        return versions
    return [v if v.is_named or stored_key(v.name) not in names else replace(v, by_name=True) for v in versions]


def annotated(version: Version, metadata: LocationMetadata, unknown: Fault | None = None) -> Version:
    """Return a version with its metadata, without its seal; `unknown` as in `with_metadata`."""
    own = metadata.versions.get(stored_key(version.key))
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
    files = {v.path: base_name(seal_file(v.key)) for v in versions}
    marks = {path: metadata.marks.get(file, "") for path, file in files.items()}
    facts = {path: metadata.known.seal(file, marks[path]) for path, file in files.items()}
    sealed = {
        version.path: replace(version, fingerprint=found.fingerprint)
        for version in versions
        if (found := facts[version.path]) is not None and found.fits(version)
    }

    def read(version: Version) -> Version:
        try:
            seal = read_seal(store, version.key, with_chunks=False)
        except UnavailableError:
            raise  # a fault of the storage, not of the seal
        except EdlCkptError as error:
            unread = unread_fault(error, version.path)
            why = f"it cannot be read now: {error.message}" if is_unread(error) else error.message
            return replace(version, seal_fault=why, unread=version.unread or unread)
        if seal is None:  # removed since the listing
            return version
        metadata.known.keep(files[version.path], marks[version.path], SealFacts.of(seal))
        fault = next(iter(differing_sizes(seal, version)), "")
        return replace(version, fingerprint="" if fault else seal.fingerprint, seal_fault=fault)

    unknown = [version for version in versions if version.path not in sealed]
    if not unknown:
        return sealed
    with store.kept_open(META_DIR):
        return sealed | {v.path: v for v in run_parallel(read, unknown, store.properties.at_a_time(SMALL_READS))}
