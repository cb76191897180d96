"""Wait for a version: any complete one, one of a number or above, or the best by a metric."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.catalog.listing import listed_mode
from edl_ckpt.core.catalog.ranking import ranked
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.follow.observe import (
    CLOCK,
    Clock,
    Health,
    HealthCheck,
    Observer,
    SeenVersion,
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
            return f"{ended}: {self._without_unfinished}"
        *others, newest = self.unfinished
        also = f" ({counted(len(others), 'other version')} unfinished)" if others else ""
        return f"{ended}: version {newest.version.key}: {newest.why}{also}"

    @property
    def _without_unfinished(self) -> str:
        """Return what a location has where no version would do once it is finished."""
        if self.newest_complete is not None:
            return f"the newest complete version is {self.newest_complete}"
        if not self.is_empty:
            return "no version is complete"
        return self.bounded or "there is no version"

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
    shape_before: object = ()
    with Observer(
        location, metadata=best is not None, interval_seconds=interval_seconds, clock=clock, reporter=reporter
    ) as observer:
        begin = changed = observer.clock.tick()
        while True:
            listing = observer.look()
            versions = listing.versions if listing else ()
            wanted = [version for version in versions if version.version >= least]
            found: Version | None = None
            for version in _candidates(listing, wanted, best, mode, verified=verified):
                if observer.check(version).health is Health.READABLE:
                    found = version
                    break
            tick = observer.clock.tick()
            shape = _shape(listing)
            if shape != shape_before:
                changed = tick
                shape_before = shape
            ends: dict[Outcome, float] = {}
            if stall_seconds is not None:
                ends[Outcome.STALLED] = changed + stall_seconds
            if timeout_seconds is not None:
                ends[Outcome.TIMED_OUT] = begin + timeout_seconds
            outcome = Outcome.FOUND if found else _ended(ends, tick)
            if outcome is None:
                observer.pause(min(ends.values()) - tick if ends else None)
                continue
            newest, newest_complete = _newest_numbers(versions)
            return WaitResult(
                observer.location,
                outcome,
                observer.snapshots.described(found) if found else None,
                tick - begin,
                () if found else tuple(_unfinished(observer, wanted, best, verified=verified)),
                listing is not None,
                newest,
                newest_complete,
                passed_over=_passed_over(wanted, found) if best is None else (),
                is_empty=not versions,
                bounded=listing.none_here if listing is not None and listing.bound else "",
            )


def _ended(ends: Mapping[Outcome, float], tick: float) -> Outcome | None:
    """Return how a wait without a version ends at this tick of the clock; None while it goes on."""
    for outcome, end in ends.items():
        if tick >= end:
            return outcome
    return None


def _passed_over(wanted: Sequence[Version], found: Version | None) -> tuple[Version, ...]:
    """Return the versions that are newer than the one that was found, and known to be damaged."""
    if found is None:
        return ()
    return tuple(version for version in wanted if version.damage and version.version > found.version)


def _newest_numbers(versions: Sequence[Version]) -> tuple[int | None, int | None]:
    """Return the highest number, and the highest of a version that is complete and without doubts; None for none.

    Of versions with one number, the last one says whether that number is complete.
    """
    is_whole: dict[int, bool] = {}
    for version in versions:
        if version.number is not None:
            is_whole[version.version] = version.state is State.COMPLETE and not version.doubts
    complete = [number for number, whole in is_whole.items() if whole]
    return max(is_whole, default=None), max(complete, default=None)


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
