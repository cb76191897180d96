"""Rows of a table and values of a variable, read as they are looked at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.cli.browse.grid import Grid, Numbers
from edl_ckpt.cli.browse.keys import ScreenKey
from edl_ckpt.cli.browse.page import BACK, COPY, HELP, OPEN, QUIT, REFRESH
from edl_ckpt.cli.browse.windows import WINDOW_ROWS, WindowPage, WindowRows, whole_number
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Cell, Column
from edl_ckpt.core import Lookup, PageRows, TablePages, sample_rows
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.open_version import OpenVersion
    from edl_ckpt.cli.browse.source import BackgroundJob
    from edl_ckpt.core import TableSummary, VariableSummary

GO = ScreenKey("g", "g", "go to id", "go", "go to the row of an id")
SAMPLE = ScreenKey("m", "m", "sample", "sample", "show 100 rows chosen at random; again: others; esc shows all rows")
STATS = ScreenKey("s", "s", "statistics", "stats", "read all values: range, mean, norm, zeros, NaN, and a histogram")
ROW = ScreenKey("colon", ":", "row", "row", "go to a row by its position")

_WINDOW_BYTES: Final = 4 << 20
_NUMBERS: Final = 64
"""The numbers of one line, more than any window is wide."""
_WIDTH: Final = 11
"""The most characters of a number: -1.2345e-05."""
_SAMPLED: Final = 100

_ROWS = (
    Column("id", "number"),
    Column("row", "number", worth=3),
    Column("shard", "number", worth=2),
    Column("values", "prose", worth=9),
)
_ELEMENTS = (Column("index", "number"), Column("values", "prose", worth=9))


def numbers(values: npt.NDArray[np.generic]) -> list[str]:
    """Return values as texts of one width, as `head` prints them."""
    return [f"{x:>{_WIDTH}.5g}" if isinstance(x, float) else f"{x:>6}" for x in values[:_NUMBERS].tolist()]


class TablePage(WindowPage):
    """The rows of a table."""

    keys = (HELP, BACK, QUIT, GO, ROW, STATS, SAMPLE, OPEN, COPY, REFRESH)
    about = "The rows of a table, shard after shard, in stored order. Only visible rows are read."

    def __init__(self, opened: OpenVersion, table: TableSummary) -> None:
        super().__init__(opened, "table", table.name)
        self._table = table
        self._pages = TablePages(opened.checkpoint, table.name)
        self._seed: int | None = None
        row_bytes = max(table.size_bytes // max(table.rows, 1), 1)
        self.step = max(20, min(WINDOW_ROWS, _WINDOW_BYTES // row_bytes))

    def title_parts(self) -> tuple[str, str]:
        """Return the table, and what its header says."""
        t = self._table
        place = f"{self._source.version.ref} > {t.name}"
        if self._seed is not None:
            return place, f"a sample (seed {self._seed}) of {text.count(t.rows, 'row')}"
        known = f"{text.count(t.rows, 'row')}, dim {t.dim}, {t.dtype or 'no dtype'}, {words.size(t.size_bytes)}"
        return place, f"{known}, init {t.initializer}" if t.initializer else known

    def reference(self) -> str:
        """Return the reference of the row under the cursor, as `get` takes it."""
        row = self.grid.rows.row(self.grid.cursor) if len(self.grid.rows) else None
        ref = super().reference()
        return f"{ref} --id {row[0].text}" if row else ref

    def begin(self) -> None:
        """Show the rows from the first one on."""
        self._seed = None
        self.show_window(WindowRows(_ROWS, len(self._pages), _row_cells), self.grid.cursor, "no rows")
        self.show_title()

    def read(self, wanted: range, job: BackgroundJob) -> PageRows:
        """Read rows."""
        with self._source.reading():
            return self._pages.read(wanted.start, len(wanted), reporter=job)

    def action_go(self) -> None:
        """Ask for an id."""
        self.ask("id:", entered=self.go)

    def go(self, words: str) -> None:
        """Go to the row of an id."""
        wanted = whole_number(words)
        if wanted is None or not -(2**63) <= wanted < 2**63:
            self.notice(f"{words!r} is not an id")
            return

        def find(job: BackgroundJob) -> int | None:
            with self._source.reading():
                return self._pages.find(wanted, reporter=job)

        def show(position: int | None) -> None:
            if position is None:
                self.notice(f"no row has the id {wanted}")
                return
            if self._seed is not None:
                self.begin()
            self.grid.move_to(position)

        self.work("searching the ids", find, show, kind="search")

    def action_sample(self) -> None:
        """Show rows that are chosen at random; every time others."""
        seed = 0 if self._seed is None else self._seed + 1

        def show(found: Lookup) -> None:
            self._seed = seed
            rows = WindowRows(_ROWS, len(found.ids), _row_cells)
            rows.window, rows.found = range(len(rows)), found
            self.grid.show(rows, empty="no rows")
            self.show_title()

        version, name = self._source.version, self._table.name
        self.work("choosing rows", lambda _: sample_rows(version, name, _SAMPLED, seed=seed), show, kind="sample")

    def went_back(self) -> bool:
        """Show all rows again."""
        if self._seed is None:
            return False
        self.begin()
        return True

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Show all values of a row."""
        event.stop()
        rows, index = event.rows, event.index
        if isinstance(rows, WindowRows) and index in rows.window:
            number = index - rows.window.start
            id_, vector = int(rows.found.ids[number]), rows.found.vectors[number]
            self.app.push_screen(RowPage(self._source, self._table.name, id_, vector))


class LinesPage(WindowPage):
    """Elements in lines as long as the window is wide; a line never goes beyond the last dimension."""

    shape: tuple[int, ...] = ()

    @property
    def per_line(self) -> int:
        """Return how many elements stand in one line."""
        return max(1, min(self.last, (self.app.size.width - 16) // (_WIDTH + 1)))

    @property
    def last(self) -> int:
        """Return the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def lines_each(self) -> int:
        """Return the lines of one slice along the last dimension."""
        return max(1, -(-self.last // self.per_line))

    def element(self, line: int) -> int:
        """Return the first element of a line."""
        return line // self.lines_each * self.last + line % self.lines_each * self.per_line

    def line_with(self, element: int) -> int:
        """Return the line of an element."""
        return element // self.last * self.lines_each + element % self.last // self.per_line

    def begin(self) -> None:
        """Show the lines, the cursor on the element where it was."""
        first = self._first if len(self.grid.rows) else 0
        slices = math.prod(self.shape[:-1]) if self.last else 0
        shown = WindowRows(_ELEMENTS, slices * self.lines_each, self._cells)
        self._drawn = self.per_line
        self.show_window(shown, self.line_with(first) if self.last else 0, "no values")

    _drawn = 0
    _first = 0

    def on_resize(self) -> None:
        """Break the lines anew; Textual calls the handler of each class."""
        if self._drawn and self._drawn != self.per_line:
            self.begin()

    def on_grid_cursor_moved(self) -> None:
        """Remember the element under the cursor."""
        if self._drawn == self.per_line:
            self._first = self.element(self.grid.cursor)

    def _cells(self, found: tuple[int, npt.NDArray[np.generic]], _: int, line: int) -> list[Any]:
        first, values = found
        begin = self.element(line)
        count = min(self.per_line, self.last - begin % self.last)
        index = ", ".join(map(str, np.unravel_index(begin, self.shape))) if self.shape else ""
        texts = numbers(values[begin - first : begin - first + count])
        return [f"[{index}]", Numbers(texts, len(texts))]


class VariablePage(LinesPage):
    """The values of a dense variable."""

    keys = (HELP, BACK, QUIT, STATS, ROW, COPY, REFRESH)
    about = "The values of a dense variable. Only visible values are read."

    def __init__(self, opened: OpenVersion, variable: VariableSummary) -> None:
        super().__init__(opened, "variable", variable.name)
        self._variable = variable
        self.shape = variable.shape

    def title_parts(self) -> tuple[str, str]:
        """Return the variable, and what its header says."""
        v = self._variable
        known = f"{v.dtype}, {words.shape(v.shape)}, {words.size(v.size_bytes)}, in shard {v.shard}"
        return f"{self._source.version.ref} > {v.name}", known

    def read(self, wanted: range, job: BackgroundJob) -> tuple[int, npt.NDArray[np.generic]]:  # noqa: ARG002 - one short read
        """Read the elements of some lines."""
        first, end = self.element(wanted.start), self.element(wanted.stop - 1) + self.per_line
        with self._source.reading() as checkpoint:
            return first, checkpoint.elements(self._variable.name, first, end - first)

    @property
    def most_rows(self) -> int:
        """Return how many slices there are along the first dimension."""
        return self.shape[0] if self.shape else 1

    def line_of(self, row: int) -> int:
        """Return the line in which a slice begins."""
        return self.line_with(row * math.prod(self.shape[1:]))


class RowPage(LinesPage):
    """All values of one row."""

    keys = (HELP, BACK, QUIT, COPY)
    about = "All values of one row."

    def __init__(self, opened: OpenVersion, table: str, id_: int, vector: npt.NDArray[np.generic]) -> None:
        super().__init__(opened, "table", table)
        self._row_id, self._vector = id_, vector
        self.shape = (len(vector),)

    def title_parts(self) -> tuple[str, str]:
        """Return the row, and what its values are like."""
        with np.errstate(all="ignore"):
            values = self._vector.astype(np.float64)
            known = f"dim {len(values)}, {self._vector.dtype}"
            if len(values):
                norm = float(np.sqrt((values * values).sum()))
                known += f", min {values.min():.4g}, max {values.max():.4g}, mean {values.mean():.4g}, L2 {norm:.4g}"
        return f"{self._source.version.ref} > {self._tensor} > id {self._row_id}", known

    def reference(self) -> str:
        """Return the reference of the row, as `get` takes it."""
        return f"{super().reference()} --id {self._row_id}"

    def read(self, wanted: range, job: BackgroundJob) -> tuple[int, npt.NDArray[np.generic]]:  # noqa: ARG002 - all is there
        """Return the elements, which are there already."""
        return 0, self._vector


def _row_cells(found: PageRows | Lookup, number: int, position: int) -> list[Any]:
    """Return the cells of a row; a sample does not say where its rows lie."""
    vector = found.vectors[number]
    place = ("", "") if isinstance(found, Lookup) else (text.count(position), str(found.shards[number]))
    return [Cell(str(found.ids[number]), "bold"), *place, Numbers(numbers(vector), len(vector))]
