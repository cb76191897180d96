"""Deleting the versions that no rule keeps: planned, explained, and guarded.

`plan_prune` is pure: versions, a policy and a moment in, every version with its action and its reasons out. Guards
stand above every rule: never the newest complete version, nor what is newer than it by number or by time (it may be
being written), nor what has a tag, nor what is still changing. "Complete" is not enough for the first: savers write in
place, so a listing can show all files of a version that is half written. `find_unreadable` opens the newest ones, and
one that cannot be read does not count. `execute_prune` looks again, under the lock, and refuses a plan that is stale.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.checkpoint.catalog import GRACE_SECONDS, list_versions
from edl_ckpt.core.errors import AuthError, EdlCkptError, NotFoundError, RefusedError, UnavailableError, UsageError
from edl_ckpt.core.format.model import State, Version
from edl_ckpt.core.operations.prune.retention import Policy, by_location, evaluate, fit
from edl_ckpt.core.state.metadata import read_metadata
from edl_ckpt.core.storage import Location, LocationLike, open_store
from edl_ckpt.core.words import size

_ANEW: Final = "a job that counts anew?"


class Action(enum.StrEnum):
    """What a plan does with a version."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class PruneEntry:
    """One version in a plan.

    `identity` names its files, sizes, times, tags and metrics as the plan saw them; '' for a version that the plan does
    not rely on, since it may still be being written.
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


@dataclass(frozen=True, slots=True)
class Guards:
    """What a prune was allowed to do beyond its rules; all of it must be asked for."""

    incomplete: bool = False
    """Delete incomplete versions older than the newest complete one."""
    everything: bool = False
    """Delete even the newest complete version when no rule keeps it."""
    delete: tuple[int, ...] = ()
    """Versions named for deletion, whatever rules say; mixed and invalid ones go only so."""
    drop_tags: tuple[str, ...] = ()
    """Tags that do not protect."""
    grace_seconds: float = GRACE_SECONDS

    @property
    def ask_for_deletion(self) -> bool:
        """Return True when something is to be deleted though there is no rule."""
        return bool(self.incomplete or self.everything or self.delete)


NO_EXCEPTIONS: Final = Guards()


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Every version of some locations, by location and number, with what is to become of it."""

    entries: tuple[PruneEntry, ...]
    policy: tuple[str, ...]
    guards: Guards
    warnings: tuple[str, ...] = ()

    @property
    def locations(self) -> tuple[Location, ...]:
        """Return the locations of all entries, in their order."""
        return tuple(dict.fromkeys(e.location for e in self.entries))

    @property
    def deletions(self) -> tuple[PruneEntry, ...]:
        """Return what is to be deleted."""
        return tuple(e for e in self.entries if e.action is Action.DELETE)

    @property
    def deleted_bytes(self) -> int:
        """Return the bytes of what is to be deleted."""
        return sum(e.size_bytes for e in self.deletions)


def find_unreadable(versions: Iterable[Version]) -> dict[str, str]:
    """Return, by path, why complete versions cannot be read: from each location's newest down to the first that can.

    Reads headers only: a shard that is still being written is shorter than it says, grows while it is looked at, or
    ends before its tables are described.
    """
    faults: dict[str, str] = {}
    for trial in by_location(v for v in versions if v.state is State.COMPLETE):
        for version in reversed(trial):
            fault = _fault(version)
            if fault is None:
                break
            faults[version.path] = fault
    return faults


def _fault(version: Version) -> str | None:
    """Return why ElasticDL could not restore a version, as far as headers tell; None when nothing speaks against it."""
    from edl_ckpt.core.checkpoint.reader import open_checkpoint

    try:
        with open_checkpoint(version) as checkpoint:
            for shard in checkpoint.shards:
                if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
                    return f"{shard.file.path}: still being written"
                absent = checkpoint.infos.keys() - {info.name for info in shard.infos}
                if absent:
                    return f"{shard.file.path}: does not describe table {min(absent)!r}, as other shards do"
    except (AuthError, UnavailableError):
        raise  # says nothing of the version
    except EdlCkptError as error:
        return str(error)
    return None


def make_plan(
    locations: Sequence[LocationLike],
    policy: Policy,
    now: float,
    *,
    guards: Guards = NO_EXCEPTIONS,
) -> PrunePlan:
    """List locations, settle the policy, look for unreadable versions, and plan.

    An empty policy stands for the one stored with the locations (`edl-ckpt policy set`), when nothing else asks for
    deletion. Raises UsageError when there is none, when theirs differ, or when they disagree on a metric's mode.
    """
    places = list(dict.fromkeys(map(Location.of, locations)))
    listings = [list_versions(place, grace_seconds=guards.grace_seconds, now=now) for place in places]
    if policy.is_empty and not guards.ask_for_deletion:
        policy = _stored_policy(places)
    modes: dict[str, str] = {}
    for listing in listings:
        for metric, mode in listing.modes.items():
            if modes.setdefault(metric, mode) != mode:
                raise UsageError(
                    f"the locations disagree on the mode of {metric!r}", hint="say --mode max or --mode min"
                )
    versions = [v for listing in listings for v in listing.versions]
    unreadable = {} if guards.everything else find_unreadable(versions)
    return plan_prune(versions, policy.settle(modes), now, guards=guards, unreadable=unreadable)


def stored_policy(location: LocationLike) -> Policy:
    """Return the policy that is kept with a location, an empty one when there is none."""
    document = read_metadata(open_store(location)).policy
    return Policy() if document is None else Policy.from_json(document)


def _stored_policy(locations: Sequence[Location]) -> Policy:
    policies = {stored_policy(location) for location in locations}
    if len(policies) > 1:
        raise UsageError("the locations have different policies of their own", hint="prune them one by one")
    policy = policies.pop() if policies else Policy()
    if policy.is_empty:
        raise UsageError(
            "no rule says what to keep",
            hint="give one: --keep N, --keep-best N --metric NAME, --keep-every STEPS, --keep-within 7d, --keep-tag"
            " TAG, --max-size 10GB, --policy determined; or set one once: edl-ckpt policy set [LOCATION] --keep N",
        )
    return policy


def plan_prune(
    versions: Sequence[Version],
    policy: Policy,
    now: float,
    *,
    guards: Guards = NO_EXCEPTIONS,
    unreadable: Mapping[str, str] | None = None,
) -> PrunePlan:
    """Return what becomes of each version under a policy whose modes are settled; `now` in seconds since the epoch.

    `unreadable` is what `find_unreadable` found. A version is kept if a guard or any rule keeps it, and all reasons
    are given. Raises RefusedError when a version named in `guards.delete` is guarded, NotFoundError when it is not
    there, UsageError when there is neither a rule nor anything else that asks for deletion.
    """
    if policy.is_empty and not guards.ask_for_deletion:
        raise UsageError("no rule says what to keep")
    absent = [n for n in guards.delete if all(v.version != n for v in versions)]
    if absent:
        raise NotFoundError(f"no version {absent[0]} to delete")
    kept: dict[str, list[str]] = {}
    warnings: list[str] = []
    for trial in by_location(versions):
        kept |= guard(trial, now, guards, unreadable or {})
        warnings += _oddities(trial, kept, unreadable or {})
    rules = evaluate(policy, (v for v in versions if v.path not in (unreadable or {})))
    idle = policy.is_empty and not guards.everything
    for version in versions:
        named = version.version in guards.delete
        if named and kept.get(version.path):
            raise RefusedError(f"would not delete it: {kept[version.path][0]}", path=version.ref)
        own = [] if named else [*rules.get(version.path, ()), *_not_asked_for(version, guards, idle=idle)]
        kept.setdefault(version.path, []).extend(own)
    going = {v.path: _why_going(v, guards) for v in versions}
    if policy.max_size_bytes is not None:
        warnings += _fit_budget(policy.max_size_bytes, versions, guards, kept, going)
    entries = tuple(
        _entry(v, kept[v.path], going[v.path], whole=v.state is State.COMPLETE and v.path not in (unreadable or {}))
        for trial in by_location(versions)
        for v in trial
    )
    return PrunePlan(entries, policy.describe(), guards, tuple(warnings))


def _why_going(version: Version, guards: Guards) -> str:
    """Return why a version goes, if nothing keeps it."""
    if version.version in guards.delete:
        return "named for deletion"
    if version.state is State.INCOMPLETE:
        return "orphan: incomplete, and a newer version is complete"
    return "no rule keeps it"


def guard(trial: Sequence[Version], now: float, guards: Guards, unreadable: Mapping[str, str]) -> dict[str, list[str]]:
    """Return, by path, why versions of one location must not be deleted whatever the rules say."""
    whole = [v for v in trial if v.state is State.COMPLETE and v.path not in unreadable]
    newest = whole[-1] if whole else None
    fresh_after = now - guards.grace_seconds
    reasons: dict[str, list[str]] = {}
    for version in trial:
        why: list[str] = []
        if not guards.everything:
            why += _against_the_newest(version, newest, guards.grace_seconds, unreadable)
        if version.state is State.WRITING or (version.state is State.INCOMPLETE and version.modified > fresh_after):
            why.append("still being written")
        why += [f"tag {tag}" for tag in version.tags if tag not in guards.drop_tags]
        if version.metadata_fault:
            why.append("its tags cannot be read")
        if version.state in {State.MIXED, State.INVALID} and version.version not in guards.delete:
            why.append(f"{version.state}: deleted only when named (--delete {version.version})")
        if why:
            reasons[version.path] = why
    return reasons


def _against_the_newest(
    version: Version, newest: Version | None, grace_seconds: float, unreadable: Mapping[str, str]
) -> list[str]:
    if newest is None:
        return ["no complete version could take its place"]
    if version.path == newest.path:
        return ["newest complete version"]
    if version.path in unreadable:
        return [f"newer than the newest version that can be read: {unreadable[version.path]}"]
    if version.version >= newest.version:
        return ["newer than the newest complete version"]
    anew_after = newest.modified + max(grace_seconds, GRACE_SECONDS)  # less is only the order in which a copy was made
    if version.state is State.COMPLETE and version.modified > anew_after:
        return [f"written after version {newest.version}: {_ANEW}"]
    return []


def _oddities(trial: Sequence[Version], kept: Mapping[str, Sequence[str]], unreadable: Mapping[str, str]) -> list[str]:
    """Return what people should look at in a location before its versions are deleted."""
    location = trial[0].location
    torn = [v for v in trial if v.path in unreadable]
    told = []
    if torn:
        others = f", like {len(torn) - 1} before it," if len(torn) > 1 else ""
        told.append(f"{torn[-1].ref}: complete by its names{others} but not readable: {unreadable[torn[-1].path]}")
    anew = [str(v.version) for v in trial if any(why.endswith(_ANEW) for why in kept.get(v.path, ()))]
    if anew:
        told.append(
            f"{location}: written long after higher numbers: version {', '.join(anew)}. A restarted job counts anew,"
            " but ElasticDL restores the highest number"
        )
    return told


def _not_asked_for(version: Version, guards: Guards, *, idle: bool) -> list[str]:
    """Return why a version that no rule keeps stays all the same: nothing asked for its deletion."""
    if version.state is State.INCOMPLETE and not guards.incomplete:
        return ["incomplete and old: deleted with --incomplete"]
    return ["no rule was given"] if idle and version.state is State.COMPLETE else []


def _fit_budget(
    limit: int,
    versions: Sequence[Version],
    guards: Guards,
    kept: dict[str, list[str]],
    going: dict[str, str],
) -> list[str]:
    """Keep, of what nothing else keeps, what fits into the budget; return a warning when that is not enough."""
    open_to = [v for v in versions if not kept[v.path] and v.version not in guards.delete and v.state is State.COMPLETE]
    kept_bytes = sum(v.size_bytes for v in versions if kept[v.path])
    going_now = {v.path for v in fit(limit, kept_bytes, open_to)}
    for version in open_to:
        if version.path in going_now:
            going[version.path] = f"no rule keeps it, and more than {size(limit)} are in use"
        else:
            kept[version.path].append("fits into the size budget")
    if kept_bytes > limit:
        return [f"rules and guards keep {size(kept_bytes)}, more than the budget of {size(limit)}"]
    return []


def _entry(version: Version, kept: Sequence[str], going: str, *, whole: bool) -> PruneEntry:
    return PruneEntry(
        ref=version.ref,
        location=version.location,
        version=version.version,
        path=version.path,
        state=version.state.value,
        action=Action.KEEP if kept else Action.DELETE,
        reasons=tuple(dict.fromkeys(kept)) or (going,),
        size_bytes=version.size_bytes,
        modified=version.modified,
        identity=identify(version) if whole or not kept else "",
    )


def identify(version: Version) -> str:
    """Return a digest of what a plan relies on: the version's state, files, sizes, times, tags and metrics."""
    files = [(os.path.basename(s.path), s.size_bytes, s.modified) for s in version.shards]
    told = (version.version, version.state.value, files, version.extra, version.tags, sorted(version.metrics.items()))
    return hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
