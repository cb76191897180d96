"""Versions with their metadata, and with what their seals say: all of a listing, or one of a large location.

On an object store both come from the index of metadata (`state/index.py`) as far as it is up to date. What it lacks is
read, many files at a time.

There a listing of everything takes a request for each thousand files, and a thousand versions may have ten thousand. So
for one version the directories are listed without what is in them, all of them are taken for complete, and of the one
that is chosen everything is listed. Only if it is complete, and nothing is unusual, is it the answer.

Determined names the directories of its checkpoints by UUIDs. The number of such a version is in `metadata.json` beside
the shards (`steps_completed`), or is unknown. Several may have one number: the checkpoints of all trials of an
experiment lie in one storage. So what tells them apart is the UUID, and any start of it that is unique.

At the end stand the cards by which notebooks show versions and listings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import (
    EdlCkptError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from edl_ckpt.core.base.notebook import Bytes, card, html_of, table
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, SMALL_READS, run_parallel
from edl_ckpt.core.base.words import base_name, command, counted, size
from edl_ckpt.core.catalog.evidence import needs_evidence
from edl_ckpt.core.catalog.files import has_journal, look_at
from edl_ckpt.core.catalog.interest import is_of_interest
from edl_ckpt.core.catalog.small_reads import read_small
from edl_ckpt.core.model.versions import Listing, State, Version, differing_sizes
from edl_ckpt.core.sources.registry import version_named
from edl_ckpt.core.sources.systems import kinds_of
from edl_ckpt.core.state.document import MAX_VALUE_DEPTH, is_deep, parse_document
from edl_ckpt.core.state.index import Known, SealFacts, take_index
from edl_ckpt.core.state.metadata import MAX_USER_BYTES, LocationMetadata, is_unread, read_metadata, unread_fault
from edl_ckpt.core.state.paths import (
    INDEX_FILE,
    META_DIR,
    NOTES_DIR,
    STATE_DIR,
    metadata_owner,
    noted_version,
    seal_file,
    stored_key,
)
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.state.verdicts import VerdictFiles
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry, MarkedStore, Store

UUID_METADATA: Final = "metadata.json"
"""In a directory named by a UUID: what Determined records with a checkpoint."""
_STEPS: Final = "steps_completed"
_MAX_BYTES: Final = 1 << 20
_MAX_NUMBER: Final = 10**18
_START: Final = re.compile(r"[0-9a-f-]{4,36}", re.ASCII)
_SOME: Final = 4


def _order(version: Version) -> tuple[int, bool, float, str]:
    """Return a sort key: by number; of equal ones those with a UUID come first, by time, so that a number is latest."""
    return version.version, not version.uuid, version.modified if version.uuid else 0.0, version.path


def read_uuid_metadata(
    store: Store, versions: Sequence[Version], entries: Iterable[Entry]
) -> tuple[list[str], tuple[Version, ...]]:
    """Return warnings, and the versions, those with a UUID with the number and the metadata that Determined recorded.

    One small read for each of these; none where there are none.
    """
    wanted = [version for version in versions if version.uuid and not version.fault]
    if not wanted:
        return [], tuple(versions)
    files = {entry.parent: entry for entry in entries if entry.name == UUID_METADATA and not entry.is_dir}

    def read(version: Version) -> tuple[str, Version]:
        file = files.get(version.uuid)
        return ("", version) if file is None else _described(store, version, file)

    found = list(run_parallel(read, wanted, store.properties.at_a_time(REMOTE_WORKERS)))
    described = {version.path: version for _, version in found}
    numbered = sorted((described.get(version.path, version) for version in versions), key=_order)
    return [warning for warning, _ in found if warning], tuple(numbered)


def _described(store: Store, version: Version, file: Entry) -> tuple[str, Version]:
    """Return a version with what a file says of it, and a warning when the file cannot be used."""
    try:
        document = parse_document(read_small(store, file, _MAX_BYTES + 1), file.path, limit=_MAX_BYTES, foreign=True)
    except UnavailableError:
        raise  # a fault of the storage, not of the file
    except EdlCkptError as error:
        warning = f"{file.path}: {error.message}; the number of the version is not known"
        return warning, replace(version, unread=unread_fault(error, file.path))
    steps = document.get(_STEPS)
    if isinstance(steps, int) and not isinstance(steps, bool) and 0 <= steps < _MAX_NUMBER:
        version = replace(version, version=steps)
    fits = file.size_bytes <= MAX_USER_BYTES and not is_deep(document, MAX_VALUE_DEPTH)  # or no copy could have it
    return "", replace(version, metadata=document if fits else {})


def has_no_number(version: Version, target: Location) -> RefusedError:
    """Return the error of a writer that needs the number of a version, which is not known."""
    metadata = f"there is no {_STEPS} in a {UUID_METADATA} next to its shards"
    return RefusedError(
        f"its number is not known: {metadata if version.uuid else 'its name has none'}",
        path=version.ref,
        hint="choose one: " + command("import", version.ref, f"{target}@NUMBER", "--ps", str(version.ps_num or "N")),
    )


def with_uuid(listing: Listing, text: str) -> Version | None:
    """Return the version whose UUID begins with a text of four or more characters, None when there is none.

    Raises UsageError when several begin so.
    """
    start = text.lower()
    if not _START.fullmatch(start):
        return None
    found = [version for version in listing.versions if version.uuid.startswith(start)]
    if len(found) > 1:
        some = ", ".join(version.uuid for version in found[:_SOME]) + (", ..." if len(found) > _SOME else "")
        raise UsageError(
            f"{len(found)} versions have a UUID that begins with {text!r}: {some}",
            path=listing.location.url,
            hint="give more of it",
        )
    return found[0] if found else None


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
    described = [annotated(version, metadata, unknown) for version in _with_names(versions, metadata)]
    with_seals = [v for v in described if v.has_place_for_seal and stored_key(v.key) in metadata.sealed]
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
    # Notes of servers may show two runs, which the whole listing tells.
    noted = {noted_version(entry.name) for entry in state if entry.parent == NOTES_DIR}
    if listed is None or listed.state is not State.COMPLETE or listed.version in noted:
        return None
    if not by_metadata:
        metadata = listed_metadata(store, [e for e in state if metadata_owner(e.name) == listed.version])
    described = with_metadata(store, [listed], metadata)
    version = VerdictFiles(store).of(described, [entry.name for entry in state if entry.parent == META_DIR])[0]
    if needs_evidence(version) and not version.fingerprint:  # the versions before it tell
        return None
    return None if version.seal_fault or version.damage else version


def _directories(store: MarkedStore) -> tuple[Version, ...] | None:
    """Return all versions as if they were complete, by number; None where names do not tell which are versions."""
    first = store.level("", 1)
    if not first.is_whole and not any(map(version_named, first.names)):
        return None
    versions = []
    for name in first.names if first.is_whole else store.names(""):
        named = version_named(name)
        if named is None:
            continue
        if named.number is None or named.is_file or named.layout.needs_shards:  # others use such names
            return None
        versions.append(Version(store.location, named.number, store.path(name), named.layout, State.COMPLETE, None, ()))
    return tuple(sorted(versions, key=lambda version: (version.version, version.path)))


_METRICS: Final = 4
"""Metrics of each version of a listing."""


@html_of.register(Version)
def version_card(version: Version) -> str:
    """Return what is known of a version."""
    shards = counted(len(version.shards), "shard")
    facts = (version.shown_state, shards, size(version.size_bytes), kinds_of([version]))
    sealed = "yes" if version.fingerprint else "no"
    rows = [
        ("path", version.path),
        ("missing", version.absent),
        ("fault", version.why_unreadable),
        ("sealed", "does not match" if version.seal_fault else sealed),
        ("tags", ", ".join(version.tags)),
        ("note", version.note),
        *((name, f"{value:.6g}") for name, value in version.metrics.items()),
    ]
    rows = [row for row in rows if row[1]]
    return card("Version", version.ref, facts, [table(("field", "value"), rows, len(rows), "metric")])


@html_of.register(Listing)
def listing_card(listing: Listing) -> str:
    """Return the versions of a location, the newest first, and its problems."""
    named = dict.fromkeys(name for version in reversed(listing.versions) for name in version.metrics)
    metrics = list(named)[:_METRICS]
    rows = (
        (
            *(str(v.key), v.shown_state, f"{len(v.shards)} of {v.ps_num}" if v.ps_num else str(len(v.shards))),
            *(Bytes(v.size_bytes), *(v.metrics.get(name) for name in metrics), ", ".join(v.tags)),
        )
        for v in reversed(listing.versions)
    )
    columns = ("version", "state", "shards", "size", *metrics, "tags")
    facts = (counted(len(listing.versions), "version"), size(sum(v.size_bytes for v in listing.versions)))
    problems = ((problem,) for problem in listing.problems)
    tables = (
        table(columns, rows, len(listing.versions), "older version"),
        table(("problem",), problems, len(listing.problems), "problem"),
    )
    return card("Listing", listing.location.url, facts, tables)
