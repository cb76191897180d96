"""Reporters: what an operation calls as it works, with warnings and with how far it is.

Without a reporter from the caller, warnings are Python's and progress is silent (`WARNINGS`); `SILENT` drops both.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Final, Protocol

from edl_ckpt.core.base.errors import EdlCkptWarning, UsageError
from edl_ckpt.core.base.python_form import in_python


class Reporter(Protocol):
    """What an operation calls as it works; called from several threads."""

    def warn(self, text: str) -> None:
        """Tell people something that they should look at; the operation goes on."""

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase of `total_bytes` bytes of work."""

    def advance(self, size_bytes: int) -> None:
        """Report that this many more bytes are done."""


class SilentReporter:
    """A reporter that nobody listens to."""

    def __repr__(self) -> str:
        return "SILENT"

    def warn(self, text: str) -> None:
        """Do nothing."""

    def start(self, what: str, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, size_bytes: int) -> None:
        """Do nothing."""


SILENT = SilentReporter()


def expect(reporter: Reporter, total_bytes: int) -> None:
    """Tell a reporter that shows one bar for all phases how many bytes they have together, from the next one on."""
    if takes := getattr(reporter, "expect", None):
        takes(total_bytes)


class WarningReporter(SilentReporter):
    """The reporter where a caller gives none: its warnings are Python's, at the caller's own line."""

    def __repr__(self) -> str:
        return "WARNINGS"

    def warn(self, text: str) -> None:
        """Issue an EdlCkptWarning; Python shows each text once for a line, unless its filters say otherwise."""
        frame, level = sys._getframe(), 1  # noqa: SLF001 - `skip_file_prefixes` came with Python 3.12
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
            frame, level = frame.f_back, level + 1
        said = repr(in_python(text))[1:-1]  # names in it come from files
        warnings.warn(said, EdlCkptWarning, stacklevel=level)


WARNINGS = WarningReporter()
_OURS: Final = ("edl_ckpt.", "contextlib")


class Counted(SilentReporter):
    """A reporter that only passes on how many bytes are done."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def __repr__(self) -> str:
        return "<Counted>"

    def advance(self, size_bytes: int) -> None:
        """Pass bytes on."""
        self._advance(size_bytes)


class Progress:
    """A reporter that calls back, and collects warnings: `save_checkpoint(..., reporter=Progress(print))`.

    `callback(what, done_bytes, total_bytes)` is called when a phase begins, at most once in `every_seconds` while it
    goes on, and when all of its bytes are done; never by two threads at a time. It must not raise an exception: that
    ends the operation. `on_warning` gets each warning; all of them are in `warnings` too.

    >>> progress = Progress(lambda what, done, total: print(f"{what}: {done} of {total}"), every_seconds=0)
    >>> progress.start("rows", 20)
    rows: 0 of 20
    >>> progress.advance(20)
    rows: 20 of 20
    """

    def __init__(
        self,
        callback: Callable[[str, int, int], object] | None = None,
        *,
        on_warning: Callable[[str], object] | None = None,
        every_seconds: float = 0.1,
    ) -> None:
        for what, function in (("callback", callback), ("on_warning", on_warning)):
            if function is not None and not callable(function):
                raise UsageError(f"{what} must be a function, got {function!r}")
        self.what, self.done_bytes, self.total_bytes = "", 0, 0
        self.warnings: list[str] = []
        self._callback, self._on_warning, self._every = callback, on_warning, every_seconds
        self._lock = threading.Lock()
        self._next = 0.0

    def __repr__(self) -> str:
        done = f"{self.done_bytes} of {self.total_bytes} bytes"
        return f"<Progress {self.what}{': ' if self.what else ''}{done}, {len(self.warnings)} warnings>"

    def warn(self, text: str) -> None:
        """Keep a warning, and pass it on."""
        with self._lock:
            self.warnings.append(text)
            if self._on_warning is not None:
                self._on_warning(text)

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase, and call back."""
        with self._lock:
            self.what, self.done_bytes, self.total_bytes = what, 0, total_bytes
            self._call()

    def advance(self, size_bytes: int) -> None:
        """Count bytes, and call back when it is time."""
        with self._lock:
            self.done_bytes += size_bytes
            if self.done_bytes >= self.total_bytes or time.monotonic() >= self._next:
                self._call()

    def _call(self) -> None:
        self._next = time.monotonic() + self._every
        if self._callback is not None:
            self._callback(self.what, self.done_bytes, self.total_bytes)
