"""Watch a location: an event for everything that happens to its versions, as one look after the other finds it.

Wait for a version: any complete one, one of a number or above, or the best by a metric.

Or for each complete version once, for jobs that evaluate or serve what another job saves.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import Mode, counted, describe, escaped
from edl_ckpt.core.catalog.listing import listed_mode, ranked
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS
from edl_ckpt.core.model.versions import Listing, ShardFile, State, Version
from edl_ckpt.core.operations.follow.observe import (
    CLOCK,
    Clock,
    Health,
    HealthCheck,
    Limits,
    Moment,
    Observer,
    SeenVersion,
    WatchEvent,
    changes,
    moment_after,
    next_due,
    to_check,
    why_unfinished,
)
from edl_ckpt.core.storage.location import Location, LocationLike


class Outcome(enum.StrEnum):
    """How a wait ended."""

    FOUND = "complete"
    TIMED_OUT = "timed-out"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A version that would do if it were complete and could be read, and why it is not."""

    version: Version
    why: str


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The version that was waited for, or why there is none."""

    location: Location
    outcome: Outcome
    version: Version | None
    """None unless the outcome is FOUND."""
    waited_seconds: float
    unfinished: tuple[Unfinished, ...] = ()
    exists: bool = True
    """False when there is no such location."""
    newest: int | None = None
    """The highest number at the location, whatever the state of that version; None when there is no version."""
    newest_complete: int | None = None
    """The highest number of a complete version; None when there is none."""
    passed_over: tuple[Version, ...] = ()
    """Versions that are newer than the one that was found, and known to be damaged."""
    is_empty: bool = True
    """False where the location has versions, with or without numbers."""
    bounded: str = ""
    """That each look ended before it had seen all names, in words; '' where none did."""

    @property
    def why(self) -> str:
        """Return how a wait without a version ended, in words; '' when there is one."""
        if self.outcome is Outcome.FOUND:
            return ""
        ended = "timed out" if self.outcome is Outcome.TIMED_OUT else "stalled: nothing has changed"
        if not self.exists:
            return f"{ended}: the location does not exist"
        if not self.unfinished:
            nothing = self.bounded or "there is no version"
            none = nothing if self.is_empty else "no version is complete"
            newest = self.newest_complete
            return f"{ended}: {none if newest is None else f'the newest complete version is {newest}'}"
        first, more = self.unfinished[-1], len(self.unfinished) - 1
        rest = f" ({counted(more, 'other version')} unfinished)" if more else ""
        return f"{ended}: version {first.version.key}: {first.why}{rest}"

    def __repr__(self) -> str:
        return describe(
            "WaitResult", escaped(self.location.url), repr(self.version) if self.version else self.outcome.value
        )


def _candidates(
    listing: Listing | None, wanted: Sequence[Version], best: str | None, mode: Mode | None, *, verified: bool
) -> Sequence[Version]:
    """Return the versions that would do if they can be read, the one to take first."""
    present = [version for version in reversed(wanted) if not version.replaced_by]
    if verified:
        present = [version for version in present if version.is_verified]
    if best is None or listing is None:
        return [version for version in present if version.is_good]
    return ranked(present, best, listed_mode(listing, best, mode))


def wait_for_version(
    location: LocationLike,
    *,
    version_ge: int | None = None,
    best: str | None = None,
    mode: Mode | None = None,
    verified: bool = False,
    timeout_seconds: float | None = None,
    stall_seconds: float | None = None,
    interval_seconds: float | None = None,
    clock: Clock = CLOCK,
    reporter: Reporter = WARNINGS,
) -> WaitResult:
    """Wait until a location has a good version whose headers can be read, and return the newest such version.

    A version that is known to be damaged is passed over. `verified` asks for one whose every value was read without an
    error, as far as is remembered: another process verifies it.

    `version_ge` asks for this number or a higher one. `best` asks for the best version by this metric, as soon as one
    has it; `mode` is 'max' or 'min', as in `best_version`. A location that does not exist is waited for. The wait ends
    without a version after `timeout_seconds` (0 looks once), or when nothing at the location has changed for
    `stall_seconds`; None is never. Raises UsageError when it is not clear which end of the metric is better, and the
    errors of listing; storage that does not answer is tried again.
    """
    least = -1 if version_ge is None else whole_number("version_ge", version_ge, least=0)
    before: object = ()
    with Observer(
        location, metadata=best is not None, interval_seconds=interval_seconds, clock=clock, reporter=reporter
    ) as observer:
        begin = changed = observer.clock.tick()
        while True:
            listing = observer.look()
            versions = listing.versions if listing else ()
            wanted = [v for v in versions if v.version >= least]
            candidates = _candidates(listing, wanted, best, mode, verified=verified)
            found = next((v for v in candidates if observer.check(v).health is Health.READABLE), None)
            tick = observer.clock.tick()
            if (shape := _shape(listing)) != before:
                changed, before = tick, shape
            limits = (Outcome.STALLED, changed, stall_seconds), (Outcome.TIMED_OUT, begin, timeout_seconds)
            ends = {outcome: since + seconds for outcome, since, seconds in limits if seconds is not None}
            outcome = Outcome.FOUND if found else next((o for o, end in ends.items() if tick >= end), None)
            if outcome is not None:
                unfinished = () if found else tuple(_unfinished(observer, wanted, best, verified=verified))
                version = observer.snapshots.described(found) if found else None
                whole = {v.path for v in versions if v.state is State.COMPLETE and not v.doubts}
                numbers = {v.version: v.path in whole for v in versions if v.number is not None}
                newest = max(numbers, default=None), max(filter(numbers.get, numbers), default=None)
                passed = tuple(v for v in wanted if found and v.damage and v.version > found.version and best is None)
                bounded = listing.none_here if listing is not None and listing.bound else ""
                return WaitResult(
                    observer.location,
                    outcome,
                    version,
                    tick - begin,
                    unfinished,
                    listing is not None,
                    *newest,
                    passed_over=passed,
                    is_empty=not versions,
                    bounded=bounded,
                )
            observer.pause(min(ends.values()) - tick if ends else None)


def _shape(listing: Listing | None) -> object:
    """Return what must not change for a location to be stalled; the passing of time changes none of it."""
    if listing is None:
        return None
    return [(v.path, v.shards, v.extra, sorted(v.metrics.items()), v.replaced_by, v.verdict) for v in listing.versions]


def _unfinished(
    observer: Observer, wanted: Sequence[Version], best: str | None, *, verified: bool
) -> Iterator[Unfinished]:
    """Yield the versions that would do if they were complete, could be read, and had the metric."""
    for version in wanted:
        is_complete = version.state is State.COMPLETE
        check = observer.check(version) if is_complete else HealthCheck(Health.UNKNOWN)
        if not is_complete or check.health is not Health.READABLE:
            yield Unfinished(version, why_unfinished(SeenVersion(version, check, 0.0)))
        elif version.doubts:
            yield Unfinished(version, "; ".join(version.doubts))
        elif verified and not version.is_verified:
            yield Unfinished(version, "its values were not verified")
        elif best is not None:
            yield Unfinished(version, f"it has no value of {best!r}")


def checkpoints_iterator(
    location: LocationLike,
    *,
    after: int | None = None,
    replaced: bool = False,
    min_interval_seconds: float = 0.0,
    timeout_seconds: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    interval_seconds: float | None = None,
    clock: Clock = CLOCK,
    reporter: Reporter = WARNINGS,
) -> Iterator[Version]:
    """Yield each complete version of a location once, in the order of their numbers, and wait for the next ones.

    Versions that came while the caller was busy are yielded too, unlike in `tf.train.checkpoints_iterator`; those that
    were deleted meanwhile are not. A version that becomes complete after a higher number comes as soon as it is
    complete. Numbers up to `after` are left out, so a caller that was stopped can resume. With `replaced`, a version
    that a job wrote again is yielded again.

    As in TensorFlow, at least `min_interval_seconds` pass between two versions, and when there is none for
    `timeout_seconds` (None: for ever), the iterator ends, unless `timeout_fn` returns False. `interval_seconds` is the
    time between two looks. Raises the errors of listing; storage that does not answer is tried again.
    """
    if timeout_fn is not None and timeout_seconds is None:
        raise UsageError("timeout_fn needs timeout_seconds: without a timeout it is never called")
    if after is not None:
        after = whole_number("after", after)
    observer = Observer(location, metadata=False, interval_seconds=interval_seconds, clock=clock, reporter=reporter)
    clock = observer.clock

    def versions() -> Iterator[Version]:
        taken: dict[int | str, tuple[ShardFile, ...]] = {}
        since, last = clock.tick(), -min_interval_seconds + clock.tick()
        with observer:
            while True:
                listing, is_busy = observer.look(), False
                pending = _pending(listing, taken, after, replaced=replaced)
                for version in (v for v in pending if observer.check(v).health is Health.READABLE):  # and still there
                    if (early := last + min_interval_seconds - clock.tick()) > 0:
                        clock.sleep(early)
                    taken[version.key], last, is_busy = version.shards, clock.tick(), True
                    yield observer.snapshots.described(version)
                    since = clock.tick()
                if is_busy:  # the caller was, so there may be more
                    continue
                left = None if timeout_seconds is None else since + timeout_seconds - clock.tick()
                if left is not None and left <= 0:
                    if timeout_fn is None or timeout_fn():
                        return
                    since, left = clock.tick(), timeout_seconds
                observer.pause(left)

    return versions()


def _pending(
    listing: Listing | None, taken: Mapping[int | str, tuple[ShardFile, ...]], after: int | None, *, replaced: bool
) -> list[Version]:
    """Return the complete versions of a listing that were not yielded, by number."""
    versions = listing.versions if listing else ()
    wanted = [v for v in versions if v.state is State.COMPLETE and not (v.replaced_by or v.doubts)]
    later = [v for v in wanted if after is None or v.version > after]
    return [v for v in later if v.key not in taken or (replaced and taken[v.key] != v.shards)]


_SETTLED_SECONDS: Final = 60.0
"""A complete version that has not changed for so long is left out of most looks at a file system of a network."""
DEFAULT_LIMITS: Final = Limits()


class WatchStep(NamedTuple):
    """One look at a location, and what happened since the look before."""

    moment: Moment
    events: tuple[WatchEvent, ...]


def watch_location(
    location: LocationLike,
    *,
    after: int | None = None,
    timeout_seconds: float | None = None,
    stall_seconds: float | None = DEFAULT_LIMITS.stall_seconds,
    corrupt_seconds: float = DEFAULT_LIMITS.corrupt_seconds,
    interval_seconds: float | None = None,
    clock: Clock = CLOCK,
    reporter: Reporter = WARNINGS,
) -> Iterator[WatchEvent]:
    """Yield what happens to the versions of a location from now on; a location that does not exist is waited for.

    A version counts as stalled when it is unfinished and has not changed for `stall_seconds` (None: never), and as
    corrupt when it has all its shards and has stayed unreadable for `corrupt_seconds` without a change.

    With `after`, the versions above this number that are there already are reported first. The iterator ends after
    `timeout_seconds` (0 looks once); None is never. It does not look while the caller is busy: what happens meanwhile
    is found by the next look, and what has come and gone by then is not. Raises the errors of listing; storage that
    does not answer is tried again.
    """
    limits = Limits(stall_seconds, corrupt_seconds)
    looks = watch_steps(
        location,
        after=after,
        timeout_seconds=timeout_seconds,
        limits=limits,
        interval_seconds=interval_seconds,
        clock=clock,
        reporter=reporter,
    )
    for look in looks:
        yield from look.events


def watch_steps(
    location: LocationLike,
    *,
    after: int | None = None,
    timeout_seconds: float | None = None,
    limits: Limits = DEFAULT_LIMITS,
    interval_seconds: float | None = None,
    clock: Clock = CLOCK,
    reporter: Reporter = WARNINGS,
) -> Iterator[WatchStep]:
    """Yield every look at a location, also those since which nothing happened; as `watch_location` in all else."""
    with Observer(
        location, metadata=True, interval_seconds=interval_seconds, clock=clock, reporter=reporter
    ) as observer:
        clock = observer.clock
        end = None if timeout_seconds is None else clock.tick() + timeout_seconds
        before: Moment | None = None
        while True:
            moment = _moment(observer, before, after)
            yield WatchStep(moment, tuple(changes(before or _known(moment, after), moment, limits)))
            before, tick = moment, clock.tick()
            if end is not None and tick >= end:
                return
            times = [time - tick for time in (end, next_due(moment, limits)) if time is not None]
            observer.pause(min(times, default=None))


def _known(first: Moment, after: int | None) -> Moment:
    """Return the first moment without the versions above `after`: those are news."""
    seen = {path: s for path, s in first.seen.items() if after is None or s.version.version <= after}
    return Moment(first.at, first.tick, first.exists, seen)


def _moment(observer: Observer, before: Moment | None, after: int | None) -> Moment:
    """Return the location as a new look finds it."""
    clock = observer.clock
    last = before or Moment(clock.now(), clock.tick())
    settled = {p for p, s in last.seen.items() if s.is_complete and last.tick - s.changed > _SETTLED_SECONDS}
    listing = observer.look(settled)
    wanted = to_check(last, listing) if listing is not None else []
    checks = {v.path: observer.check(v) for v in wanted} if before else _first_checks(observer, wanted, after)
    return moment_after(last, listing, checks, at=clock.now(), tick=clock.tick())


def _first_checks(observer: Observer, wanted: list[Version], after: int | None) -> dict[str, HealthCheck]:
    """Return the headers of the versions that are there when a watch begins.

    Those are read from the newest version down to the first that is whole, of versions that changed a moment ago, and
    of those that will be reported. The others were complete long ago.
    """
    checks: dict[str, HealthCheck] = {}
    is_whole, now = False, observer.clock.now()
    for version in reversed(wanted):
        is_news = after is not None and version.version > after
        if is_whole and not is_news and version.modified < now - GRACE_SECONDS:
            checks[version.path] = HealthCheck(Health.READABLE)
        else:
            checks[version.path] = observer.check(version)
            is_whole = is_whole or checks[version.path].health is Health.READABLE
    return checks
