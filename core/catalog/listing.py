"""Versions in a location and their state, from listings alone, and references to them.

A version is complete when its directory has all its ps_num files and no other entry. No shard is opened: a thousand
versions cost one listing per directory.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from edl_ckpt.core.base.errors import (
    EdlCkptError,
    IncompleteError,
    LockedError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import abridged, closest, command, meant, neighbours
from edl_ckpt.core.catalog import (
    cards,  # noqa: F401 - by them notebooks show what is listed
    ownership,
)
from edl_ckpt.core.catalog.annotated import listed_metadata, with_metadata
from edl_ckpt.core.catalog.bounds import Look, look
from edl_ckpt.core.catalog.entries import grouped, has_journal, journals_among
from edl_ckpt.core.catalog.evidence import with_doubts
from edl_ckpt.core.catalog.files import directory_alone, named_step, open_location
from edl_ckpt.core.catalog.interest import Interest
from edl_ckpt.core.catalog.one_of_many import one_of_many
from edl_ckpt.core.catalog.ranking import ranked
from edl_ckpt.core.catalog.single_file import named_file
from edl_ckpt.core.catalog.strangers import stranger
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS, Settling
from edl_ckpt.core.catalog.uuids import read_uuid_metadata, with_uuid
from edl_ckpt.core.model.listings import InterruptedMove, Listing
from edl_ckpt.core.model.versions import DAMAGED, CheckpointRef, State, Version
from edl_ckpt.core.sources.elasticdl.loader import mistaken_for_newer
from edl_ckpt.core.sources.registry import is_own_name, version_named
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.interrupted import move_in
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.metadata import read_document
from edl_ckpt.core.state.metric_modes import mode_of
from edl_ckpt.core.state.owner import is_presumed_dead
from edl_ckpt.core.state.paths import (
    INTERRUPTED,
    LOCK_FILE,
    META_DIR,
    NOTES_DIR,
    STAGE_DIR,
    STATE_DIR,
    noted_version,
    resumed_number,
)
from edl_ckpt.core.state.shard_note import with_mixture
from edl_ckpt.core.state.stage_owner import is_abandoned
from edl_ckpt.core.state.verdicts import VerdictFiles
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore
from edl_ckpt.core.storage.interface import Entry, MarkedStore, Store, lists_marks
from edl_ckpt.core.storage.location import as_url

_BEGUN: Final = "{}: a command is publishing or deleting a version, or was killed while it did; if none is running: {}"
"""A listing finishes nothing. An interrupted copy waits to be resumed, which is no fault."""

_OTHER_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("newest", "last", "current", "head", "final", "recent"), "latest"),
    **dict.fromkeys(("good", "safe", "healthy", "checked"), "verified"),
}
"""What other programs call the newest version, and the newest good one."""


def list_versions(
    location: LocationLike,
    *,
    grace_seconds: float = GRACE_SECONDS,
    now: float | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    known: Known | None = None,
    seals: bool = True,
) -> Listing:
    """Return the versions of a location, by number; an existing directory without any gives an empty listing.

    A version that cannot be looked at now is listed as unreadable, and named in `problems`; the others are listed all
    the same. `now` is seconds since the epoch, the current time when None. Raises NotFoundError when there is no such
    directory, and the error of listing it. One listing per directory on a local disk, one for all on an object store,
    and one small read per version that has metadata, or is in a directory named by a UUID.

    While another command of ours replaces a version, this waits for it up to `wait_seconds`; then `replacing` names it.

    On an object store the index of metadata saves the reads. A caller that deletes by metadata gives `known`, empty at
    first: then it is read from its files, and not again in the next listing while they stay the same. Without `seals`
    versions may have no fingerprint.

    >>> [(version.ref, str(version.state), version.ps_num) for version in list_versions("run").versions]
    [('run@100', 'complete', 2), ('run@200', 'complete', 2)]
    """
    return _list(open_location(location), grace_seconds, now, wait_seconds, known, seals=seals)


def list_everything(location: LocationLike) -> tuple[Listing, list[Entry]]:
    """Return the versions of a location, and the entries of all that is there: both from one listing."""
    store = open_location(location)
    entries = store.entries(lambda _: True)
    is_wanted = Interest(store)
    known = [entry for entry in entries if not entry.parent or is_wanted(entry.parent)]
    return _list(store, GRACE_SECONDS, None, entries=known), entries


def _list(
    store: LocalStore | ObjectStore,
    grace_seconds: float,
    now: float | None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    known: Known | None = None,
    entries: list[Entry] | None = None,
    *,
    seals: bool | frozenset[int] = True,
) -> Listing:
    """Return the versions of a location; `entries` are those of a listing that was made just now.

    `seals` may be numbers, the seals of which are read. A version of another number may then have doubts that its seal
    would settle.
    """
    settling = Settling(store, wait_seconds)
    known = Known(trusts_index=True) if known is None else known
    while True:
        fresh_after = (time.time() if now is None else now) - grace_seconds
        listing, state = _list_once(store, fresh_after, known, entries, seals=seals)
        entries = None
        if not settling.wait(listing, state):
            return settling.marked(listing)


def _list_once(
    store: LocalStore | ObjectStore,
    fresh_after: float,
    known: Known,
    entries: list[Entry] | None,
    *,
    seals: bool | frozenset[int],
) -> tuple[Listing, list[Entry]]:
    """Return the versions of a location as one pass finds them, and what there is of our state."""
    seen = look(store, Interest(store)) if entries is None else Look(entries)
    entries = seen.entries
    bare = grouped(store, entries, fresh_after)
    unnumbered, versions = read_uuid_metadata(store, bare.versions, entries)
    state = [entry for entry in entries if entry.relative.startswith(f"{STATE_DIR}/")]
    metadata = listed_metadata(store, state, known)
    state_fault = next((e.fault for e in entries if e.relative in {STATE_DIR, META_DIR} and e.fault), None)
    noted = {noted_version(entry.name) for entry in state if entry.parent == NOTES_DIR} - metadata.sealed
    versions = tuple(with_mixture(store, v) if v.version in noted else v for v in versions)
    problems = [*_unreadable(versions, entries), *ownership.warnings(versions)]
    if bare.record and bare.record.fault:
        problems.append(bare.record.fault)
    problems += [*unnumbered, *metadata.problems]
    if has_journal(state):
        problems.append(_BEGUN.format(store.location, command("recover", str(store.location))))
    problems += (f"{version.ref}: {version.mixture}" for version in versions if version.mixture)
    described = with_metadata(store, versions, metadata, state_fault, seals=seals)
    verified = VerdictFiles(store).of(described, [entry.name for entry in state if entry.parent == META_DIR])
    judged = with_doubts(
        verified,
        fresh_after=fresh_after,
        beside={entry.name for entry in entries if not entry.parent and not entry.is_dir},
        sealed=() if seals else metadata.sealed,
    )
    listing = Listing(
        store.location,
        judged,
        bare.foreign,
        modes=metadata.modes,
        problems=tuple(problems),
        interrupted_copies=tuple(_interrupted_copies(store, state)),
        interrupted_moves=tuple(_interrupted_moves(store, state)),
        modes_fault=state_fault.error() if state_fault else metadata.fault,
        record=bare.record,
        bound=seen.bound,
    )
    return listing, state


def _unreadable(versions: Iterable[Version], entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a warning for each version that cannot be looked at, and for each directory of ours."""
    yield from (f"{v.ref}: {v.why_unreadable}" for v in versions if v.fault)
    for entry in entries:
        if entry.fault and entry.relative in {STATE_DIR, META_DIR, STAGE_DIR}:
            yield f"{entry.path}: cannot be read now: {entry.fault.message}"


def _interrupted_copies(store: Store, state: Sequence[Entry]) -> Iterator[int]:
    """Yield the versions of which a copy was interrupted; not of one that is at work, as far as can be seen."""
    at_work = any(entry.relative == LOCK_FILE for entry in state)  # every writer holds the lock
    for entry in journals_among(state):
        number = resumed_number(entry.parent)
        if number is not None and not (at_work and not _is_left(store, entry)):
            yield number


def _interrupted_moves(store: Store, state: Sequence[Entry]) -> Iterator[InterruptedMove]:
    """Yield the moves that were interrupted, not those at work. A directory with a journal belongs to a commit."""
    begun = {entry.parent for entry in journals_among(state)}
    for entry in state:
        if entry.name == INTERRUPTED and entry.parent not in begun and _is_left(store, entry):
            with suppress(EdlCkptError):
                move = move_in(read_document(store, entry.relative) or {})
                if move is not None:
                    yield move


def _is_left(store: Store, journal: Entry) -> bool:
    """Say whether the process that wrote a journal is dead, in a location that a process has locked."""
    if store.properties.rename:
        return is_abandoned(store.path(""), os.path.dirname(journal.relative))
    with suppress(EdlCkptError):
        owner = (read_document(store, journal.relative) or {}).get("owner")
        return isinstance(owner, dict) and is_presumed_dead(owner, time.time() - journal.modified)
    return False


VersionLike: TypeAlias = Version | CheckpointRef | str | os.PathLike[str]
"""What the public functions take for a version: a version, or a reference such as 'runs/a@latest'."""


def as_version(version: VersionLike) -> Version:
    """Return the version that a reference names, and a version as it is; errors as `resolve`."""
    return version if isinstance(version, Version) else resolve(version)


def parse_ref(
    text: str | os.PathLike[str],
    *,
    default_location: str | os.PathLike[str] = ".",
    options: Mapping[str, str] | None = None,
) -> CheckpointRef:
    """Split `[LOCATION][@VERSION]`; the text after the last '@' is a version unless it has a '/'.

    >>> parse_ref("s3://bucket/run@best:auc")
    CheckpointRef(location=Location(url='s3://bucket/run'), version='best:auc')
    >>> parse_ref("@100")
    CheckpointRef(location=Location(url='.'), version=100)
    """
    if isinstance(text, Location):
        raise UsageError(
            f"expected a version or a reference, got {text!r}",
            hint="resolve(CheckpointRef(location, 100)) is a version of a Location",
        )
    storage_options, text = options or {}, as_url(text)
    location, at, version = text.rpartition("@")
    if not at or "/" in version:
        return CheckpointRef(Location(text or as_url(default_location), storage_options), "latest")
    if not version:
        raise UsageError(f"{text!r}: no version after '@' (a number, latest, verified, best, best:METRIC or a tag)")
    number = int(version) if version.isascii() and version.isdigit() and len(version) < 20 else None
    place = Location(location or as_url(default_location), storage_options)
    return CheckpointRef(place, version if number is None else number)


def split_version_dir(location: Location) -> tuple[Location, int] | None:
    """Return (checkpoint_dir, version) when a location is itself one version's directory, else None.

    >>> split_version_dir(Location("runs/a/version-30/"))
    (Location(url='runs/a'), 30)
    """
    head, _, name = location.url.rstrip("/").rpartition("/")
    named = version_named(name)
    if named is None or named.number is None or not (named.is_file or is_own_name(name)):
        return None  # `resolve` looks what is in a directory whose name others use too
    return location.with_url(head or ("/" if location.url.startswith("/") else ".")), named.number


def resolve(
    ref: CheckpointRef | str | os.PathLike[str],
    *,
    grace_seconds: float = GRACE_SECONDS,
    reporter: Reporter = WARNINGS,
    seals: bool = True,
    damaged: bool = False,
) -> Version:
    """Return the version a reference names; 'latest' is the newest good one whose shards are of one run.

    A version is good if it is complete and not known to be damaged. 'verified' is the newest one whose every value was
    read without an error, as far as is remembered (`state/verdicts.py`).

    A checkpoint in a file of any name is a version by itself (`files.py`). Raises NotFoundError, whose hint names the
    versions there, UnsupportedError for a directory of a system that is not read, IncompleteError for 'latest' when no
    version is complete, and UsageError when several versions match. Without `seals` the version may have no
    fingerprint, for callers that read the seal themselves. With `damaged`, 'latest' may be a version that is known to
    be damaged, for a caller that verifies it.
    """
    ref = ref if isinstance(ref, CheckpointRef) else parse_ref(ref)
    return _resolved(ref, _Listings([ref], grace_seconds, seals=seals), reporter, damaged=damaged).version


class Resolved(NamedTuple):
    """A version, and the listing of its location that it was chosen from."""

    version: Version
    listing: Listing | None
    """None where not the whole location was listed."""


def resolve_listed(
    ref: CheckpointRef,
    *,
    grace_seconds: float = GRACE_SECONDS,
    reporter: Reporter = WARNINGS,
    seals: bool = True,
    damaged: bool = False,
) -> Resolved:
    """Return the version that a reference names with its listing, so that nobody lists again; as `resolve`."""
    return _resolved(ref, _Listings([ref], grace_seconds, seals=seals), reporter, damaged=damaged)


def resolve_each(refs: Sequence[CheckpointRef], *, reporter: Reporter = WARNINGS) -> tuple[Version, ...]:
    """Return the versions that references name, of each location from one listing; errors as `resolve`."""
    listings = _Listings(refs, GRACE_SECONDS)
    return tuple(_resolved(ref, listings, reporter).version for ref in refs)


class _Listings:
    """Listings of the locations that some references name, each made once.

    Where all of them name numbers, only the seals of these are read.
    """

    def __init__(self, refs: Iterable[CheckpointRef], grace_seconds: float, *, seals: bool = True) -> None:
        self.grace_seconds = grace_seconds
        wanted = [_in_directory(ref).version for ref in refs]
        numbers = frozenset(each for each in wanted if isinstance(each, int))
        self._seals: bool | frozenset[int] = numbers if seals and len(numbers) == len({*wanted}) else seals
        self._made: dict[Location, Listing] = {}

    def is_made(self, store: Store) -> bool:
        """Say whether the location of a store was listed."""
        return store.location in self._made

    def of(self, store: LocalStore | ObjectStore, entries: list[Entry] | None) -> Listing:
        """Return the listing of the location of a store; `entries` as in `_list`."""
        where = store.location
        if where not in self._made:
            self._made[where] = _list(store, self.grace_seconds, None, entries=entries, seals=self._seals)
        return self._made[where]


def _in_directory(ref: CheckpointRef) -> CheckpointRef:
    """Return a reference to the directory of a version as the number in its location, and any other as it is."""
    split = split_version_dir(ref.location) if ref.version == "latest" else None
    return CheckpointRef(*split) if split else ref


def _resolved(given: CheckpointRef, listings: _Listings, reporter: Reporter, *, damaged: bool = False) -> Resolved:
    """Return the version that a reference names, and the listing that shows it; errors as `resolve`."""
    if alone := named_step(given) or named_file(given):
        return Resolved(alone, None)
    ref = _in_directory(given)
    wants_latest = ref.version == "latest"
    if wants_latest and (above := _in_folder(ref.location, listings.grace_seconds)):
        return Resolved(above, None)
    named = given.location.split()[1] if split_version_dir(given.location) else None
    store = open_location(ref.location)
    entries: list[Entry] | None = None
    if not listings.is_made(store) and lists_marks(store):
        entries = store.few(Interest(store))
        found = None if entries is not None else _one_of_many(store, ref.version, named, listings.grace_seconds)
        if found is not None:
            return Resolved(found, None)
    listing = listings.of(store, entries)
    if not (listing.versions or listing.bound):
        if wants_latest and (alone := directory_alone(ref.location)):
            return Resolved(alone, None)
        if words := stranger(store, listing):
            raise UnsupportedError(words, path=ref.location.url, code="other-format")
    if damaged and wants_latest:
        listing = replace(listing, versions=tuple(replace(version, verdict=None) for version in listing.versions))
    return Resolved(_picked(listing, ref.version, reporter, named), None if listing.bound else listing)


def _one_of_many(store: MarkedStore, wanted: int | str, named: str | None, grace_seconds: float) -> Version | None:
    """Return a version without a listing of all files; None where that does not tell which one is meant."""
    return one_of_many(
        store,
        partial(pick, wanted=wanted, named=named),
        time.time() - grace_seconds,
        by_metadata=isinstance(wanted, str) and wanted != "latest",
    )


def _picked(listing: Listing, wanted: int | str, reporter: Reporter, named: str | None = None) -> Version:
    """Return one version of a listing, with warnings about others; errors as `resolve`."""
    for version in listing.versions:
        if version.fault and version.version != wanted:
            reporter.warn(f"{version.ref}: {version.why_unreadable}")
    chosen = pick(listing, wanted, named)
    if wanted in {"latest", "verified"}:
        for version in listing.versions:
            why = version.mixture or version.why_not_good
            if why and version.version > chosen.version:
                reporter.warn(f"{version.ref} is passed over: {why}")
    if wanted == "latest":
        _warn_of_record(listing, chosen, reporter)
        for name, number in mistaken_for_newer(listing, chosen):
            reporter.warn(f"{listing.location}: {name!r} is no checkpoint, but ElasticDL reads it as version {number}")
        if chosen.doubts:
            reporter.warn(f"{chosen.ref}: {'; '.join(chosen.doubts)}")
    return chosen


def _warn_of_record(listing: Listing, chosen: Version, reporter: Reporter) -> None:
    """Say where a record that does not decide names another version than the number does, or one that is not good."""
    record, named = listing.record, listing.decided
    if record is None or record.decides:
        return
    if record.fault:
        reporter.warn(record.fault)
    if named is not None and named.path != chosen.path:
        why = f"{named.shown_state}: {named.why_not_good or named.mixture or named.absent or named.why_unreadable}"
        reporter.warn(f"{listing.location}: {record.name} names {named.key}, which is passed over: it is {why}")
    elif named is not None:
        newer = [str(v.key) for v in listing.versions if v.is_good and v.version > chosen.version]
        if newer:
            are = "is" if len(newer) == 1 else "are"
            reporter.warn(
                f"{listing.location}: {record.name} names {chosen.key}: {abridged(newer, 3)} {are} passed over"
            )


def _in_folder(location: Location, grace_seconds: float) -> Version | None:
    """Return the version that a directory or a file of this name is, if others use such names too; None for others."""
    folder, name = location.split()
    named = version_named(name)
    if named is None or not named.layout.needs_shards:
        return None
    path = f"/{name.removesuffix('.index') if named.is_file else name}"
    with suppress(EdlCkptError):
        listed = list_versions(folder, grace_seconds=grace_seconds).versions
        return next((v for v in listed if f"/{v.path}".endswith(path)), None)
    return None


def check_listed(version: Version, changed: str) -> None:
    """Raise LockedError, with these words, when a version is not as it was listed before; its fault if it has one."""
    present = list_versions(version.location).versions
    for listed in present:
        if listed.path == version.path and listed.fault is not None:
            raise listed.fault.error()
    if all(v.path != version.path or v.shards != version.shards for v in present):
        raise LockedError(changed, path=version.path)


def check_one(versions: Sequence[Version], number: int) -> None:
    """Raise UsageError when several versions of a location have a number."""
    named = [version for version in versions if version.version == number]
    paths = [version.path for version in named]
    if len(paths) > 1:
        raise UsageError(
            f"version {number} exists {'twice' if len(paths) == 2 else f'{len(paths)} times'}: {', '.join(paths)}",
            path=named[0].location.url,
            hint=f"name one by its {'UUID' if named[-1].uuid else 'name'}: {named[-1].location}@{named[-1].name}",
        )


def pick(listing: Listing, wanted: int | str, named: str | None = None) -> Version:
    """Return one version of a listing, by number, 'latest', 'verified', 'best', 'best:METRIC', name or tag.

    Of several with a number, `named` is the name of the one that is meant; None where only the number was given. Errors
    as `resolve`. A tag 'verified', which older releases allowed, comes first.
    """
    if isinstance(wanted, int):
        return _numbered(listing, wanted, named)
    if wanted == "latest":
        return _latest(listing)
    if wanted == "best" or wanted.startswith("best:"):
        return best_version(listing, wanted.partition(":")[2] or None)
    if wanted == "verified" and not any("verified" in version.tags for version in listing.versions):
        return _verified(listing)
    return _tagged(listing, wanted)


def _numbered(listing: Listing, number: int, named: str | None) -> Version:
    """Return the version with a number; `named` and the errors as in `pick`."""
    found = [version for version in listing.versions if version.version == number]
    found = [version for version in found if not version.uuid] or found  # a UUID tells the others apart
    if named is not None:
        found = [version for version in found if version.name == named] or found
    check_one(found, number)
    if found:
        return found[0]
    if begun := with_uuid(listing, str(number)):
        return begun
    if number in listing.replacing:
        raise being_replaced(f"{listing.location}@{number}", listing.replacing[number])
    raise _not_found(listing, f"no version {number}", number)


def _latest(listing: Listing) -> Version:
    """Return the newest good version; IncompleteError says why there is none."""
    _check_record(listing)
    if listing.newest is not None:
        return listing.newest
    if damaged := [v for v in listing.versions if v.shown_state == DAMAGED]:
        raise IncompleteError(
            f"every complete version is known to be damaged; the newest is {damaged[-1].key}: {damaged[-1].damage}",
            path=listing.location.url,
            hint=f"to use one all the same, name it: {damaged[-1].ref}",
        )
    if listing.versions:
        has_mixtures = any(version.mixture for version in listing.versions)
        raise IncompleteError(
            "every complete version has shards of two runs" if has_mixtures else "no complete version",
            path=listing.location.url,
            hint=f"try: {command('list', str(listing.location))}",
        )
    raise _not_found(listing, listing.none_here)


def _verified(listing: Listing) -> Version:
    """Return the newest version whose every value was read without an error; NotFoundError says how to get one."""
    found = next((v for v in reversed(listing.versions) if v.is_verified and not v.mixture), None)
    if found is None and listing.versions:
        check = command("verify", str(listing.location), "--newest", "--deep")
        raise NotFoundError(
            "no version is known whose every value was checked",
            path=listing.location.url,
            hint=f"check them from the newest one down: {check}",
        )
    if found is None:
        raise _not_found(listing, listing.none_here)
    return found


def _check_record(listing: Listing) -> None:
    """Raise the error of a record by which its system would load no version, or one that is not whole."""
    if listing.record is None or not listing.is_recorded:
        return
    hint = f"name one, as in {listing.versions[-1].ref}, or see: {command('list', str(listing.location))}"
    if listing.record.fault:
        raise NotFoundError(f"no latest version: {listing.record.fault}", path=listing.location.url, hint=hint)
    decided = listing.decided
    if decided is not None and decided != listing.newest:
        why = decided.damage or decided.mixture or decided.absent or decided.why_unreadable
        raise IncompleteError(
            f"TensorFlow's file checkpoint names {decided.key}, and it is {decided.shown_state}: {why}",
            path=listing.location.url,
            hint=hint,
        )


def being_replaced(ref: str, owner: str) -> LockedError:
    """Return the error of a reader that has waited in vain for the command that is replacing a version."""
    return LockedError(f"{owner} is replacing it", path=ref, hint="try again when it is done")


def best_version(listing: Listing, metric: str | None = None, mode: str | None = None) -> Version:
    """Return the complete version with the best value of a metric; without a name, of the only metric there is.

    `mode` is 'max' or 'min'; None stands for the declared mode, or that of a known name. Raises NotFoundError when no
    complete version has a value, UsageError when the metric or its mode is unclear.
    """
    known = sorted({name for v in listing.versions for name in v.metrics})
    if metric is None:
        if len(known) > 1:
            raise UsageError(
                f"best by which metric? The versions have {', '.join(map(repr, known))}",
                path=listing.location.url,
                hint=f"try: @best:{known[0]}",
            )
        metric = known[0] if known else "any metric"
    best = ranked(listing.versions, metric, listed_mode(listing, metric, mode)) if metric in known else []
    if not best:
        raise NotFoundError(
            f"no complete version has a value of {metric!r}" if known else "no version has any metric",
            path=listing.location.url,
            hint=meant(metric, known, "metrics") if known else "try: edl-ckpt metrics import SOURCE LOCATION",
        )
    return best[0]


def listed_mode(listing: Listing, metric: str, mode: str | None = None) -> str:
    """Return the mode of a metric, as `mode_of` does; when the declared modes cannot be read, raise that error."""
    if mode is None and listing.modes_fault is not None:
        raise listing.modes_fault
    return mode_of(metric, mode, listing.modes)


def common_modes(listings: Iterable[Listing], metric: str | None = None, *, needed: bool = True) -> dict[str, str]:
    """Return the modes that locations declare, perhaps of one metric; UsageError when two declare different ones.

    Modes that are needed and cannot be read are an error: the mode that a name suggests could delete the best version.
    """
    modes: dict[str, str] = {}
    for listing in listings:
        if needed and listing.modes_fault is not None:
            raise listing.modes_fault
        for name, mode in listing.modes.items():
            if metric in {None, name} and modes.setdefault(name, mode) != mode:
                raise UsageError(f"the locations disagree on the mode of {name!r}", hint="use --mode max or --mode min")
    return modes


def narrowed(
    listing: Listing,
    *,
    sort: str | None = None,
    best: str | None = None,
    tags: Iterable[str] = (),
    mode: str | None = None,
) -> Listing:
    """Return a listing with only some of the versions, or in another order.

    `tags` keeps versions with one of the tags. `best` keeps the best of these by a metric. `sort` puts the best by a
    metric first, and versions without a value last. `mode` and errors are as in `best_version`.
    """
    wanted = set(several(tags, "tags"))
    versions = tuple(v for v in listing.versions if not wanted or wanted & set(v.tags))
    chosen = replace(listing, versions=versions)
    if best is not None and versions:
        chosen = replace(chosen, versions=(best_version(chosen, best, mode),))
    if sort is not None:
        known = {name for version in listing.versions for name in version.metrics}
        if sort not in known and (hint := meant(sort, known)):
            raise NotFoundError(f"no version has a value of {sort!r}", path=listing.location.url, hint=hint)
        order = ranked(chosen.versions, sort, listed_mode(listing, sort, mode))
        place = {v.path: i for i, v in enumerate(order)}
        chosen = replace(chosen, versions=tuple(sorted(chosen.versions, key=lambda v: place.get(v.path, len(place)))))
    return chosen


def shared_tags(versions: Iterable[Version]) -> dict[str, list[Version]]:
    """Return the tags that several numbers have, and their versions; a reference cannot use such a tag."""
    having: dict[str, dict[int | str, Version]] = defaultdict(dict)
    for version in versions:
        for tag in version.tags:
            having[tag][version.key] = version
    return {tag: list(found.values()) for tag, found in sorted(having.items()) if len(found) > 1}


def command_to_keep(tag: str, versions: Sequence[Version]) -> str:
    """Return the command that keeps a tag on one of several versions: on the newest complete one if there is one."""
    kept = max(versions, key=lambda v: (v.is_good, v.version))
    return command("tag", "add", kept.ref, tag, *([] if kept.state is State.COMPLETE else ["--force"]))


def _tagged(listing: Listing, tag: str) -> Version:
    """Return the version with a tag, or with this UUID; UsageError when several versions have it."""
    found = [version for version in listing.versions if version.name == tag and not version.is_alone]
    found = found or [version for version in listing.versions if tag in version.tags]
    keys = dict.fromkeys(version.key for version in found)
    if len(keys) > 1:
        raise UsageError(
            f"{len(keys)} versions have the tag {tag!r}: {', '.join(map(str, keys))}",
            path=listing.location.url,
            hint=f"name one by its number, or keep the tag on one: {command_to_keep(tag, found)}",
        )
    if found:
        return found[0] if len(found) == 1 else pick(listing, found[0].version)
    if begun := with_uuid(listing, tag):
        return begun
    raise _unknown_tag(listing, tag)


def _unknown_tag(listing: Listing, tag: str) -> NotFoundError:
    """Return the error of a word that is no tag and no name of a version, with what was perhaps meant."""
    message = f"no version or tag {tag!r}"
    if ours := _OTHER_WORDS.get(tag.lower()):
        return NotFoundError(message, path=listing.location.url, hint=f"did you mean {ours}?")
    tags: set[str] = set()
    metrics: set[str] = set()
    for version in listing.versions:
        tags.update(version.tags)
        metrics.update(f"best:{name}" for name in version.metrics)
    words = closest(tag, {*tags, *metrics, "latest", "verified", "best"})
    if words or tags:
        return NotFoundError(message, path=listing.location.url, hint=meant(tag, words or tags, "tags"))
    return _not_found(listing, message)


def _not_found(listing: Listing, message: str, wanted: int | None = None) -> NotFoundError:
    """Return the error of a reference; its hint names all versions if they are few, else those near the number."""
    keys = [v.key for v in listing.versions]
    numbers = {v.version for v in listing.versions}
    if wanted is not None and len(keys) > 8:
        hint = f"the nearest versions there: {', '.join(map(str, neighbours(wanted, numbers)))}"
    else:
        known = ", ".join(str(key) for key in keys[-8:])
        more = "... " if len(keys) > 8 else ""
        hint = f"versions there: {more}{known}" if known else listing.wrong_place_hint
        if listing.bound:
            return NotFoundError(listing.none_here, path=listing.location.url, hint=listing.way_on)
    return NotFoundError(message, path=listing.location.url, hint=hint)
