"""When to look again: as soon as the kernel reports a change where it reports all of them, else at an interval."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.mounts import reports_changes

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
        self._notify()
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

    def _notify(self) -> None:
        """Ask the kernel for changes as soon as the location is there."""
        if self._may_notify and self._notifier is None and self._path is not None and os.path.isdir(self._path):
            self._notifier = Notifier.start(self._path)
            self._may_notify = self._notifier is not None

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
