"""Lines and tables that fit the window: what does not fit gives way in a known order, and no number is ever cut.

A column says what it has. Bars and histograms give way first. Then names fold at separators, and prose at spaces. Then
columns are left out, those of least worth first, and a line names them. Below 60 columns, and wherever even that does
not fit, each row becomes a block of lines. A pipe has no width, so nothing there is folded or left out. A line imports
rich only when it is made: a document and the help need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.folding import breaks, cell_width, fold, padded
from edl_ckpt.cli.terminal.window import encodable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text


MOST_ROWS: Final = 2000
"""Rows of a table that a terminal gets, unless all are wanted; a pipe gets all."""
PIPE: Final = "a pipe gets them too, such as `| less`"
_BLOCKS_BELOW: Final = 60
_INDENT: Final = 2
GAP: Final = 2
_NAME, _PROSE, _TITLE, _BAR = 20, 24, 10, 4
"""The least widths of names, of prose, of the titles above numbers, and of bars."""
_FOLDS: Final = 4
"""A name that needs more lines than this loses its middle."""
Kind = Literal["number", "word", "name", "prose", "bar"]


class Column(NamedTuple):
    """What a column has, and how long it stays when there is no room.

    A number or a word is never cut, a name folds at separators, prose at spaces, and a bar shrinks. `title` stands in
    the place of the name above the column; '' shows none.
    """

    name: str
    kind: Kind = "word"
    worth: int = 5
    title: str | None = None

    @property
    def heading(self) -> str:
        """Return what stands above the column."""
        return self.name if self.title is None else self.title


class Cell(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


class Bar(NamedTuple):
    """A bar for a value, as wide as its column where it is the largest."""

    value: float
    largest: float
    width: int = 10
    style: str = "blue"

    def drawn(self, width: int) -> Cell:
        """Return the bar for a column of this width."""
        return Cell(text.bar(self.value, self.largest, min(width, self.width)), self.style)


class Histogram(NamedTuple):
    """A character for each value; in a narrow column one for the mean of several."""

    values: Sequence[int]
    style: str = "blue"

    @property
    def width(self) -> int:
        """Return the width at which each value has a character, up to 32."""
        return min(len(self.values), 32)

    def drawn(self, width: int) -> Cell:
        """Return the histogram for a column of this width."""
        count, values = len(self.values), self.values
        bins = min(width, count)
        cuts = [i * count // bins for i in range(bins + 1)] if bins else [0]
        means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
        return Cell(text.histogram(means), self.style)


_Drawable = Cell | Bar | Histogram
Content = str | Cell | tuple[str, str] | Bar | Histogram
Line = list[Cell]
Lines = Iterator["RenderableType"]
"""What a renderer yields, from top to bottom: lines and tables."""


class Table:
    """Rows of cells in columns; the first column is the key of a row, and is never left out."""

    def __init__(
        self, *columns: Column, rows: Iterable[Iterable[Content]] = (), indent: int = _INDENT, whole: bool = False
    ) -> None:
        self.columns = tuple(
            c._replace(name=text.escaped(c.name), title=c.title and text.escaped(c.title)) for c in columns
        )
        self._indent, self._is_whole = indent, whole
        self.rows: list[list[_Drawable]] = []
        for cells in rows:
            self.add(*cells)

    def add(self, *cells: Content) -> None:
        """Add a row with a cell for each column; texts are escaped."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append([cell_of(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        styles = lru_cache(console.get_style)
        most = MOST_ROWS if console.is_terminal and not self._is_whole else None
        for line in self.lines(options.max_width, most=most):
            yield from Segment.simplify(Segment(cell.text, styles(cell.style)) for cell in line)
            yield Segment.line()

    def lines(self, width: int, *, blocks: bool = True, most: int | None = None) -> Iterator[Line]:
        """Yield the lines for a window of this width, in cells that stand side by side.

        An empty line follows a table that has headings, and blocks.
        Without `blocks`, each row stays one line if that is at all possible. Of more rows than `most`, the first are
        shown, and a line says how many others there are.
        """
        if most is not None and len(self.rows) > most:
            first = Table(indent=self._indent)
            first.columns, first.rows = self.columns, self.rows[:most]
            yield from first.lines(width, blocks=blocks)
            others = text.count(len(self.rows) - most, "more row")
            yield from ([Cell(part, "dim")] for part in fold(f"  and {others}; {PIPE}", width))
            return
        layout = Fit.of(self.columns, self.rows, width - self._indent, narrow=blocks and width < _BLOCKS_BELOW)
        if layout is None:
            yield from self._blocks(width)
            yield []
            return
        yield from self._grid(layout)
        if layout.left_out:
            names = ", ".join(self.columns[c].name for c in layout.left_out)
            margin = " " * self._indent
            yield from ([Cell(margin + part, "dim")] for part in fold(f"left out at this width: {names}", layout.room))
        if any(column.heading for column in self.columns):
            yield []

    def _grid(self, layout: Fit) -> Iterator[Line]:
        shown = [(self.columns[c], layout.widths[c], c) for c in layout.shown]
        margin = " " * self._indent
        titles = [_folded(Cell(column.heading, "dim"), column, width) for column, width, _ in shown]
        if any(cells[0].text for cells in titles):
            height = max(map(len, titles))
            for cells in _levels([[Cell("")] * (height - len(t)) + t for t in titles]):
                yield side_by_side(cells, shown, margin)
            *inner, (last, width, _) = shown
            width = min(width, cell_width(last.heading)) if last.kind == "prose" else width
            ruled = [width for _, width, _ in inner] + [width] * (width > 0)
            yield [Cell(margin + "─" * (sum(ruled) + GAP * (len(ruled) - 1)), "dim")]
        fits = all(layout.is_plain[c] and (width >= layout.wants[c] or col.kind == "bar") for col, width, c in shown)
        for row in self.rows:
            if fits:  # no cell is folded: three times as fast, for tables of many rows
                lines = [[_drawn(row[c], width) for _, width, c in shown]]
            else:
                lines = list(_levels([_folded(row[c], column, width) for column, width, c in shown]))
            yield from (side_by_side(cells, shown, margin) for cells in lines)

    def _blocks(self, width: int) -> Iterator[Line]:
        """Yield a block for each row: a line for each cell that is not empty, with the name of its column."""
        labelled = [cell_width(c.name) for c in self.columns if c.kind != "prose" or c.heading]
        label = min(max(labelled, default=0), width // 2 - GAP)
        for number, row in enumerate(self.rows):
            if number:
                yield []
            for position, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
                yield from self._entry(column, cell, width, label, is_key=position == 0)

    def _entry(self, column: Column, cell: _Drawable, width: int, label: int, *, is_key: bool) -> Iterator[Line]:
        """Yield the lines of one cell in a block."""
        margin = " " * self._indent
        name = column.name
        if not isinstance(cell, Cell):
            if not column.heading:
                return
            cell = cell.drawn(min(cell.width, width - self._indent - label - GAP))
        if not cell.text.strip():
            return
        if column.kind == "prose" and not column.heading:
            yield from ([Cell(margin + part, cell.style)] for part in fold(cell.text, width - self._indent))
            return
        style = cell.style or ("bold" if is_key else "")
        room = width - self._indent - label - GAP
        if cell_width(name) <= label and (column.kind in {"name", "prose"} or cell_width(cell.text) <= room):
            parts = fold(cell.text, room)
            heads = [padded(name, label), *[" " * label] * (len(parts) - 1)]
            for head, part in zip(heads, parts, strict=True):
                yield [Cell(margin + head + " " * GAP, "dim"), Cell(part, style)]
            return
        yield from ([Cell(margin + part, "dim")] for part in fold(name, width - self._indent))
        inner = margin + " " * GAP
        yield from ([Cell(inner + part, style)] for part in fold(cell.text, width - len(inner)))


class Fit(NamedTuple):
    """The columns that are shown, by their positions, with their widths; and those that are left out.

    `wants` are the widths at which nothing folds; a plain column has ASCII alone, where each character is as wide.
    """

    shown: tuple[int, ...]
    widths: dict[int, int]
    left_out: tuple[int, ...]
    room: int
    wants: dict[int, int]
    is_plain: dict[int, bool]

    @staticmethod
    def of(columns: Sequence[Column], rows: Sequence[Sequence[_Drawable]], room: int, *, narrow: bool) -> Fit | None:
        """Return how a table fits; None when each row must be a block.

        In a narrow window it fits only with all of its columns, and with names that are whole.
        """
        wants, leasts, is_plain = _widths(columns, rows)
        if narrow:
            leasts = {c: leasts[c] if columns[c].kind in {"bar", "prose"} else wants[c] for c in wants}
        bars = [c for c in wants if columns[c].kind == "bar"]
        shown = [c for c in wants if c not in bars]
        left_out = _left_out(columns, leasts, shown, room)
        shown = [c for c in shown if c not in left_out]
        if (narrow and left_out) or _total(leasts, shown) > room:
            return None
        widths = {c: leasts[c] for c in shown}
        plain = {c: min(wants[c], _PROSE) if columns[c].kind == "prose" else wants[c] for c in wants}
        plain_with_bars = plain | {c: leasts[c] for c in bars}
        if bars and not left_out and _total(plain_with_bars, [*shown, *bars]) <= room:
            shown = sorted([*shown, *bars])
            widths = {c: plain_with_bars[c] for c in shown}
            _share(widths, {c: wants[c] for c in bars}, room)
        else:
            left_out += [c for c in bars if columns[c].heading]
            _share(widths, plain, room)
        _share(widths, wants, room)
        return Fit(tuple(shown), widths, tuple(sorted(left_out)), room, wants, is_plain)


def _left_out(columns: Sequence[Column], leasts: dict[int, int], every: Sequence[int], room: int) -> list[int]:
    """Return the columns that have no room, the least worth first; the first column always stays."""
    shown = list(every)
    left_out: list[int] = []
    for c in sorted(every[1:], key=lambda c: (columns[c].worth, -c)):
        if _total(leasts, shown) <= room:
            break
        shown.remove(c)
        left_out.append(c)
    for c in reversed(left_out.copy()):  # one that was left out for a wide column may fit when that is left out too
        if _total(leasts, [*shown, c]) <= room:
            shown.append(c)
            left_out.remove(c)
    return left_out


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[_Drawable]]
) -> tuple[dict[int, int], dict[int, int], dict[int, bool]]:
    """Return the widths that columns want, and the least that they can have, without columns that are all empty.

    The third says which columns are plain.
    """
    wants = {}
    leasts = {}
    is_plain = {}
    for c, column in enumerate(columns):
        title = cell_width(column.heading)
        cells = [row[c] for row in rows]
        texts = [cell.text for cell in cells if isinstance(cell, Cell)]
        is_plain[c] = "".join(texts).isascii()
        content = max(map(len if is_plain[c] else cell_width, texts), default=0)
        content = max([content, *(cell.width for cell in cells if not isinstance(cell, Cell))])
        if not content and c:
            continue
        least = {"name": min(content, _NAME), "prose": min(content, _PROSE), "bar": min(content, _BAR)}
        wants[c] = max(content, title)
        leasts[c] = max(least.get(column.kind, content), min(title, _TITLE))
    return wants, leasts, is_plain


def _total(widths: dict[int, int], shown: Sequence[int]) -> int:
    return sum(widths[c] for c in shown) + GAP * max(0, len(shown) - 1)


def _share(widths: dict[int, int], wants: dict[int, int], room: int) -> None:
    """Widen columns up to what they want while there is room, all of them alike."""
    left = room - _total(widths, list(widths))
    while left > 0 and (short := [c for c in widths if c in wants and widths[c] < wants[c]]):
        step = max(1, min(left // len(short), *(wants[c] - widths[c] for c in short)))
        for c in sorted(short, key=widths.__getitem__)[: max(1, left // step)]:
            widths[c] += step
        left = room - _total(widths, list(widths))


def cell_of(content: Content) -> _Drawable:
    """Return what stands in a cell: a drawing, or a text, which is escaped."""
    if isinstance(content, str):
        return _plain_cell(content)
    if isinstance(content, Bar | Histogram):
        return content
    found, style = content
    return Cell(text.escaped(found), style)


@lru_cache(maxsize=1024)
def _plain_cell(content: str) -> Cell:
    return Cell(text.escaped(content))


def _drawn(cell: _Drawable, width: int) -> Cell:
    return cell if isinstance(cell, Cell) else cell.drawn(width)


def _folded(cell: _Drawable, column: Column, width: int) -> list[Cell]:
    """Return the lines of a cell in a column of this width."""
    if not isinstance(cell, Cell) or cell_width(cell.text) <= width:
        return [_drawn(cell, width)]
    parts = fold(cell.text, width)
    if column.kind == "name" and len(parts) > _FOLDS:
        parts[_FOLDS // 2 : -(_FOLDS // 2) + 1] = ["..."]
    return [Cell(part, cell.style) for part in parts]


def side_by_side(cells: Iterable[Cell], shown: Sequence[tuple[Column, int, int]], margin: str = "") -> Line:
    """Return cells in one line, each as wide as its column."""
    line: Line = [Cell(margin)] if margin else []
    for position, (cell, (column, width, _)) in enumerate(zip(cells, shown, strict=True)):
        gap = " " * GAP if position < len(shown) - 1 else ""
        line.append(Cell(padded(cell.text, width, right=column.kind == "number") + gap, cell.style))
    return line


def _levels(cells: Sequence[Sequence[Cell]]) -> Iterator[list[Cell]]:
    """Yield the cells of each line of a row whose cells are folded."""
    for level in range(max(map(len, cells))):
        yield [parts[level] if level < len(parts) else Cell("") for parts in cells]


def styled(words: str = "", style: str = "") -> Text:
    """Return a line in a style of rich, such as 'dim' or 'bold red'."""
    from rich.text import Text

    return Text(words, style)


def head(name: str, about: str = "", style: str = "dim") -> Text:
    """Return the line above a result: its name, escaped and bold, and what there is to say about it."""
    return styled(text.escaped(name), "bold").append(f"  {about}" if about else "", style)


def draw(items: Iterable[RenderableType], console: Console, *, charset: str = "utf-8") -> None:
    """Print what a renderer made, folded to the width of the console, in the characters of an encoding."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for item in items if charset.lower().startswith("utf") else _encoded(items, console, charset):
        if isinstance(item, str | Text | Fitted):
            parts += folded(item, console.width)
        else:
            parts.append(item)
    console.print(*parts, sep="\n", soft_wrap=True)


def _encoded(items: Iterable[RenderableType], console: Console, charset: str) -> Iterator[RenderableType]:
    """Yield the same with the characters that an encoding has; before the layout, as escape sequences are wider."""
    from rich.text import Text

    for item in items:
        if isinstance(item, Table):
            item.rows = [[_encodable(cell, charset) for cell in row] for row in item.rows]
            yield item
        elif isinstance(item, Text):
            yield Text.assemble(*((encodable(part.text, charset), part.style or "") for part in item.render(console)))
        else:
            yield encodable(item, charset) if isinstance(item, str) else item


def _encodable(cell: _Drawable, charset: str) -> _Drawable:
    return Cell(encodable(cell.text, charset), cell.style) if isinstance(cell, Cell) else cell


def folded(item: str | Text | Fitted, width: int) -> list[Text]:
    """Return styled text in lines of at most this width, as `fold` does it."""
    from rich.text import Text

    made = item.make(width) if isinstance(item, Fitted) else item
    whole = Text(made) if isinstance(made, str) else made
    if "\n" in whole.plain:
        return [part for line in whole.split("\n", allow_blank=True) for part in folded(line, width)]
    if cell_width(whole.plain) <= width:
        return [whole]
    indent, starts = breaks(whole.plain, width)
    first, *rest = whole.divide(starts[1:])
    lines = [first, *(Text(" " * indent).append_text(part) for part in rest)]
    for part in lines:
        part.rstrip()
    return lines


class Fitted(NamedTuple):
    """A text that is made for the width that there is."""

    make: Callable[[int], str | Text]
    """Called with the width; returns the text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield from folded(self, options.max_width)


def beside(head: Text, drawn: Bar | Histogram) -> Fitted:
    """Return a text with a drawing behind it, which gets a line of its own where it does not fit."""

    def make(width: int) -> Text:
        cell = drawn.drawn(min(drawn.width, width - _INDENT))
        fits = cell_width(head.plain) + GAP + cell_width(cell.text) <= width
        return head.copy().append(" " * GAP if fits else "\n" + " " * _INDENT).append(*cell)

    return Fitted(make)
