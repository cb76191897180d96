"""A page of sentences: warnings, and whatever is too long for the line above the keys."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from edl_ckpt.cli.browse.help import TextPage
from edl_ckpt.cli.terminal.folding import fold


class NotesPage(TextPage):
    """Sentences, one below the other."""

    def __init__(self, title: str, notes: Iterable[str]) -> None:
        super().__init__(title)
        self._notes = list(notes)

    def lines(self, width: int) -> Iterable[Text]:
        """Return the sentences, each folded, with an empty line between them."""
        for note in self._notes or ["nothing to say"]:
            yield from (Text(line) for line in fold(self.shown(note), width))
            yield Text("")
