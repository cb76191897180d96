"""Looks at a location: one listing each, and the headers of versions that have become complete.

The next look comes as soon as the kernel reports a change where it reports all of them, else at an interval.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, UnavailableError, UsageError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.job import Reporter
from edl_ckpt.core.catalog.snapshot import Snapshots
from edl_ckpt.core.model.versions import Listing, ShardFile, Version
from edl_ckpt.core.operations.follow.changes import Health, HealthCheck
from edl_ckpt.core.reading.readable import read_fault
from edl_ckpt.core.state.metadata import is_unread
from edl_ckpt.core.storage.location import Location, LocationLike
from edl_ckpt.core.storage.mounts import reports_changes

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


@dataclass(frozen=True, slots=True)
class _Checked:
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
    interval_seconds: float | None
    clock: Clock
    reporter: Reporter
    metadata: bool

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
        known, tick = self._checked.get(version.path), self.clock.tick()
        if known is None or known.shards != version.shards:
            known = _Checked(version.shards, tick, _read(version))
        elif known.check.health is not Health.READABLE and not known.is_sure(tick):
            known = replace(known, check=_read(version))
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
