"""A progress bar for the engine's Progress protocol, on stderr, only on a terminal."""

from __future__ import annotations

import time
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_PATIENCE_SECONDS = 0.3


class Bar:
    """One bar for several phases; it appears only after a moment, and `stop` removes it."""

    def __init__(self, console: Console) -> None:
        self._lock = Lock()
        self._begin = time.monotonic()
        self._shown = self._stopped = False
        self._columns = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._columns.add_task("", total=1, visible=False)

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase."""
        with self._lock:
            self._columns.remove_task(self._task)
            self._task = self._columns.add_task(what, total=max(total_bytes, 1))

    def advance(self, size_bytes: int) -> None:
        """Move the bar by this many bytes."""
        with self._lock:
            if not self._shown and not self._stopped and time.monotonic() - self._begin > _PATIENCE_SECONDS:
                self._columns.start()
                self._shown = True
            self._columns.advance(self._task, size_bytes)

    def stop(self) -> None:
        """Remove the bar and show the cursor again; later calls show nothing."""
        with self._lock:
            self._stopped = True
            if self._shown:
                self._columns.stop()
                self._shown = False
