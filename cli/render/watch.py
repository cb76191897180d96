"""Events as JSON and as lines, and the live view of a location."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.listing import STATE_STYLES, timestamp
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked
from edl_ckpt.cli.terminal.lines import head, styled
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column, Table, folded
from edl_ckpt.core.base import words
from edl_ckpt.core.operations.follow.changes import EventKind, Limits, Moment, WatchEvent, standing

if TYPE_CHECKING:
    from rich.text import Text

_STYLES: Final = {state.value: style for state, style in STATE_STYLES.items()} | {"stalled": "yellow", "corrupt": "red"}
_EVENT_STYLES: Final = {
    EventKind.COMPLETE: "green",
    EventKind.SEALED: "green",
    EventKind.STALLED: "yellow",
    EventKind.CORRUPT: "red",
    EventKind.DELETED: "dim",
}
_BAR: Final = 10


def document(event: WatchEvent) -> dict[str, Any]:
    """Return `edl-ckpt/watch/1`."""
    version, shard = event.version, event.shard
    return document_of(
        "watch",
        event,
        "event ref at location version path ps_num shards size_bytes shard replaced fingerprint? why?",
        event=event.kind.value,
        at=timestamp(event.at),
        location=version.location.url,
        **picked(version, "version path ps_num shards size_bytes fingerprint", shards=len(version.shards)),
        shard=shard and picked(shard, "ps_id path size_bytes"),
    )


def human(event: WatchEvent) -> Iterator[Text]:
    """Yield one line for an event."""
    line = styled(time.strftime("%H:%M:%S  ", time.localtime(event.at)), "dim")
    line.append(event.kind.value.ljust(14), _EVENT_STYLES.get(event.kind, ""))
    line.append(text.escaped(event.ref))
    line.append(f"  {_detail(event)}", "dim")
    yield line


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


def live_human(
    moment: Moment,
    events: Sequence[WatchEvent],
    rates: Mapping[str, float],
    *,
    limits: Limits,
    title: str,
    notes: Sequence[str] = (),
    width: int = 80,
    height: int = 24,
) -> Iterator[Text]:
    """Yield the lines of the live view: the newest versions, then the last events and warnings, as many as fit.

    `rates` are bytes a second by the paths of versions. No line is wider than the terminal.
    """
    heading = folded(_heading(moment, rates, title), width)
    yield from heading
    room = max(1, height - 1 - len(heading))
    news = [*(next(iter(human(event))) for event in events), *(_note(note) for note in notes)]
    most = min(len(news), room // 3) if room >= 6 else 0
    tail = [part for line in news[len(news) - most :] for part in folded(line, width)]
    tail = tail[len(tail) - min(len(tail), room // 3) :]
    lines = [styled().append_tokens(line) for line in _table(moment, rates, limits).lines(width, blocks=False)]
    yield from lines[-max(1, room - len(tail) - bool(tail) - 1) :]
    if not moment.seen:
        yield _note("no version yet" if moment.exists else "the location does not exist yet")
    if tail:
        yield _note("")
        yield from tail


def _note(note: str) -> Text:
    return styled(text.escaped(note), "dim")


def _heading(moment: Moment, rates: Mapping[str, float], title: str) -> Text:
    total = sum(seen.version.size_bytes for seen in moment.seen.values())
    rate = sum(rates.values())
    speed = f", {words.size(int(rate))}/s" if rate >= 1 else ""
    return head(title, f"{text.count(len(moment.seen), 'version')}, {words.size(total)}{speed}")


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
            str(version.version).rjust(7),
            _shards(len(version.shards), version.ps_num).rjust(6),
            Bar(len(version.shards), version.ps_num or 0, _BAR),
            words.size(version.size_bytes).rjust(9),
            (f"{words.size(int(rate))}/s" if rate >= 1 else "").rjust(11 if rates else 0),
            Cell((text.age(moment.at - version.modified) if version.modified else "").rjust(9), "dim"),
            Cell(state.ljust(10), _STYLES[state]),
            Cell("sealed" if version.fingerprint else "", "dim"),
        )
    return table
