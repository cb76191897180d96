"""Watch a location: an event for everything that happens to its versions, as one look after the other finds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.follow.observe import (
    CLOCK,
    Clock,
    Health,
    HealthCheck,
    Limits,
    Moment,
    Observer,
    WatchEvent,
    changes,
    moment_after,
    next_due,
    to_check,
)
from edl_ckpt.core.storage.location import LocationLike

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
