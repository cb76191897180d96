"""Events as JSON and as lines, and the live view of a location."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli import text
from edl_ckpt.cli.render_list import STATE_STYLES, timestamp
from edl_ckpt.core import words
from edl_ckpt.core.operations.follow.changes import EventKind, Limits, Moment, Seen, WatchEvent, standing

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
_WIDE, _MIDDLE, _NARROW = 79, 67, 56
"""The columns that a terminal needs for bars, for ages, and for rates."""


def document(event: WatchEvent) -> dict[str, Any]:
    """Return `edl-ckpt/watch/1`."""
    version, shard = event.version, event.shard
    return {
        "schema": "edl-ckpt/watch/1",
        "event": event.kind.value,
        "ref": event.ref,
        "at": timestamp(event.at),
        "location": version.location.url,
        "version": version.version,
        "path": version.path,
        "ps_num": version.ps_num,
        "shards": len(version.shards),
        "size_bytes": version.size_bytes,
        "shard": {"ps_id": shard.ps_id, "path": shard.path, "size_bytes": shard.size_bytes} if shard else None,
        "replaced": event.replaced,
        "fingerprint": version.fingerprint or None,
        "why": event.why or None,
    }


def human(event: WatchEvent) -> Iterator[Text]:
    """Yield one line for an event."""
    from rich.text import Text

    line = Text(time.strftime("%H:%M:%S  ", time.localtime(event.at)), "dim")
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
    return f"{_shards(len(version.shards), version.ps_num)} shards, {words.size(version.size_bytes)}{again}"


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
    yield _heading(moment, rates, title)
    room = max(1, height - 2)
    tail = [*(next(iter(human(event))) for event in events), *(_note(note) for note in notes)]
    tail = tail[-max(0, min(len(tail), room // 3)) :] if room >= 6 else []
    rows = sorted(moment.seen.values(), key=lambda seen: (seen.version.version, seen.version.path))
    most = max(1, room - len(tail) - bool(tail) - 1)
    for seen in rows[-most:]:
        yield _row(seen, moment, rates, limits, width)
    if not rows:
        yield _note("no version yet" if moment.exists else "the location does not exist yet")
    if tail:
        yield _note("")
        yield from tail


def _note(note: str) -> Text:
    from rich.text import Text

    return Text(text.escaped(note), "dim")


def _heading(moment: Moment, rates: Mapping[str, float], title: str) -> Text:
    from rich.text import Text

    total = sum(seen.version.size_bytes for seen in moment.seen.values())
    head = Text(text.escaped(title), "bold")
    rate = sum(rates.values())
    speed = f", {words.size(int(rate))}/s" if rate >= 1 else ""
    return head.append(f"  {text.count(len(moment.seen), 'version')}, {words.size(total)}{speed}", "dim")


def _row(seen: Seen, moment: Moment, rates: Mapping[str, float], limits: Limits, width: int) -> Text:
    """Return a version as one line; a narrow terminal gets fewer columns."""
    from rich.text import Text

    version = seen.version
    line = Text(str(version.version).rjust(7))
    line.append(_shards(len(version.shards), version.ps_num).rjust(8))
    if width >= _WIDE:
        line.append("  " + text.bar(len(version.shards), version.ps_num or 0, _BAR), "blue")
    line.append(words.size(version.size_bytes).rjust(11))
    rate = rates.get(version.path, 0.0)
    if width >= _NARROW:
        line.append((f"{words.size(int(rate))}/s" if rate >= 1 else "").rjust(13))
    if width >= _MIDDLE:
        line.append((text.age(moment.at - version.modified) if version.modified else "").rjust(11), "dim")
    state = standing(seen, moment.tick, limits)
    line.append(f"  {state}", _STYLES[state])
    if version.fingerprint:
        line.append(" sealed", "dim")
    return line
