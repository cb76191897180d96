"""How far a command is: a bar on a terminal, a line now and then elsewhere, and an answer when a signal asks.

One line says all of it, in the units of all other output. What does not fit gives way: the bar, then the rate, then the
time that is left.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, TextIO

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.folding import cell_width, shortened
from edl_ckpt.cli.terminal.window import LEAST_WIDTH, real_width, shown_on
from edl_ckpt.core.base import words
from edl_ckpt.core.base.interruption import COMMIT, WHOLE

Kind = Literal["bar", "lines", "none"]
LINE_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 0.3
DRAW_SECONDS: Final = 0.1
_RATE_SECONDS: Final = 10.0
"""The least time over which a rate is measured."""
_GONE_SECONDS: Final = 1.0
_RESIZE_SECONDS: Final = 2.0
"""How long a person goes on dragging the border of a window."""
_MOST: Final = 78
"""Columns of the whole line: a wider one would fold where a wide window becomes one of 80 columns."""
_BAR: Final = 30
_LEAST_BAR: Final = 8
_NAME, _LEAST_NAME = 12, 8
_ERASE, _DOWN = "\r\x1b[K", "\x1b[B"
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_CLIP, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""A bar that is drawn while the window becomes narrower must not go on in the next line."""


class Tracker:
    """Counts the bytes of a command's phases, and shows them.

    The bar is drawn by a thread of its own, for the width that the terminal has just then. So a new size of the window,
    or work that makes no progress, is seen at once. Counting never waits for the terminal.
    """

    def __init__(
        self,
        stream: TextIO,
        kind: Kind,
        *,
        every_seconds: float = LINE_SECONDS,
        colour: bool = False,
        doing: Callable[[], str] = str,
    ) -> None:
        self._stream = stream
        self.kind = kind
        self._colour = colour
        self._doing = doing
        """Says who does the work, where it is not this process alone."""
        self._every = DRAW_SECONDS if kind == "bar" else every_seconds
        self._counting, self._drawing = threading.Lock(), threading.Lock()
        self._end = threading.Event()
        self._drawn_width = 0
        """The columns that the bar took when it was drawn; 0 when there is none."""
        self._width, self._narrowed = 0, -_RESIZE_SECONDS
        """The width of the window at the last drawing, and when it became narrower."""
        self._thread: threading.Thread | None = None
        self._what, self._done, self._total = "", 0, 0
        self._before, self._expected = 0, 0
        """The bytes of the phases that are over, and of all that are expected; 0 where each has a bar of its own."""
        self._samples: deque[tuple[float, int]] = deque()

    def expect(self, total_bytes: int) -> None:
        """Show the following phases, which have so many bytes, as one; within what is expected already, do nothing."""
        with self._counting:
            self._expected = max(self._expected, self._before + self._total + total_bytes)

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase."""
        with self._counting:
            self._before = self._before + self._total if self._expected else 0
            self._what, self._done, self._total = what, 0, total_bytes
            if not (self._expected and self._samples):
                self._samples = deque([(time.monotonic(), 0)])
        _at_work[:] = [self]
        if self._thread is None and self.kind != "none" and not self._end.is_set():
            self._thread = threading.Thread(target=self._draw_until_the_end, name="progress", daemon=True)
            with WHOLE:
                self._thread.start()

    def advance(self, size_bytes: int) -> None:
        """Count bytes that are done."""
        with self._counting:
            self._done += size_bytes

    def stop(self) -> None:
        """Remove the bar; later calls show nothing."""
        with WHOLE:
            self._end.set()
        _at_work.clear()
        if self._drawing.acquire(timeout=_GONE_SECONDS):  # a terminal that takes no more output must not stop the end
            self._erase()
            self._drawing.release()

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        with self._drawing:
            self._erase()
            print(line, file=self._stream, flush=True)

    def _draw_until_the_end(self) -> None:
        if self.kind == "bar" and self._end.wait(PATIENCE_SECONDS):
            return
        while not (self._end.is_set() if self.kind == "bar" else self._end.wait(self._every)):
            with self._drawing, suppress(OSError, ValueError):  # the terminal may be gone, or stderr closed
                if self._end.is_set():
                    return
                self._draw()
            if self.kind == "bar":
                self._end.wait(self._every)

    def _draw(self) -> None:
        if self.kind == "lines":
            print(self.line(), file=self._stream, flush=True)
            return
        room = self._room(real_width(self._stream))
        bar = shown_on(self._stream, self.line(room))
        self._stream.write(f"{self.erasing()}{_CLIP}{bar}{_WRAP}\r")
        self._stream.flush()
        self._drawn_width = room

    def _room(self, width: int) -> int:
        """Return the columns that the bar takes in a window of this width.

        It leaves some free, and more in a window that has just become narrower. At the top of its window, tmux moves
        the begin of a line that it folds into its history, where nothing can be erased.
        """
        now = time.monotonic()
        if width < self._width:
            self._narrowed = now
        self._width = width
        free = width // 3 if now - self._narrowed < _RESIZE_SECONDS else width // 8
        return max(min(width - free, _MOST), LEAST_WIDTH - 1)

    def erasing(self) -> str:
        """Return what erases the bar, '' when there is none.

        The cursor always stands at its begin. A narrower window may have folded it. Its lines are erased one by one:
        at the top of a window, tmux keeps in its history what `ED` erases.
        """
        if not self._drawn_width:
            return ""
        folds = (self._drawn_width - 1) // real_width(self._stream)
        return _ERASE + (_SAVE + (_DOWN + _ERASE) * folds + _RESTORE if folds else "")

    def _erase(self) -> None:
        if erasing := self.erasing():
            self._drawn_width = 0
            with suppress(OSError, ValueError):
                self._stream.write(erasing)
                self._stream.flush()

    def line(self, width: int | None = None) -> str:
        """Return where the command is; for a terminal of this width with a bar."""
        done = self._before + self._done
        total = max(self._before + self._total, self._expected)
        name = text.escaped(self._what)
        if not total:
            return name if width is None else shortened(name, width)
        percent = f"{min(100, done * 100 // total):3d}%"
        parts = self._parts(done, total, has_bar=width is not None)
        if width is None:
            return f"{name}: {', '.join([percent.strip(), *parts])}"
        while len(parts) > 1 and len("  ".join([percent, *parts])) + min(cell_width(name), _NAME) + 2 > width:
            parts.pop(1 if len(parts) > 2 else -1)
        numbers = "  ".join([percent, *parts])
        room = width - len(numbers) - 2
        bar = min(_BAR, room - cell_width(name) - 2)
        if bar < _LEAST_BAR:
            if room < min(cell_width(name), _LEAST_NAME):  # without its name, a number says little
                numbers = percent
                room = width - len(percent) - 2
            return f"{shortened(name, room)}  {numbers}"
        drawn = text.bar(done, total, bar).replace(" ", "░")
        if self._colour:
            drawn = f"\x1b[34m{drawn}\x1b[0m"
        return f"{name}  {drawn}  {numbers}"

    def _parts(self, done: int, total: int, *, has_bar: bool) -> list[str]:
        """Return how much is done, and if they are known the current work, the rate, and the time that is left."""
        parts = [words.portion(done, total)]
        doing = self._doing()
        if doing:
            parts.append(doing)
        rate = self._rate()
        if rate < 1:
            return parts
        if not (doing and has_bar):  # a bar has no room for both
            parts.append(f"{words.size(rate)}/s")
        if done < total:
            parts.append(f"{words.rounded_duration((total - done) / rate)} left")
        return parts

    def _rate(self) -> float:
        """Return the bytes a second of the last while; 0 when that is not known yet."""
        now, samples = time.monotonic(), self._samples
        keep = max(_RATE_SECONDS, 2 * self._every)
        while len(samples) > 1 and now - samples[1][0] > keep:
            samples.popleft()
        (begin, before), done = samples[0], self._before + self._done
        if now - samples[-1][0] > keep / 20:
            samples.append((now, done))
        return (done - before) / (now - begin) if now - begin > 0.2 else 0.0


_at_work: Final[list[Tracker]] = []
"""The one that a signal asks."""
_BEGIN: Final = time.monotonic()


def where() -> str:
    """Return the answer to a signal that asks: where the command at work is. The bar gives way to it."""
    seconds = words.rounded_duration(time.monotonic() - _BEGIN)
    if not _at_work:
        return f"edl-ckpt: at work for {seconds}\n"
    tracker = _at_work[-1]
    return f"{tracker.erasing()}edl-ckpt: {tracker.line()} (at work for {seconds})\n"


def stopping() -> str:
    """Return the answer to Ctrl-C, above the bar; '' where there is no bar."""
    if not (_at_work and _at_work[-1].kind == "bar"):
        return ""
    return f"{_at_work[-1].erasing()}{'finishing' if COMMIT.has_begun else 'stopping'} ...\n"


def kind_of(asked: str, stream: TextIO, *, quiet: bool) -> Kind:
    """Return what `--progress` means on a stream: a bar needs a terminal that can move its cursor."""
    if quiet or asked == "none":
        return "none"
    can_move = stream.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}
    return "bar" if can_move and asked != "lines" else "lines"
