"""Looks at a location: one listing each, and the headers of versions that have become complete.

The next look comes as soon as the kernel reports a change where it reports all of them, else at an interval.

A look makes a `Moment`: the versions as they were listed, and what their headers say. `changes` compares two moments
and returns the events between them. A version is complete when its listing says so and its headers can be read, because
savers write in place.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Self

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, UnavailableError, UsageError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.catalog.snapshots import Snapshots
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import BEING_WRITTEN, ShardFile, State, Version
from edl_ckpt.core.reading.newest import read_fault
from edl_ckpt.core.state.metadata import is_unread
from edl_ckpt.core.storage.filesystems import reports_changes
from edl_ckpt.core.storage.location import Location, LocationLike


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


class Limits(NamedTuple):
    """After how many seconds without a change a version counts as stalled (None: never), and as corrupt."""

    stall_seconds: float | None = 600.0
    corrupt_seconds: float = 30.0


class SeenVersion(NamedTuple):
    """One version at one moment; `changed` is when it last changed, on the clock of `Moment.tick`."""

    version: Version
    check: HealthCheck
    changed: float
    settled: tuple[ShardFile, ...] = ()
    """Its shards when it was last complete and readable; () before that."""

    @property
    def is_complete(self) -> bool:
        """Return True for a version that a reader can rely on."""
        whole = self.version.state is State.COMPLETE and not self.version.doubts
        return whole and self.check.health is Health.READABLE


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
    readable = {path: seen for path, seen in before.seen.items() if seen.check.health is Health.READABLE}
    complete = [v for v in listing.versions if v.state is State.COMPLETE and not v.replaced_by]
    return [v for v in complete if v.path not in readable or not _is_same(readable[v.path], v)]


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
        stays = version.state is State.UNREADABLE or version.replaced_by
        seen[version.path] = old if old and stays else _seen(version, old, checks.get(version.path), tick)
    return Moment(at, tick, exists=True, seen=seen)


def _seen(version: Version, old: SeenVersion | None, check: HealthCheck | None, tick: float) -> SeenVersion:
    same = old if old is not None and _is_same(old, version) else None
    if check is None:
        check = same.check if same and version.state is State.COMPLETE else HealthCheck(Health.UNKNOWN)
    seen = SeenVersion(version, check, same.changed if same else tick, old.settled if old else ())
    return seen._replace(settled=version.shards) if seen.is_complete else seen


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
    if seen.is_complete or BEING_WRITTEN in seen.version.doubts:
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
    if version.doubts:
        return "; ".join(version.doubts)
    if version.state is State.COMPLETE:
        return "its headers were not read"
    if version.lacks:
        return version.absent
    if version.ps_num is None:
        return "it has shards of several jobs" if version.shards else "it has no shard"
    beside = f", and the file {min(version.extra)!r}" if version.extra else ""
    return f"it has {len(version.shards)} of {counted(version.ps_num, 'shard')}{beside}"


_DOUBT_SECONDS: Final = 30.0
DISK_SECONDS: Final = 1.0
REMOTE_SECONDS: Final = 10.0
"""The interval between two looks at S3, or at a file system of a network."""
_REPORTED_SECONDS: Final = 5.0
"""The longest interval where the kernel reports changes: a link may lead out of the location."""
_REST: Final = 9.0
_STEP_MS: Final = 100
_DEBOUNCE_MS: Final = 500
"""While a shard is being written, changes are reported all the time. Looks are not more frequent than this."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of day in seconds since the epoch, a clock that never jumps, and how to wait; tests give their own."""

    now: Callable[[], float] = time.time
    tick: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


CLOCK: Final = Clock()


class Pace:
    """Waits between two looks at a location.

    An interval that is given is used as it is. Without one, changes that the kernel reports end the wait.
    """

    def __init__(self, location: Location, interval_seconds: float | None, clock: Clock) -> None:
        if interval_seconds is not None and interval_seconds <= 0:
            raise UsageError(f"the interval must be more than 0 seconds, got {interval_seconds:g}")
        self._path = location.local_path
        is_disk = self._path is not None and reports_changes(self._path)
        self.is_network = self._path is not None and not is_disk
        self.seconds = interval_seconds or (DISK_SECONDS if is_disk else REMOTE_SECONDS)
        self._is_given = interval_seconds is not None
        self._clock = clock
        self._may_notify = is_disk and interval_seconds is None and clock is CLOCK
        self._notifier: Notifier | None = None

    def pause(self, most: float | None = None, *, cost: float = 0.0) -> None:
        """Return when something may have changed, and after `most` seconds at the latest.

        `cost` is how long the last look took: unless an interval was asked for, looks take a tenth of the time at most.
        """
        if self._may_notify and self._notifier is None and self._path is not None and os.path.isdir(self._path):
            self._notifier = Notifier.start(self._path)  # only now: it may not have been there before
            self._may_notify = self._notifier is not None
        rest = 0.0 if self._is_given else _REST * cost
        seconds = max(self.seconds, rest) if self._notifier is None else rest
        seconds = seconds if most is None else min(seconds, most)
        if seconds > 0 or self._notifier is None:
            self._clock.sleep(max(0.0, seconds))
        if self._notifier is not None:
            left = _REPORTED_SECONDS if most is None else min(_REPORTED_SECONDS, most - seconds)
            if not self._notifier.wait(max(0.0, left)):
                self._notifier = None
                self._may_notify = False

    def close(self) -> None:
        """End the thread that listens to the kernel, if there is one."""
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None


class Notifier:
    """A thread that listens to the kernel. The waiting thread stays free for signals."""

    def __init__(self, path: str, watch: Callable[..., Any]) -> None:
        self._path = path
        self._watch = watch
        self._changes: SimpleQueue[None] = SimpleQueue()  # in C: a signal may end the waiting anywhere
        self._stop = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._listen, name="edl-ckpt-changes", daemon=True)

    @staticmethod
    def start(path: str) -> Notifier | None:
        """Return a notifier at work; None where watchfiles (the extra `watch`) is not installed."""
        try:
            from watchfiles import watch
        except ImportError:
            return None
        notifier = Notifier(path, watch)
        with WHOLE:
            notifier._thread.start()
        return notifier

    def _listen(self) -> None:
        try:
            for _ in self._watch(
                self._path,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                stop_event=self._stop,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                self._changes.put(None)
        except Exception:  # noqa: BLE001 - the kernel's limit of watches, the end of the directory: then we poll
            self._failed = True
            self._changes.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for a change, or so many seconds; False when the kernel reports no more."""
        with suppress(Empty):
            self._changes.get(timeout=seconds)
            while True:
                self._changes.get_nowait()
        return not self._failed and self._thread.is_alive()

    def close(self) -> None:
        """End the thread."""
        with WHOLE:
            self._stop.set()
        self._thread.join()


class _Checked(NamedTuple):
    """What the headers of a version said, of which shards, and when these were first looked at."""

    shards: tuple[ShardFile, ...]
    first: float
    check: HealthCheck

    def is_sure(self, tick: float) -> bool:
        return self.check.health is not Health.UNREAD and tick - self.first >= _DOUBT_SECONDS


@dataclass(eq=False)
class Observer:
    """Lists a location whenever it is asked to, waits in between, and lives through storage that does not answer.

    A context manager. With `metadata`, versions have their metrics, tags and seals.
    """

    where: LocationLike
    _: KW_ONLY
    metadata: bool
    interval_seconds: float | None = None
    clock: Clock = CLOCK
    reporter: Reporter = WARNINGS

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(self.where)
        self.location = self.snapshots.location
        self.pace = Pace(self.location, self.interval_seconds, self.clock)
        self._last: Listing | None = None
        self._cost = 0.0
        self._is_silent = self._is_missing = False
        self._checked: dict[str, _Checked] = {}

    def look(self, settled: Collection[str] = ()) -> Listing | None:
        """Return the versions of the location, None when there is no such location; as before during an outage.

        `settled` are paths of versions in which nothing happens any more. Headers of versions that are gone are
        forgotten. Raises every other error of listing.
        """
        now, begin = self.clock.now(), self.clock.tick()
        try:
            listing = self.snapshots.take(now, settled=settled if self.pace.is_network else ())
            if listing is not None and self.metadata:
                listing = self.snapshots.annotated(listing, now)
        except (UnavailableError, LockedError) as error:
            if not self._is_silent:
                self.reporter.warn(f"{error}; looking again every {self.pace.seconds:g} s")
            self._is_silent = True
            return self._last
        if listing is None and not self._is_missing:
            self.reporter.warn(f"{self.location}: does not exist; waiting for it")
        self._is_silent, self._is_missing, self._last = False, listing is None, listing
        present = {version.path for version in listing.versions} if listing else set()
        self._checked = {path: known for path, known in self._checked.items() if path in present}
        self._cost = self.clock.tick() - begin
        return listing

    def pause(self, most: float | None = None) -> None:
        """Wait until something may have changed, or so many seconds."""
        self.pace.pause(most, cost=self._cost)

    def check(self, version: Version) -> HealthCheck:
        """Return what the headers of a version say; remembered while its files stay the same.

        A fault is looked at again for half a minute: a server notes the run of a shard beside the shard.
        """
        if version.damage:
            return HealthCheck(Health.DAMAGED, version.damage)
        known, tick = self._checked.get(version.path), self.clock.tick()
        if known is None or known.shards != version.shards:
            known = _Checked(version.shards, tick, _read(version))
        elif known.check.health is not Health.READABLE and not known.is_sure(tick):
            known = known._replace(check=_read(version))
        self._checked[version.path] = known
        return known.check

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pace.close()


def _read(version: Version) -> HealthCheck:
    try:
        fault = read_fault(version)
    except EdlCkptError as error:
        return HealthCheck(Health.UNREAD if is_unread(error) else Health.DAMAGED, str(error))
    return HealthCheck(Health.DAMAGED, fault) if fault else HealthCheck(Health.READABLE)
