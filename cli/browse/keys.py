"""The keys of a screen, once: what they are bound to, the line at the bottom that names them, and the page of help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import Static

from edl_ckpt.cli.folding import cell_width


class Key(NamedTuple):
    """A key: as Textual names it (several with commas), as people do, a word for it, its action, and a sentence."""

    keys: str
    label: str
    word: str
    action: str
    help: str


def bound(keys: Iterable[Key]) -> list[BindingType]:
    """Return the bindings of keys.

    They have priority: the application runs them one after the other, as they come. Without it, a key is passed on to
    the widget that had the focus, and of keys that come at once, from a slow line, the later ones would not see what
    the first ones do.
    """
    return [Binding(key.keys, key.action, key.word, show=False, priority=True) for key in keys if key.keys]


MOVING = (
    ("up down", "the row above, the row below; also k and j"),
    ("PgUp PgDn", "a screen up, a screen down; also space"),
    ("Home End", "the first row, the last row"),
)
"""The keys of every table, and what they do: `Grid` binds them."""


class KeyLine(Static):
    """The keys of a screen in one line: as many as fit, and each can be clicked."""

    DEFAULT_CSS = "KeyLine { height: 1; width: 100%; text-wrap: nowrap; }"

    def __init__(self, keys: Sequence[Key]) -> None:
        super().__init__("", markup=False)
        self._keys = keys
        self._spans: list[tuple[range, Key]] = []

    def on_resize(self) -> None:
        """Show as many as fit now."""
        line, at = Text(no_wrap=True), 0
        self._spans = []
        for key in self._keys:
            width = cell_width(key.label) + 1 + cell_width(key.word)
            if at + width > self.size.width:
                break
            line.append(key.label, "bold").append(f" {key.word}  ", "dim")
            self._spans.append((range(at, at + width), key))
            at += width + 2
        self.update(line)

    async def on_click(self, event: events.Click) -> None:
        """Do what the key under the mouse does."""
        for span, key in self._spans:
            if event.x in span:
                await self.screen.run_action(key.action)
