"""Looks at a location: one listing each, and the headers of versions that have become complete."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Self

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, UnavailableError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.catalog.snapshot import Snapshots
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.operations.follow.changes import Health, HealthCheck
from edl_ckpt.core.operations.follow.pace import Clock, Pace
from edl_ckpt.core.reading.readable import read_fault
from edl_ckpt.core.state.metadata import is_unread
from edl_ckpt.core.storage.location import LocationLike

_DOUBT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Checked:
    """What the headers of a version said, of which shards, and when these were first looked at."""

    shards: tuple[ShardFile, ...]
    first: float
    check: HealthCheck

    def is_sure(self, tick: float) -> bool:
        return self.check.health is not Health.UNREAD and tick - self.first >= _DOUBT_SECONDS


class Observer:
    """Lists a location whenever it is asked to, waits in between, and lives through storage that does not answer.

    A context manager. With `metadata`, versions have their metrics, tags and seals.
    """

    def __init__(
        self,
        location: LocationLike,
        *,
        interval_seconds: float | None,
        clock: Clock,
        reporter: Reporter,
        metadata: bool,
    ) -> None:
        self._snapshots = Snapshots(location)
        self.location = self._snapshots.location
        self.pace = Pace(self.location, interval_seconds, clock)
        self._clock = clock
        self._reporter = reporter
        self._metadata = metadata
        self._last: Listing | None = None
        self._cost = 0.0
        self._is_silent = self._is_missing = False
        self._checked: dict[str, _Checked] = {}

    def look(self, settled: Collection[str] = ()) -> Listing | None:
        """Return the versions of the location, None when there is no such location; as before during an outage.

        `settled` are paths of versions in which nothing happens any more. Raises every other error of listing.
        """
        now, begin = self._clock.now(), self._clock.tick()
        try:
            listing = self._snapshots.take(now, settled=settled if self.pace.is_network else ())
            if listing is not None and self._metadata:
                listing = self._snapshots.annotated(listing, now)
        except (UnavailableError, LockedError) as error:
            if not self._is_silent:
                self._reporter.warn(f"{error}; looking again every {self.pace.seconds:g} s")
            self._is_silent = True
            return self._last
        if listing is None and not self._is_missing:
            self._reporter.warn(f"{self.location}: does not exist; waiting for it")
        self._is_silent, self._is_missing, self._last = False, listing is None, listing
        self._cost = self._clock.tick() - begin
        return listing

    def pause(self, most: float | None = None) -> None:
        """Wait until something may have changed, or so many seconds."""
        self.pace.pause(most, cost=self._cost)

    def check(self, version: Version) -> HealthCheck:
        """Return what the headers of a version say; remembered while its files stay the same.

        A fault is looked at again for half a minute: a server notes the run of a shard beside the shard.
        """
        known, tick = self._checked.get(version.path), self._clock.tick()
        if known is None or known.shards != version.shards:
            known = _Checked(version.shards, tick, _read(version))
        elif known.check.health is not Health.READABLE and not known.is_sure(tick):
            known = replace(known, check=_read(version))
        self._checked[version.path] = known
        return known.check

    def described(self, version: Version) -> Version:
        """Return a version with its metadata as it is now."""
        return self._snapshots.described(version)

    def forget(self, listing: Listing) -> None:
        """Forget the headers of versions that are gone."""
        present = {version.path for version in listing.versions}
        self._checked = {path: known for path, known in self._checked.items() if path in present}

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
