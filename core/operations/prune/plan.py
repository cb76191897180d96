"""Plans of a prune: every version of some locations, with its action and the reasons.

`plan_prune` lists locations and reads headers. `choose` and `plan_of` are pure: versions, a policy and a moment in, a
plan out. A version is kept if a guard or any rule (`retention.py`) keeps it. Planning deletes nothing;
`execute.py` looks again, under the locks, and refuses a stale plan. The policy that is stored with a location counts
where no rule is given.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import abridged, command, counted, describe, escaped, meant, neighbours, size
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import check_one, common_modes, list_versions
from edl_ckpt.core.catalog.pointers import pointers_at
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.facts import NO_FACTS, Facts, Foreign, Survey
from edl_ckpt.core.operations.prune.guards import (
    NEWEST,
    NO_EXCEPTIONS,
    Guards,
    Why,
    counted_versions,
    guard_reasons,
    guard_warnings,
    guarded,
    is_good,
)
from edl_ckpt.core.operations.prune.readable import looked_at, prunable
from edl_ckpt.core.operations.prune.retention import Policy, Tagged, by_location, evaluate, fit
from edl_ckpt.core.sources.elasticdl.target import writable_layout
from edl_ckpt.core.state.annotate import write_layout, write_policy
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.metadata import read_layout, read_metadata
from edl_ckpt.core.state.paths import LOCATION_FILE
from edl_ckpt.core.storage import Location, LocationLike

_WAYS: Final = (
    "give a rule: --keep N, --keep-best N --metric NAME, --keep-every STEPS, --keep-within 7d, --keep-tag TAG, "
    "--max-size 10GB, --policy determined"
)


class Action(enum.StrEnum):
    """The action of a plan for a version."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class PruneEntry:
    """One version in a plan.

    `identity` is a digest of the files, sizes, times, tags and metrics that the plan relies on. It is '' for a version
    that the plan keeps and that a job may still be writing.
    """

    ref: str
    location: Location
    version: int
    path: str
    state: str
    action: Action
    reasons: tuple[str, ...]
    size_bytes: int
    modified: float
    identity: str

    def is_about(self, version: Version, facts: Facts) -> bool:
        """Say whether a version is the one of this entry, with all facts that the plan relies on."""
        goes = self.action is Action.DELETE
        size_bytes = facts.size_bytes(version) if goes else version.size_bytes
        identity = identify(version, facts if goes else NO_FACTS)
        now = (version.location.url, version.version, version.shown_state, size_bytes, identity)
        return now == (self.location.url, self.version, self.state, self.size_bytes, self.identity)


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Every version of some locations, by location and number, with its action; and whether to empty their trash."""

    locations: tuple[Location, ...]
    entries: tuple[PruneEntry, ...]
    policy: tuple[str, ...]
    guards: Guards
    warnings: tuple[str, ...] = ()
    purge_older_than_seconds: float | None = None
    """Also empty the trash of versions that have been there for longer; None leaves the trash alone."""
    unread: bool = False
    """True when something that is there could not be read: a version, metadata, a seal. None of it is deleted."""
    foreign: Mapping[str, Foreign] = field(default_factory=dict)
    """What is foreign in the versions to delete, by their paths."""
    facts: Facts = field(default=NO_FACTS, repr=False, compare=False)
    """What is known of the versions beyond their listing."""
    unknown: tuple[str, ...] = ()
    """The warnings about metrics and tags of rules that no version of any location has: those rules keep nothing."""

    @property
    def deletions(self) -> tuple[PruneEntry, ...]:
        """Return the versions to delete."""
        return tuple(e for e in self.entries if e.action is Action.DELETE)

    @property
    def relied_on(self) -> tuple[PruneEntry, ...]:
        """Return the good versions that stay where others are deleted, the newest first.

        Those that only a tag or a pointer keeps are no reason to delete another one.
        """
        places = {e.location for e in self.deletions}
        stay = [e for e in self.entries if e.action is Action.KEEP and e.state == State.COMPLETE]
        counted = [e for e in stay if e.location in places and not all(map(_is_only_named, e.reasons))]
        return tuple(sorted(counted, key=lambda e: e.version, reverse=True))

    @property
    def deleted_bytes(self) -> int:
        """Return the bytes of the versions to delete."""
        return sum(e.size_bytes for e in self.deletions)

    @property
    def only_purges(self) -> bool:
        """Return True when the plan empties the trash and considers no version."""
        return not (self.policy or self.entries or self.guards.ask_for_deletion)

    @property
    def emptied(self) -> tuple[Location, ...]:
        """Return the locations that have a complete version now, and after the plan none that can be read."""
        complete = [e for e in self.entries if e.state == State.COMPLETE and e.identity]
        kept = {e.location for e in complete if e.action is Action.KEEP}
        return tuple(dict.fromkeys(e.location for e in complete if e.location not in kept))

    def say_first(self) -> PrunePlan:
        """Return the plan with a first warning for each location where no complete version would remain."""
        first = (f"{place}: no complete version would remain" for place in self.emptied)
        return replace(self, warnings=(*first, *self.warnings))

    def check_amount(self, max_delete: int | None) -> None:
        """Raise RefusedError when the plan deletes more than `max_delete` versions; None is no limit."""
        if max_delete is not None and len(self.deletions) > max_delete:
            raise RefusedError(
                f"the plan deletes {counted(len(self.deletions), 'version')}, more than --max-delete {max_delete}",
                hint="nothing was deleted; try: --dry-run to see the plan",
            )

    def __repr__(self) -> str:
        title, *facts = self._facts()
        warnings = counted(len(self.warnings), "warning") if self.warnings else ""
        return describe("PrunePlan", escaped(title), *facts, warnings)

    def _facts(self) -> tuple[str, str, str]:
        deleted = f"delete {len(self.deletions)} of {counted(len(self.entries), 'version')}"
        return abridged((location.url for location in self.locations), 2), deleted, size(self.deleted_bytes)

    def _repr_html_(self) -> str:
        going_first = sorted(self.entries, key=lambda entry: entry.action is Action.KEEP)
        one = len(self.locations) == 1
        names = ((str(e.version) if one else e.ref, e) for e in going_first)
        rows = ((name, e.action.value, Bytes(e.size_bytes), e.state, "; ".join(e.reasons)) for name, e in names)
        title, *facts = self._facts()
        warnings = ((warning,) for warning in self.warnings)
        tables = (
            table(("version", "action", "size", "state", "why"), rows, len(self.entries), "version"),
            table(("warning",), warnings, len(self.warnings), "warning"),
        )
        return card("PrunePlan", title, facts, tables)


def plan_prune(
    locations: Sequence[LocationLike],
    policy: Policy,
    *,
    guards: Guards = NO_EXCEPTIONS,
    purge_older_than_seconds: float | None = None,
    now: float | None = None,
    known: Mapping[Location, Known] | None = None,
) -> PrunePlan:
    """List locations, settle the policy, look for unreadable versions, and return the plan. Nothing is deleted.

    When nothing asks for a deletion (no rule, no guard's exception, no purge), the policy stored with the locations
    counts (`edl-ckpt policy set`). `now` is in seconds since the epoch, the current time when None. `known` keeps what
    is read of each location, so that an execution right after this reads only what has changed. Raises UsageError
    when there is no policy, when the stored ones differ, or when the locations disagree on a metric's mode. Raises
    RefusedError for a plan that deletes versions by a rule whose metric or tag no version has.
    """
    places = tuple(dict.fromkeys(map(Location.of, several(locations, "locations"))))
    moment = time.time() if now is None else now
    if guards.everything and policy.is_empty and not guards.delete:
        raise UsageError("--even-newest needs a rule or --delete VERSION", hint=_WAYS)
    if policy.is_empty and not guards.ask_for_deletion:
        if purge_older_than_seconds is not None:
            return PrunePlan(places, (), (), guards, purge_older_than_seconds=purge_older_than_seconds)
        policy = _common_policy(places)
    known = known or {place: Known() for place in places}
    listings = [
        list_versions(place, grace_seconds=guards.grace_seconds, now=moment, known=known[place]) for place in places
    ]
    try:
        plan = plan_listed(listings, policy, guards=guards, now=moment)
        unknown = plan.unknown if plan.deletions else ()
    except UsageError:  # the mode of a metric is not known, perhaps because no version has it
        versions = _versions_of(listings)
        unknown = tuple(unknown_names(versions, policy)) if versions else ()
        if not unknown or guards.allow_empty_rule:
            raise
    if unknown and not guards.allow_empty_rule:
        raise RefusedError("; ".join(unknown), hint="nothing was deleted; --allow-empty-rule continues")
    return replace(plan, locations=places, purge_older_than_seconds=purge_older_than_seconds)


def plan_listed(
    listings: Sequence[Listing], policy: Policy, *, guards: Guards = NO_EXCEPTIONS, now: float | None = None
) -> PrunePlan:
    """Return the plan for locations that are listed already; looks for unreadable versions, and errors, as above."""
    for listing in listings:
        if guards.delete and not listing.versions:
            raise NotFoundError(listing.none_here, path=listing.location.url, hint=listing.way_on or None)
        for number in guards.delete:
            check_one([version for version in listing.versions if not version.uuid], number)
    everything = _versions_of(listings)
    errors: list[EdlCkptError] = []
    versions, unreadable = looked_at(everything, errors)
    modes = common_modes(listings, needed=policy.needs_modes)
    try:
        policy = policy.settle(modes)
    except UsageError as error:  # of a metric of unknown mode: perhaps another one was meant
        error.hint = "; ".join(unknown_names(versions, policy)) or error.hint
        raise
    survey = Survey(Facts(unreadable).with_pointers(map(pointers_at, listings)))
    choice = choose(versions, policy, guards, survey.facts, now)
    while survey.look(everything, choice.doomed, choice.considered):
        choice = choose(versions, policy, guards, survey.facts, now)
    plan = plan_of(choice, policy, guards, survey.facts)
    return replace(
        plan,
        locations=tuple(listing.location for listing in listings),
        warnings=(*plan.warnings, *_of_determined(listings), *_named(listings), *_interrupted(listings)),
        unread=bool(errors) or any(listing.unread for listing in listings),
    )


def _versions_of(listings: Iterable[Listing]) -> list[Version]:
    versions: list[Version] = []
    for listing in listings:
        versions += listing.versions
    return versions


def _of_determined(listings: Iterable[Listing]) -> Iterator[str]:
    """Yield a warning for each location with versions of Determined, which no rule takes."""
    for listing in listings:
        count = sum(1 for version in listing.versions if version.uuid)
        if count:
            versions = f"{counted(count, 'version')} named by a UUID"
            yield f"{listing.location}: {versions}: left to Determined, which deletes its own"


def _named(listings: Iterable[Listing]) -> Iterator[str]:
    """Yield a warning for each location with versions that only their names tell from others: no rule takes them."""
    for listing in listings:
        names = [escaped(v.name) for v in listing.versions if v.is_named and not v.uuid]
        if names:
            yield f"{listing.location}: no rule takes versions without a number of their own: {abridged(names, 4)}"


def _interrupted(listings: Iterable[Listing]) -> Iterator[str]:
    """Yield a warning for each interrupted move: its files take the room of a version, and no rule takes them."""
    for listing in listings:
        yield from (move.notice(listing.location) for move in listing.interrupted_moves)


def _is_only_named(reason: str) -> bool:
    return reason.startswith(("tag ", "named by "))


def _common_policy(locations: Sequence[Location]) -> Policy:
    """Return the one policy that is stored with all the locations."""
    policies = {read_policy(location) for location in locations}
    if len(policies) > 1:
        raise UsageError("the locations have different stored policies", hint="prune each location alone")
    policy = policies.pop() if policies else Policy()
    if policy.is_empty:
        raise UsageError(
            "no retention rule was given, and none is stored",
            hint=f"{_WAYS}; or store one: edl-ckpt policy set [LOCATION] --keep N",
        )
    return policy


def read_policy(location: LocationLike) -> Policy:
    """Return the policy that is stored with a location, an empty one when there is none; the error of reading it."""
    metadata = read_metadata(open_location(location), [LOCATION_FILE])  # of versions there may be thousands
    if metadata.fault is not None:
        raise metadata.fault
    document = metadata.policy
    return Policy() if document is None else Policy.from_json(document)


def store_policy(
    location: LocationLike,
    policy: Policy,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Store a policy with a location; it replaces an older one, and an empty policy removes it. Takes the lock itself.

    Raises NotFoundError when the location does not exist, LockedError when the lock is not free in time.
    """
    where = Location.of(location)
    list_versions(where)  # raises when the location does not exist; object storage would make it
    with location_lock(where, "policy", wait_seconds=wait_seconds, reporter=reporter) as locked:
        write_policy(locked.store, None if policy.is_empty else policy.to_json())


def store_layout(
    location: LocationLike,
    layout: LayoutName | None,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Store the layout of the first versions at a location; None removes the choice. Takes the lock; as `store_policy`.

    Versions that are there go before it: new ones have their layout. Raises UsageError for another layout.
    """
    if layout is not None:
        writable_layout(layout)
    where = Location.of(location)
    list_versions(where)  # raises when the location does not exist
    with location_lock(where, "policy", create=True, wait_seconds=wait_seconds, reporter=reporter) as locked:
        write_layout(locked.store, layout)


def read_stored_layout(location: LocationLike) -> str | None:
    """Return the layout that is stored with a location, None without one."""
    return read_layout(open_location(location))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy keeps of some versions, and why the others go: reasons by path, none for one that nothing keeps."""

    versions: Sequence[Version]
    kept: Mapping[str, Sequence[str]]
    going: Mapping[str, str]
    unknown: tuple[str, ...]
    warnings: Sequence[str]

    @property
    def doomed(self) -> list[str]:
        """Return the paths of the versions to delete."""
        return [version.path for version in self.versions if not self.kept[version.path]]

    @property
    def considered(self) -> list[str]:
        """Return the paths of the versions that stay and of which a reason says how they are deleted."""
        return [v.path for v in self.versions if self.kept[v.path] and v.shown_state == State.INCOMPLETE]


def choose(versions: Sequence[Version], policy: Policy, guards: Guards, facts: Facts, now: float | None) -> Choice:
    """Return what is kept and what goes of listed versions, under a policy whose modes are settled.

    `facts` is what is known beyond the listing; `now` as in `plan_prune`. Reads at most notes on shards.
    Raises RefusedError when a version named in `guards.delete` is guarded, NotFoundError when it does not
    exist, UsageError when there is neither a rule nor an exception that asks for a deletion.
    """
    if policy.is_empty and not guards.ask_for_deletion:
        raise UsageError("no retention rule was given")
    versions = prunable(versions)
    trials = list(by_location(versions))
    _check_named_for_deletion(versions, trials, guards.delete)
    moment = time.time() if now is None else now
    reasons: dict[str, Why] = {}
    unknown = tuple(unknown_names(versions, policy)) if versions else ()
    warnings = [*unknown, *_unknown_tags(versions, guards.drop_tags)]
    for trial in trials:
        reasons |= guard_reasons(trial, guards, facts.unreadable, now=moment)
        for version in trial:
            if why := facts.why(version, guards):
                reasons[version.path] = {**reasons.get(version.path, {}), **why}
        warnings += guard_warnings(trial, guards, facts.unreadable)
    kept = _reasons_to_keep(versions, policy, guards, facts.unreadable, reasons)
    going = {version.path: _reason_to_delete(version, guards, facts) for version in versions}
    if policy.max_size_bytes is not None:
        warnings += _fit_budget(policy.max_size_bytes, versions, guards, kept, going)
    return Choice(versions, kept, going, unknown, warnings)


def _check_named_for_deletion(
    versions: Sequence[Version], trials: Iterable[Sequence[Version]], numbers: Iterable[int]
) -> None:
    """Raise NotFoundError for a number that no version has, UsageError for one that several of a location have."""
    present = {version.version for version in versions}
    for number in numbers:
        if number not in present:
            near = ", ".join(map(str, neighbours(number, present)))
            hint = f"the nearest versions there: {near}" if near else None
            raise NotFoundError(f"no version {number} to delete", hint=hint)
    for trial in trials:
        for number in numbers:
            check_one(trial, number)


def plan_of(choice: Choice, policy: Policy, guards: Guards, facts: Facts) -> PrunePlan:
    """Return the plan for a choice, with what is known of the versions that go, and all reasons of each version."""
    entries: list[PruneEntry] = []
    for trial in by_location(choice.versions):
        for version in trial:
            kept, going = choice.kept[version.path], choice.going[version.path]
            entries.append(_entry(version, kept, going, facts, whole=is_good(version, facts.unreadable)))
    locations = tuple(dict.fromkeys(version.location for version in choice.versions))
    warnings = [*choice.warnings]
    if guards.ignore_pointers:
        warnings += facts.dangling(entry.path for entry in entries if entry.action is Action.DELETE)
    gone = {entry.path for entry in entries if entry.action is Action.DELETE}
    return PrunePlan(
        locations,
        tuple(entries),
        policy.describe(),
        guards,
        tuple(warnings),
        foreign={path: foreign for path, foreign in facts.foreign.items() if path in gone},
        facts=facts,
        unknown=choice.unknown,
    ).say_first()


def _reasons_to_keep(
    versions: Sequence[Version],
    policy: Policy,
    guards: Guards,
    unreadable: Mapping[str, str],
    reasons: Mapping[str, Why],
) -> dict[str, list[str]]:
    """Return, by path, the reasons of guards and of rules; RefusedError for a guarded version named for deletion."""
    known = [v for trial in by_location(versions) for v in counted_versions(trial)]
    rules = evaluate(policy, (v for v in known if v.path not in unreadable))  # it knows which are damaged
    kept: dict[str, list[str]] = {}
    for version in versions:
        why, named = reasons.get(version.path, {}), version.version in guards.delete
        if named and why:
            raise guarded(version.ref, why)
        own = [] if named else [*rules.get(version.path, ()), *_not_asked_for(version, policy, guards, why)]
        kept[version.path] = [*why, *own]
    return kept


def unknown_names(versions: Sequence[Version], policy: Policy) -> Iterator[str]:
    """Yield a warning for each metric and tag of a policy that no version has: its rule keeps nothing.

    A rule that keeps the best 0 versions needs no metric.
    """
    known = {name for version in versions for name in version.metrics}
    for metric in dict.fromkeys(rule.metric for rule in policy.ranking if rule.count):
        if metric not in known:
            yield f"no version has a value of {metric!r}, so its rule keeps none; {_there(metric, known, 'metrics')}"
    yield from _unknown_tags(versions, (tag for rule in policy.rules if isinstance(rule, Tagged) for tag in rule.tags))


def _unknown_tags(versions: Sequence[Version], tags: Iterable[str]) -> Iterator[str]:
    known = {tag for version in versions for tag in version.tags}
    for tag in dict.fromkeys(tags):
        if tag not in known:
            yield f"no version has the tag {tag!r}; {_there(tag, known, 'tags')}"


def _there(name: str, known: Collection[str], nouns: str) -> str:
    """Return the names that there are, and those that were perhaps meant."""
    there = f"{nouns} there: {abridged(map(escaped, sorted(known)), 8)}" if known else f"no version has {nouns}"
    close = meant(name, known)
    return f"{close} ({there})" if close else there


def _reason_to_delete(version: Version, guards: Guards, facts: Facts) -> str:
    """Return the reason to delete a version that nothing keeps."""
    if version.version in guards.delete:
        foreign = facts.foreign.get(version.path)
        return "named for deletion" + (f", with foreign content: {foreign}" if foreign else "")
    if version.state is State.INCOMPLETE:
        return "orphan: incomplete, and a newer version is complete"
    return "no rule keeps it"


def _not_asked_for(version: Version, policy: Policy, guards: Guards, why: Why) -> list[str]:
    """Return why a version stays although no rule keeps it: nothing asked for its deletion.

    An incomplete one that no process is writing says how it is deleted; `why` has the guards in the way.
    """
    if version.state is not State.INCOMPLETE:
        return ["no rule was given"] if policy.is_empty and version.state is State.COMPLETE else []
    tags = [option for option in why.values() if option[:1] == ("--drop-tag",)]
    if not why:
        return [] if guards.incomplete else ["incomplete and old: --incomplete deletes it"]
    if any(option not in {*tags, NEWEST} for option in why.values()):
        return []
    words = [word for option in [("--delete", str(version.version)), *tags] for word in option]
    return [f"incomplete and old: `{command('prune', version.location.url, *words)}` deletes it"]


def _fit_budget(
    limit: int,
    versions: Sequence[Version],
    guards: Guards,
    kept: dict[str, list[str]],
    going: dict[str, str],
) -> list[str]:
    """Keep, of the versions that nothing else keeps, those that fit; return a warning when the budget is too small."""
    candidates: list[Version] = []
    kept_bytes = 0
    for version in versions:
        if kept[version.path]:
            kept_bytes += version.size_bytes
        elif version.state is State.COMPLETE and version.version not in guards.delete:
            candidates.append(version)
    good = [version for version in candidates if version.is_good]
    damaged = [version for version in candidates if not version.is_good]
    over = {version.path for version in fit(limit, kept_bytes, good)}
    used = kept_bytes + sum(version.size_bytes for version in good if version.path not in over)
    over |= {version.path for version in fit(limit, used, damaged)}  # these take what room the good ones leave
    for version in candidates:
        if version.path in over:
            going[version.path] = f"no rule keeps it, and the size budget of {size(limit)} is full"
        else:
            kept[version.path].append("fits into the size budget")
    if kept_bytes > limit:
        return [f"rules and guards keep {size(kept_bytes)}, more than the budget of {size(limit)}"]
    return []


def _entry(version: Version, kept: Sequence[str], going: str, facts: Facts, *, whole: bool) -> PruneEntry:
    identity = ""
    if not kept:
        identity = identify(version, facts)
    elif whole:
        identity = identify(version, NO_FACTS)
    return PruneEntry(
        ref=version.ref,
        location=version.location,
        version=version.version,
        path=version.path,
        state=version.shown_state,
        action=Action.KEEP if kept else Action.DELETE,
        reasons=tuple(dict.fromkeys(kept)) or (going,),
        size_bytes=version.size_bytes if kept else facts.size_bytes(version),
        modified=version.modified,
        identity=identity,
    )


def identify(version: Version, facts: Facts) -> str:
    """Return a digest of what a plan relies on: state, files, sizes, times, tags and metrics of a version.

    Where `facts` know what is in its directory, all of it counts.
    """
    metadata = (version.tags, sorted(version.metrics.items()))
    parts = (version.version, version.state.value, version.files_digest, version.extra, metadata, facts.digest(version))
    return hashlib.blake2b(name_bytes(repr(parts)), digest_size=16).hexdigest()
