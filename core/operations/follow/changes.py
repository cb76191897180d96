"""What happened at a location between two looks at it, as a value: no file is opened here.

A look makes a `Moment`: the versions as they were listed, and what their headers say. `changes` compares two moments
and returns the events between them. A version is complete when its listing says so and its headers can be read, because
savers write in place.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edl_ckpt.core.base.words import counted
from edl_ckpt.core.model.versions import Listing, ShardFile, State, Version


class EventKind(enum.StrEnum):
    """What may happen to a version."""

    NEW_VERSION = "new-version"
    """Its directory is there."""
    SHARD_ARRIVED = "shard-arrived"
    """A shard has its name. Savers that write in place may still be writing it."""
    COMPLETE = "complete"
    """All shards are there, and all headers can be read."""
    STALLED = "stalled"
    """It is not complete, and nothing of it has changed for a time."""
    CORRUPT = "corrupt"
    """It has all its shards, and stays unreadable although nothing changes any more."""
    SEALED = "sealed"
    """A seal was recorded that matches it."""
    DELETED = "deleted"
    """It is gone."""


class Health(enum.Enum):
    """What the headers of a version say."""

    UNKNOWN = enum.auto()
    """They were not read: its listing says that it is not complete."""
    READABLE = enum.auto()
    DAMAGED = enum.auto()
    """They cannot be what they claim: a saver is still at work, or the version is corrupt."""
    UNREAD = enum.auto()
    """They cannot be read now, which says nothing of what they are."""


class HealthCheck(NamedTuple):
    """The result of reading the headers of a version, and why they cannot be used; '' when they can."""

    health: Health
    why: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """After how many seconds without a change a version counts as stalled (None: never), and as corrupt."""

    stall_seconds: float | None = 600.0
    corrupt_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """One version at one moment; `changed` is when it last changed, on the clock of `Moment.tick`."""

    version: Version
    check: HealthCheck
    changed: float
    settled: tuple[ShardFile, ...] = ()
    """Its shards when it was last complete and readable; () before that."""

    @property
    def is_complete(self) -> bool:
        """Return True for a version that a reader can rely on."""
        return self.version.state is State.COMPLETE and self.check.health is Health.READABLE


@dataclass(frozen=True, slots=True)
class Moment:
    """A location as one look found it, by the paths of its versions.

    `at` is in seconds since the epoch. `tick` is from a clock that never jumps.
    """

    at: float
    tick: float
    exists: bool = False
    seen: Mapping[str, SeenVersion] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something that happened to a version, noticed at `at` (seconds since the epoch)."""

    kind: EventKind
    version: Version
    at: float
    shard: ShardFile | None = None
    """The shard that arrived."""
    why: str = ""
    """Why the version is corrupt or stalled."""
    replaced: bool = False
    """True when the version was complete before: a job wrote it again."""

    @property
    def ref(self) -> str:
        """Return the reference of the version."""
        return self.version.ref


def to_check(before: Moment, listing: Listing) -> list[Version]:
    """Return the versions that are complete by this listing, but for those whose headers could be read as they are."""
    wanted = []
    for version in listing.versions:
        seen = before.seen.get(version.path)
        known = seen is not None and _is_same(seen, version) and seen.check.health is Health.READABLE
        if version.state is State.COMPLETE and not known and not version.replaced_by:
            wanted.append(version)
    return wanted


def moment_after(
    before: Moment, listing: Listing | None, checks: Mapping[str, HealthCheck], *, at: float, tick: float
) -> Moment:
    """Return the moment of a listing; `checks` has the headers of the versions that `to_check` asks for, by path.

    A version that cannot be listed now, or that another command is replacing, stays as it was.
    """
    if listing is None:
        return Moment(at, tick)
    seen: dict[str, SeenVersion] = {
        path: old for path, old in before.seen.items() if old.version.version in listing.replacing
    }
    for version in listing.versions:
        old = before.seen.get(version.path)
        if old is not None and (version.state is State.UNREADABLE or version.replaced_by):
            seen[version.path] = old
        else:
            seen[version.path] = _seen(version, old, checks.get(version.path), tick)
    return Moment(at, tick, exists=True, seen=seen)


def _seen(version: Version, old: SeenVersion | None, check: HealthCheck | None, tick: float) -> SeenVersion:
    same = old if old is not None and _is_same(old, version) else None
    if check is None:
        check = same.check if same and version.state is State.COMPLETE else HealthCheck(Health.UNKNOWN)
    seen = SeenVersion(version, check, same.changed if same else tick, old.settled if old else ())
    return replace(seen, settled=version.shards) if seen.is_complete else seen


def _is_same(seen: SeenVersion, version: Version) -> bool:
    """Say whether nothing of a version's files has changed."""
    return seen.version.shards == version.shards and seen.version.extra == version.extra


def changes(before: Moment, after: Moment, limits: Limits) -> list[WatchEvent]:
    """Return the events between two moments: deletions first, then by version, in the order in which they happen."""
    gone = sorted(before.seen.keys() - after.seen.keys(), key=lambda path: (before.seen[path].version.version, path))
    events = [WatchEvent(EventKind.DELETED, before.seen[path].version, after.at) for path in gone]
    for path, seen in sorted(after.seen.items(), key=lambda item: (item[1].version.version, item[0])):
        old = before.seen.get(path)
        if old is not seen:
            events += _of_files(old, seen, after.at)
        for kind, due in _due(seen, limits):
            same = old is not None and old.changed == seen.changed
            was_due = old is not None and same and any(k is kind and before.tick >= d for k, d in _due(old, limits))
            if after.tick >= due and not was_due:
                events.append(WatchEvent(kind, seen.version, after.at, why=why_unfinished(seen)))
    return events


def _of_files(old: SeenVersion | None, seen: SeenVersion, at: float) -> Iterator[WatchEvent]:
    """Yield what happened to the files of a version, and to its seal."""
    version = seen.version
    if old is None:
        yield WatchEvent(EventKind.NEW_VERSION, version, at)
    before = {shard.path: shard for shard in old.version.shards} if old else {}
    settled = {shard.path: shard for shard in old.settled} if old else {}
    for shard in version.shards:
        last = before.get(shard.path)
        if last is None or (last != shard and last == settled.get(shard.path)):  # or written again
            yield WatchEvent(EventKind.SHARD_ARRIVED, version, at, shard, replaced=bool(settled))
    if seen.is_complete and not (old and old.is_complete and old.version.shards == version.shards):
        yield WatchEvent(EventKind.COMPLETE, version, at, replaced=bool(old and old.settled))
    if version.fingerprint and not (old and old.version.fingerprint == version.fingerprint):
        yield WatchEvent(EventKind.SEALED, version, at)


def _due(seen: SeenVersion, limits: Limits) -> Iterator[tuple[EventKind, float]]:
    """Yield what a version will count as, and from when on, unless it changes before."""
    if seen.is_complete:
        return
    if seen.check.health is Health.DAMAGED:
        yield EventKind.CORRUPT, seen.changed + limits.corrupt_seconds
    elif limits.stall_seconds is not None and not seen.settled:  # one that was complete is being deleted
        yield EventKind.STALLED, seen.changed + limits.stall_seconds


def next_due(moment: Moment, limits: Limits) -> float | None:
    """Return when a version will next count as stalled or corrupt if nothing changes; None for never."""
    dues = [due for seen in moment.seen.values() for _, due in _due(seen, limits)]
    return min((due for due in dues if due > moment.tick), default=None)


def standing(seen: SeenVersion, tick: float, limits: Limits) -> str:
    """Return the state of a version in a word: that of a listing, or stalled or corrupt when it is so for too long."""
    if seen.is_complete:
        return "complete"
    late = next((kind for kind, due in _due(seen, limits) if tick >= due), None)
    if late is not None:
        return late.value
    if seen.check.health is Health.UNREAD:
        return State.UNREADABLE.value
    state = seen.version.state
    return (State.WRITING if state is State.COMPLETE else state).value  # its headers are not all there yet


def why_unfinished(seen: SeenVersion) -> str:
    """Return why a version is not complete, in words.

    The words name files of the location, which other people may have chosen: escape them before a terminal gets them.
    """
    version = seen.version
    if seen.check.why:
        return seen.check.why
    if version.state is State.UNREADABLE:
        return version.why_unreadable
    if version.state is State.COMPLETE:
        return "its headers were not read"
    if version.lacks:
        return version.absent
    if version.ps_num is None:
        return "it has shards of several jobs" if version.shards else "it has no shard"
    beside = f", and the file {min(version.extra)!r}" if version.extra else ""
    return f"it has {len(version.shards)} of {counted(version.ps_num, 'shard')}{beside}"
