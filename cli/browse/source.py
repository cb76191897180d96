"""What the screens ask of the engine, in threads of its own, so that no screen ever waits for storage.

A thread that is given up ends at its next report or its next wait for the network. Its result goes nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.options.decorator import attempted
from edl_ckpt.core import (
    Listing,
    Version,
    error_of_system,
    glance_below,
    listed_again,
    verify_version,
)
from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import stop_when
from edl_ckpt.core.base.progress import Progress
from edl_ckpt.core.base.words import portion

if TYPE_CHECKING:
    from edl_ckpt.core import Location

_MOST_BELOW: Final = 1000
"""How many locations below a directory without versions are shown."""


def below(listing: Listing) -> list[Location]:
    """Return the first locations with versions below one without, two directories deep."""
    return [*glance_below(listing).locations[:_MOST_BELOW]]


class GivenUp(SystemExit):
    """Raised where a given up job reports: pools of threads end by it as by a signal."""


class BackgroundJob(Progress):
    """One piece of work, and the `Reporter` that it reports to.

    `ended` is called in the thread of the work, once, after `result`, `error` or `bug` is set; not after `give_up`.
    """

    def __init__(
        self, words: str, work: Callable[[BackgroundJob], Any], ended: Callable[[BackgroundJob], object]
    ) -> None:
        super().__init__(lambda *_: self._check(), on_warning=lambda _: self._check(), every_seconds=0)
        self.words = words
        self.result: Any = None
        self.error: EdlCkptError | None = None
        self.bug: BaseException | None = None
        self._work, self._ended = work, ended
        self._stop = threading.Event()
        self.is_running = False
        self.thread = threading.Thread(target=self._run, name="edl-ckpt-browse", daemon=True)

    def begin(self) -> None:
        """Start the thread; a daemon, since the end of the program waits for nobody."""
        self.is_running = True
        self.thread.start()

    def give_up(self) -> None:
        """Stop the work as soon as it reports or waits; `ended` is not called."""
        self._stop.set()
        self.is_running = False

    @property
    def progress(self) -> str:
        """Return how far the work is, in words: 'values: 1.5 of 5.0 GiB, 30%'."""
        if not self.total_bytes:
            return self.what or self.words
        share = min(self.done_bytes / self.total_bytes, 1.0)
        return f"{self.what}: {portion(self.done_bytes, self.total_bytes)}, {share:.0%}"

    def _check(self) -> None:
        if self._stop.is_set():
            raise GivenUp

    def _run(self) -> None:
        stop_when(self._stop)
        try:
            self.result = attempted(lambda: self._work(self), lambda _: self._check())
        except GivenUp:
            return
        except (OSError, MemoryError, RecursionError) as error:  # one of ours may be an OSError too
            self.error = error_of_system(error)
        except EdlCkptError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 - a bug, which the program shows at its end
            self.bug = error
        if not self._stop.is_set():
            self.is_running = False
            self._ended(self)


class BackgroundCheck(BackgroundJob):
    """A verification of a version at a level; its result is a `VerifyResult`."""

    def __init__(self, version: Version, level: Level, ended: Callable[[BackgroundJob], object]) -> None:
        super().__init__(
            "verifying", lambda job: verify_version(listed_again(version), level=level, reporter=job), ended
        )
        self.version, self.level = version, level
