"""Pages of text: the keys of the screen below it; and sentences, such as warnings and what is too long for a line."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from edl_ckpt.cli.browse.keys import MOVING
from edl_ckpt.cli.browse.page import BACK, QUIT, BrowserPage
from edl_ckpt.cli.terminal.folding import fold
from edl_ckpt.cli.terminal.tables import Cell, Column, Table


class TextPage(BrowserPage):
    """Lines of text that scroll."""

    AUTO_FOCUS = "VerticalScroll"
    keys = (BACK, QUIT)

    def __init__(self, title: str) -> None:
        super().__init__()
        self._heading = title

    def body(self) -> Iterable[Widget]:
        """Return the text in place of a table."""
        yield VerticalScroll(Static("", id="text", markup=False))

    def title_parts(self) -> tuple[str, str]:
        """Return the title."""
        return self._heading, ""

    def lines(self, width: int) -> Iterable[Text]:
        """Return the lines for a window of this width."""
        raise NotImplementedError

    def on_resize(self) -> None:
        """Fold the text anew for the window as it is; Textual calls the handler of each class."""
        width = max(self.app.size.width - 2, 20)
        self.query_one("#text", Static).update(Text("\n").join(self.lines(width)))


class HelpPage(TextPage):
    """The keys of the screen that was there."""

    def __init__(self, page: BrowserPage) -> None:
        super().__init__("Keys")
        self._page = page

    def lines(self, width: int) -> Iterable[Text]:
        """Return a table of keys."""
        place, known = map(self.shown, self._page.title_parts())
        for words, style in ((place, "bold"), (known, ""), ("", ""), (self._page.about, ""), ("", "")):
            yield from (Text(line, style) for line in fold(words, width))
        rows = [*((key.label, key.help) for key in self._page.keys), *MOVING]
        columns = Column("key", "name", title=""), Column("help", "prose", title="")
        table = Table(*columns, rows=((Cell(label, "bold"), words) for label, words in rows), indent=0)
        for line in table.lines(width):
            yield Text.assemble(*((self.shown(cell.text), cell.style) for cell in line))
        yield Text("")
        yield Text("Nothing is changed without a question.", "dim")


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
