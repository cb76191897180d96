"""The progress bar behind core's Progress protocol; on stderr, on a terminal only."""

from __future__ import annotations

from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class Bar:
    """One bar for each phase of an operation; it vanishes when the phase ends."""

    def __init__(self, console: Console) -> None:
        self._lock = Lock()
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
            self._columns.start()
            self._columns.remove_task(self._task)
            self._task = self._columns.add_task(what, total=max(total_bytes, 1))

    def advance(self, size_bytes: int) -> None:
        """Move the bar; the last byte of a phase takes it away."""
        self._columns.advance(self._task, size_bytes)
        if self._columns.finished:
            self._columns.stop()
