"""A table on the screen: only the rows that are seen are made, so that any number of them can be looked through.

The columns are laid out as those of all other tables (`tables.py`): bars give way first, then columns of lesser worth,
and no number is cut. `details` shows what gave way in the row under the cursor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Final, cast

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.folding import cell_width, fold, shortened
from edl_ckpt.cli.terminal.tables import GAP, Cell, Column, Fit, cell_of, side_by_side

_MORE: Final = " ..."
_MOST_WIDEST: Final = 400
"""A name that is wider than any window need not widen its column further."""
Content = Any
"""A text, a (text, style), or a drawing (`Bar`, `Histogram`, `Numbers`)."""
_ATTRIBUTES: Final = {"size": "size_bytes", "age": "modified"}
"""Columns that are sorted by what they stand for, not by the words in them."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers side by side: as many whole ones as fit, and how many more there are."""

    texts: Sequence[str]
    total: int

    @property
    def width(self) -> int:
        """Return the width at which all of them are shown."""
        return len(self._line(len(self.texts)))

    def _line(self, count: int) -> str:
        more = self.total - count
        return " ".join([*self.texts[:count], *([f" ... {text.count(more)} more"] if more else [])])

    def drawn(self, width: int) -> Cell:
        """Return as many as fit."""
        count = len(self.texts)
        while count > 0 and len(self._line(count)) > width:
            count -= 1
        return Cell(self._line(count))


class GridRows:
    """What a grid shows. Subclasses make a row when it is asked for."""

    columns: tuple[Column, ...] = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def row(self, index: int) -> Sequence[Content] | None:
        """Return the cells of a row; None while they are being read."""
        raise NotImplementedError


class ItemRows(GridRows):
    """Rows made from items in memory."""

    def __init__(
        self, columns: Sequence[Column], items: Sequence[Any], make: Callable[[Any], Sequence[Content]]
    ) -> None:
        self.columns, self.items, self._make = tuple(columns), items, make

    def __len__(self) -> int:
        return len(self.items)

    def row(self, index: int) -> Sequence[Content]:
        """Make the row of an item."""
        return self._make(self.items[index])

    def sorted(self, column: int, backwards: bool, arrow: str) -> tuple[ItemRows, list[int]]:
        """Return these rows in the order of a column, which an arrow marks, and where each of them was.

        Rows without a value come last in either order.
        """
        name = self.columns[column].name
        values = [(_value(item, name, cell_of(self.row(i)[column])), i) for i, item in enumerate(self.items)]
        order = [i for _, i in sorted((pair for pair in values if pair[0]), key=itemgetter(0), reverse=backwards)]
        order += [i for value, i in values if value is None]
        made = copy(self)
        made.items = [self.items[i] for i in order]
        title = f"{self.columns[column].heading} {arrow}"
        made.columns = tuple(c._replace(title=title) if i == column else c for i, c in enumerate(self.columns))
        return made, order


def _value(item: Any, name: str, cell: Any) -> tuple[int, Any] | None:
    """Return what a row is sorted by: the number that its column stands for, else the words there."""
    value = getattr(item, _ATTRIBUTES.get(name, name), getattr(item, "metrics", {}).get(name))
    words = cell.text.casefold().strip() if isinstance(cell, Cell) else ""
    if not isinstance(value, int | float):
        with suppress(ValueError):
            value = float(words.partition("/")[0].replace(",", ""))
    if isinstance(value, int | float):
        if math.isnan(value) or not words:
            return None
        return (0, -value if name == "age" else value)
    return (1, words) if words else None


class Grid(ScrollView, can_focus=True):
    """Rows with a cursor, a heading that stays, and the mouse."""

    DEFAULT_CSS = """
    Grid { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size: 1 1; }
    Grid.-plain { scrollbar-size: 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, priority=True),
        Binding("down,j", "move(1)", "Down", show=False, priority=True),
        Binding("pageup,ctrl+b", "page(-1)", "A page up", show=False, priority=True),
        Binding("pagedown,ctrl+f,space", "page(1)", "A page down", show=False, priority=True),
        Binding("home", "first", "The first row", show=False, priority=True),
        Binding("end,G", "last", "The last row", show=False, priority=True),
        Binding("enter,right,l", "open", "Open", show=False, priority=True),
        Binding("greater_than_sign", "sort(1)", "Sort by the next column", show=False, priority=True),
        Binding("less_than_sign", "sort(-1)", "Sort by the column before", show=False, priority=True),
        Binding("R", "reverse", "Reverse the order", show=False, priority=True),
    ]

    class CursorMoved(Message):
        """The cursor is on another row, or the rows are others."""

    @dataclass
    class Opened(Message):
        """A row was chosen, by enter or by a click on the row under the cursor."""

        rows: GridRows
        index: int

        @property
        def item(self) -> Any:
            """Return what the row was made from; None where rows are read."""
            return self.rows.items[self.index] if isinstance(self.rows, ItemRows) else None

    def __init__(self, *, shown: Callable[[str], str] = str) -> None:
        super().__init__(classes="" if shown is str else "-plain")
        self.rows: GridRows = ItemRows((), (), lambda item: item)
        self.cursor = 0
        self.empty = ""
        """What is shown where there is no row."""
        self._shown = shown
        self._head = 0
        self._widest: list[Any] = []
        self._layout: tuple[object, Fit] | None = None
        self._unsorted: GridRows = self.rows
        self._by: tuple[str, bool] | None = None
        """The heading of the column that rows are sorted by, and whether the largest comes first."""

    def show(self, rows: GridRows, *, cursor: int = 0, empty: str = "") -> None:
        """Show other rows, with the cursor on one of them; as they come, or sorted as the rows before."""
        self.rows, self.empty, self._unsorted = rows, empty, rows
        column = next((c for c, column in enumerate(rows.columns) if self._by and column.heading == self._by[0]), None)
        if self._by and column is not None and isinstance(rows, ItemRows):
            self.rows, order = rows.sorted(column, self._by[1], self._shown("▼" if self._by[1] else "▲"))
            cursor = order.index(cursor) if cursor in order else cursor
        rows = self.rows
        self._widest = [Cell("") for _ in rows.columns]
        self._layout = None
        self._head = int(any(column.heading for column in rows.columns))
        self.virtual_size = Size(0, len(rows) + self._head)
        self.cursor = max(0, min(cursor, len(rows) - 1))
        self._follow()
        self.refresh()
        self.post_message(self.CursorMoved())

    def sort(self, by: tuple[str, bool] | None) -> None:
        """Sort the rows by a column, or leave them as they come; the cursor stays on its row."""
        chosen = self.rows.items[self.cursor] if isinstance(self.rows, ItemRows) and len(self.rows) else None
        items = self._unsorted.items if isinstance(self._unsorted, ItemRows) else ()
        self._by = by
        cursor = next((i for i, item in enumerate(items) if item is chosen), 0)
        self.show(self._unsorted, cursor=cursor, empty=self.empty)

    def action_sort(self, step: int) -> None:
        """Sort by the next column, the one before, or by none."""
        if isinstance(self._unsorted, ItemRows):
            headings = (self._unsorted.columns[c].heading for c in self._laid_out(self._width).shown)
            by = [None, *((heading, False) for heading in headings if heading)]
            now = next((i for i, other in enumerate(by) if other and self._by and other[0] == self._by[0]), 0)
            self.sort(by[(now + step) % len(by)])

    def _sort_at(self, x: int) -> None:
        """Sort by the column whose heading was clicked; at a second click the other way round."""
        layout = self._laid_out(self._width)
        end = 0
        for c in layout.shown:
            end += layout.widths[c] + GAP
            heading = self._unsorted.columns[c].heading
            if x < end:
                if heading and isinstance(self._unsorted, ItemRows):
                    self.sort((heading, bool(self._by) and self._by == (heading, False)))
                return

    def action_reverse(self) -> None:
        """Sort the other way round."""
        if self._by:
            self.sort((self._by[0], not self._by[1]))

    def redraw(self) -> None:
        """Draw again: rows that were being read are there."""
        self._layout = None
        self.refresh()
        self.post_message(self.CursorMoved())

    @property
    def seen(self) -> range:
        """Return the rows on the screen."""
        first = int(self.scroll_offset.y)
        return range(first, min(first + self._height, len(self.rows)))

    @property
    def _width(self) -> int:
        """Return the columns of the terminal that are not below the scrollbar."""
        return self.scrollable_content_region.width

    @property
    def _height(self) -> int:
        """Return how many rows the screen has room for."""
        return max(self.size.height - self._head, 1)

    def move_to(self, index: int) -> None:
        """Put the cursor on a row, and show it."""
        index = max(0, min(index, len(self.rows) - 1))
        if index != self.cursor:
            self.cursor = index
            self.refresh()
            self.post_message(self.CursorMoved())
        self._follow()

    def _follow(self) -> None:
        """Scroll so that the cursor is seen."""
        height = self._height
        top = int(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)

    def on_resize(self) -> None:
        """Keep the cursor on the screen when the window changes."""
        self._layout = None
        self._follow()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Say so when other rows are seen: they may have to be read."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.post_message(self.CursorMoved())

    def action_move(self, step: int) -> None:
        """Move the cursor by rows."""
        self.move_to(self.cursor + step)

    def action_page(self, step: int) -> None:
        """Move the cursor by screens."""
        self.move_to(self.cursor + step * max(self._height - 1, 1))

    def action_first(self) -> None:
        """Go to the first row."""
        self.move_to(0)

    def action_last(self) -> None:
        """Go to the last row."""
        self.move_to(len(self.rows) - 1)

    def action_open(self) -> None:
        """Choose the row under the cursor."""
        if len(self.rows):
            self.post_message(self.Opened(self.rows, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the row that was clicked; open it at a second click."""
        index = int(self.scroll_offset.y) + event.y - self._head
        if event.y < self._head:
            self._sort_at(event.x)
        if event.y < self._head or index >= len(self.rows):
            return
        if index == self.cursor:
            self.action_open()
        self.move_to(index)

    def _laid_out(self, width: int) -> Fit:
        """Return the layout of the rows that are seen. Columns only widen, so that scrolling does not shake them."""
        seen, columns = self.seen, self.rows.columns
        key = (width, seen, id(self.rows))
        if self._layout is None or self._layout[0] != key:
            rows = [self._cells(row) for row in map(self.rows.row, seen) if row is not None]
            for cells in rows:
                self._widest = [max(pair, key=_wanted) for pair in zip(self._widest, cells, strict=True)]
            made = Fit.of(columns, [*rows, self._widest], width, narrow=False)
            made = made or Fit((0,), {0: width}, tuple(range(1, len(columns))), width, {0: width}, {0: False})
            self._layout = key, made
        return self._layout[1]

    def render_line(self, y: int) -> Strip:
        """Draw the heading, or one row."""
        width = self._width
        if not self.rows.columns or not len(self.rows):
            lines = fold(self.empty, width) if self.empty else []
            return self._strip([Cell(lines[y], "dim")] if y < len(lines) else [], width)
        layout = self._laid_out(width)
        shown = [(self.rows.columns[c], layout.widths[c], c) for c in layout.shown]
        if y < self._head:
            titles = [Cell(shortened(self._shown(text.escaped(column.heading)), w), "bold") for column, w, _ in shown]
            return self._strip(side_by_side(titles, shown), width)
        index = int(self.scroll_offset.y) + y - self._head
        if index >= len(self.rows):
            return Strip.blank(width)
        row = self.rows.row(index)
        if row is None:
            return self._strip([Cell("...", "dim")], width)
        cells = self._fitted(row, shown)
        if index != self.cursor:
            return self._strip(side_by_side(cells, shown), width)
        # A bar would be a hole in a reversed line, and colours would be patches.
        kinds = [column.kind for column, _, _ in shown]
        styled = [
            c if kind == "bar" and c.text.strip() else Cell(c.text, "reverse")
            for c, kind in zip(cells, kinds, strict=True)
        ]
        return self._strip(side_by_side(styled, shown), width, "reverse")

    def _strip(self, cells: Sequence[Cell], width: int, style: str = "") -> Strip:
        return Strip([Segment(cell.text, Style.parse(cell.style)) for cell in cells]).adjust_cell_length(
            width, Style.parse(style)
        )

    def _cells(self, row: Sequence[Content]) -> list[Any]:
        """Return the cells of a row, their texts escaped, and in characters that the terminal has."""
        cells: list[Any] = [content if isinstance(content, Numbers) else cell_of(content) for content in row]
        return [Cell(self._shown(cell.text), cell.style) if isinstance(cell, Cell) else cell for cell in cells]

    def _fitted(self, row: Sequence[Content], shown: Sequence[tuple[Column, int, int]]) -> list[Cell]:
        """Return the cells of a row for their columns, each on one line."""
        cells = self._cells(row)
        fitted = (_fitted(cells[c], width, column.kind) for column, width, c in shown)
        return [Cell(self._shown(cell.text), cell.style) for cell in fitted]

    def details(self, width: int) -> Iterator[Text]:
        """Yield what the row under the cursor does not show: columns that were left out, and texts that were cut."""
        row = self.rows.row(self.cursor) if self.cursor < len(self.rows) else None
        if row is None or not self._width:
            return
        layout, cells = self._laid_out(self._width), self._cells(row)
        left = []
        for c, (column, cell) in enumerate(zip(self.rows.columns, cells, strict=True)):
            whole = c in layout.shown and _wanted(cell) <= layout.widths[c]
            if whole or not isinstance(cell, Cell) or not cell.text.strip():
                continue
            name = self._shown(text.escaped(column.heading))
            if column.kind in {"name", "prose"}:
                yield from (Text(line) for line in fold(f"{name}  {cell.text}" if c and name else cell.text, width))
            else:
                left.append(f"{name} {cell.text}")
        if left:
            yield from (Text(line, "dim") for line in fold("  ".join(left), width))


def _wanted(cell: Any) -> int:
    """Return the width that a cell wants."""
    return min(cell_width(cell.text), _MOST_WIDEST) if isinstance(cell, Cell) else int(cell.width)


def _fitted(cell: Any, width: int, kind: str) -> Cell:
    """Return a cell on one line: a name that is too long loses its middle, prose its last words; a drawing shrinks."""
    if not isinstance(cell, Cell):
        return cast("Cell", cell.drawn(width))
    if kind == "prose" and cell_width(cell.text) > width:
        return Cell(f"{fold(cell.text, max(width - len(_MORE), 1))[0]}{_MORE}", cell.style)
    return Cell(shortened(cell.text, width), cell.style)
