"""The keys of screens, and the line that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import Static

MOVING = (
    ("up down", "the row above, the row below; also k and j"),
    ("PgUp PgDn", "a screen up, a screen down; also space"),
    ("Home End", "the first row, the last row"),
    ("< > R", "sort by the column before, by the next one; the other way round"),
    ("mouse", "click a row, a heading to sort by it, a tab or a key; the wheel scrolls"),
)
"""The keys of every table, and what they do: `Grid` binds them, and has the mouse."""


class ScreenKey(NamedTuple):
    """A key: as Textual names it (several with commas), as people do, a word for it, its action, and a sentence."""

    keys: str
    label: str
    word: str
    action: str
    help: str


VERIFY = ScreenKey("v", "v", "verify", "verify", "check the version in the background: headers, ids, or every value")
DIFF = ScreenKey("d", "d", "diff", "diff", "compare the version with another one")


def bound(keys: Iterable[ScreenKey]) -> list[BindingType]:
    """Return the bindings of keys.

    They have priority: the application runs them one after the other, as they come. Without it, a key is passed on to
    the widget that had the focus, and of keys that come at once, from a slow line, the later ones would not see what
    the first ones do.
    """
    return [Binding(key.keys, key.action, key.word, show=False, priority=True) for key in keys if key.keys]


class ActionLine(Static):
    """Words in one line, each of which does something when it is clicked."""

    DEFAULT_CSS = "ActionLine { height: 1; width: 100%; text-wrap: nowrap; }"

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._spans: list[tuple[range, str]] = []

    def draw(self, parts: Iterable[tuple[Text, str]], gap: str) -> None:
        """Show texts with a gap after each; a click on one runs its action."""
        line, begin = Text(no_wrap=True), 0
        self._spans = []
        for part, action in parts:
            line.append_text(part).append(gap)
            self._spans.append((range(begin, begin + part.cell_len), action))
            begin += part.cell_len + len(gap)
        self.update(line)

    async def on_click(self, event: events.Click) -> None:
        """Do what the words under the mouse do."""
        for span, action in self._spans:
            if event.x in span:
                await self.screen.run_action(action)


class KeyLine(ActionLine):
    """The keys of a screen in one line: as many as fit."""

    def __init__(self, keys: Sequence[ScreenKey]) -> None:
        super().__init__()
        self._keys = keys

    def on_resize(self) -> None:
        """Show as many as fit now."""
        parts = [(Text.assemble((key.label, "bold"), (f" {key.word}", "dim")), key.action) for key in self._keys]
        ends = accumulate(part.cell_len + 2 for part, _ in parts)
        self.draw([part for part, end in zip(parts, ends, strict=True) if end - 2 <= self.size.width], "  ")
