"""What a wait and a watch show: a document at the end, or events as they come.

A terminal that can have one gets a live view, else each event is a line, of JSON in a pipe.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.listing import STATE_STYLES, timestamp
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column, Table, folded, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.base.progress import SilentReporter
from edl_ckpt.core.operations.follow.observe import EventKind, Limits, Moment, WatchEvent, standing

if TYPE_CHECKING:
    from rich.text import Text

    from edl_ckpt.core.operations.follow.wait import WaitResult
    from edl_ckpt.core.operations.follow.watch import WatchStep
    from edl_ckpt.core.storage.location import Location


def wait_document(result: WaitResult) -> dict[str, Any]:
    """Return `edl-ckpt/wait/1`."""
    none: dict[str, Any] = {"ref": None, "version": None, "path": None, "metrics": {}}
    return document_of(
        "wait",
        result,
        "ref version state waited_seconds location path metrics why? unfinished",
        **(picked(result.version, " ".join(none), version=result.version.number) if result.version else none),
        state=result.outcome.value,
        waited_seconds=round(result.waited_seconds, 3),
        location=result.location.url,
        unfinished=[
            picked(u.version, "ref version why", version=u.version.number, why=u.why) for u in result.unfinished
        ],
    )


_STYLES: Final = dict(STATE_STYLES) | {"stalled": "yellow", "corrupt": "red"}
_EVENT_STYLES: Final = {
    EventKind.COMPLETE: "green",
    EventKind.SEALED: "green",
    EventKind.STALLED: "yellow",
    EventKind.CORRUPT: "red",
    EventKind.DELETED: "dim",
}
_BAR: Final = 10
_RATE_SECONDS: Final = 10.0
"""The time over which a rate is measured."""
_EVENTS: Final = 100
_NOTES: Final = 3
_REFRESHES: Final = 2
"""How often a second the view is drawn: a terminal that was resized is right again after half a second."""


def event_document(event: WatchEvent) -> dict[str, Any]:
    """Return `edl-ckpt/watch/1`."""
    version, shard = event.version, event.shard
    return document_of(
        "watch",
        event,
        "event ref at location version path ps_num shards size_bytes shard replaced fingerprint? why?",
        event=event.kind.value,
        at=timestamp(event.at),
        location=version.location.url,
        **picked(
            version,
            "version path ps_num shards size_bytes fingerprint",
            version=version.number,
            shards=len(version.shards),
        ),
        shard=shard and picked(shard, "ps_id path size_bytes"),
    )


def event_human(event: WatchEvent) -> Text:
    """Return the line of an event."""
    line = styled(time.strftime("%H:%M:%S  ", time.localtime(event.at)), "dim")
    line.append(event.kind.value.ljust(14), _EVENT_STYLES.get(event.kind, ""))
    line.append(text.escaped(event.ref))
    return line.append(f"  {_detail(event)}", "dim")


def _detail(event: WatchEvent) -> str:
    version, shard = event.version, event.shard
    again = ", written again" if event.replaced else ""
    if event.why:
        return text.escaped(event.why)
    if shard is not None:
        return f"shard {shard.ps_id} of {shard.ps_num}, {words.size(shard.size_bytes)}{again}"
    arrived = f"{_shards(len(version.shards), version.ps_num)} {words.plural(version.ps_num or 0, 'shard')}"
    return f"{arrived}, {words.size(version.size_bytes)}{again}"


def _shards(arrived: int, ps_num: int | None) -> str:
    return f"{arrived}/{'?' if ps_num is None else ps_num}"


def _note(note: str) -> Text:
    return styled(text.escaped(note), "dim")


def _table(moment: Moment, rates: Mapping[str, float], limits: Limits) -> Table:
    """Return a row for each version, the newest last; cells are padded, so that columns stay where they are."""
    table = Table(
        Column("version", "number", title=""),
        Column("shards", "number", worth=8, title=""),
        Column("bar", "bar", title=""),
        Column("size", "number", worth=6, title=""),
        Column("rate", "number", worth=5, title=""),
        Column("age", "number", worth=4, title=""),
        Column("state", worth=9, title=""),
        Column("sealed", worth=3, title=""),
        indent=0,
    )
    for seen in sorted(moment.seen.values(), key=lambda seen: (seen.version.version, seen.version.path)):
        version = seen.version
        rate = rates.get(version.path, 0.0)
        state = standing(seen, moment.tick, limits)
        table.add(
            text.escaped(str(version.key)).rjust(7),
            _shards(len(version.shards), version.ps_num).rjust(6),
            Bar(len(version.shards), version.ps_num or 0, _BAR),
            words.size(version.size_bytes).rjust(9),
            (f"{words.size(int(rate))}/s" if rate >= 1 else "").rjust(11 if rates else 0),
            Cell((text.age(moment.at - version.modified) if version.modified else "").rjust(9), "dim"),
            Cell(state.ljust(10), _STYLES[state]),
            Cell("sealed" if version.fingerprint else "", "dim"),
        )
    return table


@contextmanager
def view(out: Output, location: Location, limits: Limits, *, lines: bool) -> Iterator[LineView | LiveView]:
    """Yield the view that fits stdout; with `lines`, a terminal gets a line for each event too."""
    is_terminal = sys.stdout.isatty() and not out.json
    if not is_terminal or lines or os.environ.get("TERM", "dumb") in {"dumb", "unknown"}:
        yield LineView(out, is_json=not is_terminal)
        return
    live = LiveView(out, location, limits)
    try:
        live.screen.start(refresh=True)
        yield live
    finally:
        live.screen.stop()
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
                self._out.print_json(event_document(event), line=True)
            else:
                self._out.print_human([event_human(event)])


class LiveView(SilentReporter):
    """Draws the location on the alternate screen of a terminal, which shows what it had before when this ends."""

    def __init__(self, out: Output, location: Location, limits: Limits) -> None:
        from rich.console import Group
        from rich.live import Live

        self._console = out.console(moving=True)
        self._title = location.url
        self._limits = limits
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._events: deque[WatchEvent] = deque(maxlen=_EVENTS)
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._sizes: dict[str, deque[tuple[float, int]]] = {}
        self.screen = Live(
            console=self._console,
            screen=True,
            refresh_per_second=_REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=lambda: Group(*self.lines()),
        )

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
        self.screen.refresh()

    def _rates(self) -> dict[str, float]:
        """Return the bytes a second of each version that grows."""
        rates = {}
        for path, samples in self._sizes.items():
            (begin, small), (end, large) = samples[0], samples[-1]
            if large > small and end > begin:
                rates[path] = (large - small) / (end - begin)
        return rates

    def lines(self, height: int | None = None) -> list[Text]:
        """Return what is shown, for the terminal as it is now, or for so many lines; none is wider than the terminal.

        Those are the newest versions, then the last events and warnings, as many as fit.
        """
        width, rows = self._console.size
        with self._lock:
            if (moment := self._moment) is None:
                return []
            rates, news = self._rates(), [*map(event_human, self._events), *map(_note, self._notes)]
        total, rate = sum(seen.version.size_bytes for seen in moment.seen.values()), sum(rates.values())
        speed = f", {words.size(int(rate))}/s" if rate >= 1 else ""
        about = f"{text.count(len(moment.seen), 'version')}, {words.size(total)}{speed}"
        heading = folded(head(self._title, about), width)
        room = max(1, (height or rows) - 1 - len(heading))
        most = min(len(news), room // 3) if room >= 6 else 0
        tail = [part for line in news[len(news) - most :] for part in folded(line, width)]
        tail = tail[len(tail) - min(len(tail), room // 3) :]
        table = _table(moment, rates, self._limits).lines(width, blocks=False)
        lines = [styled().append_tokens(line) for line in table][-max(1, room - len(tail) - bool(tail) - 1) :]
        if not moment.seen:
            lines.append(_note("no version yet" if moment.exists else "the location does not exist yet"))
        return [*heading, *lines, *([_note("")] if tail else []), *tail]
