"""What a watch shows: a live view on a terminal that can have one, else each event as a line, of JSON in a pipe."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from edl_ckpt.cli.render import watch as render_watch
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.progress import SilentReporter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from edl_ckpt.core.operations.follow.changes import Limits, Moment, WatchEvent
    from edl_ckpt.core.operations.follow.watch import WatchStep
    from edl_ckpt.core.storage.location import Location

_RATE_SECONDS: Final = 10.0
"""The time over which a rate is measured."""
_EVENTS: Final = 100
_NOTES: Final = 3
_REFRESHES: Final = 2
"""How often a second the view is drawn: a terminal that was resized is right again after half a second."""


@contextmanager
def view(out: Output, location: Location, limits: Limits, *, lines: bool) -> Iterator[LineView | LiveView]:
    """Yield the view that fits stdout; with `lines`, a terminal gets a line for each event too."""
    is_terminal = sys.stdout.isatty() and not out.json
    if not is_terminal or lines or os.environ.get("TERM", "dumb") in {"dumb", "unknown"}:
        yield LineView(out, is_json=not is_terminal)
        return
    live = LiveView(out, location, limits)
    try:
        with live:
            yield live
    finally:
        out.print_human(live.lines(height=_EVENTS))


class LineView(SilentReporter):
    """Prints each event as a line as soon as it is known."""

    def __init__(self, out: Output, *, is_json: bool) -> None:
        self._out = out
        self._is_json = is_json

    def warn(self, text: str) -> None:
        """Warn on stderr."""
        self._out.warn(text)

    def show(self, look: WatchStep, events: Sequence[WatchEvent]) -> None:  # noqa: ARG002 - the protocol has it
        """Print the events."""
        for event in events:
            if self._is_json:
                self._out.print_json(render_watch.document(event), line=True)
            else:
                self._out.print_human(render_watch.human(event))


class LiveView(SilentReporter):
    """Draws the location on the alternate screen of a terminal, which shows what it had before when this ends."""

    def __init__(self, out: Output, location: Location, limits: Limits) -> None:
        from rich.live import Live

        self._console = out.console(moving=True)
        self._title = location.url
        self._limits = limits
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._events: deque[WatchEvent] = deque(maxlen=_EVENTS)
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._sizes: dict[str, deque[tuple[float, int]]] = {}
        self._live = Live(
            console=self._console,
            screen=True,
            refresh_per_second=_REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._drawn,
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def warn(self, text: str) -> None:
        """Show a warning below the versions."""
        with self._lock:
            self._notes.append(text)

    def show(self, look: WatchStep, events: Sequence[WatchEvent]) -> None:
        """Draw a look."""
        moment = look.moment
        with self._lock:
            self._events.extend(events)
            self._moment = moment
            sizes: dict[str, deque[tuple[float, int]]] = {}
            for path, seen in moment.seen.items():
                samples = sizes[path] = self._sizes.get(path) or deque()
                samples.append((moment.tick, seen.version.size_bytes))
                while len(samples) > 2 and moment.tick - samples[0][0] > _RATE_SECONDS:
                    samples.popleft()
            self._sizes = sizes
        self._live.refresh()

    def _rates(self) -> dict[str, float]:
        """Return the bytes a second of each version that grows."""
        rates = {}
        for path, samples in self._sizes.items():
            (begin, small), (end, large) = samples[0], samples[-1]
            if large > small and end > begin:
                rates[path] = (large - small) / (end - begin)
        return rates

    def _drawn(self) -> RenderableType:
        from rich.console import Group

        return Group(*self.lines())

    def lines(self, height: int | None = None) -> list[Text]:
        """Return what is shown, for the terminal as it is now, or for so many lines."""
        width, rows = self._console.size
        with self._lock:
            if self._moment is None:
                return []
            drawn = render_watch.live_human(
                self._moment,
                list(self._events),
                self._rates(),
                limits=self._limits,
                title=self._title,
                notes=list(self._notes),
                width=width,
                height=height or rows,
            )
            return list(drawn)
