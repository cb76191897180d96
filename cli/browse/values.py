"""Rows of a table and values of a variable, read as they are looked at: a window of them is in memory.

Screens about a table or a variable; one of them has its statistics, with a histogram, read in the background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.cli.browse.grid import Grid, GridRows, ItemRows, Numbers
from edl_ckpt.cli.browse.keys import ScreenKey
from edl_ckpt.cli.browse.page import BACK, CANCEL, COPY, HELP, OPEN, QUIT, REFRESH, BrowserPage
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column
from edl_ckpt.core import Lookup, PageRows, TablePages, TensorStats, sample_rows, tensor_stats
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.open_version import OpenVersion
    from edl_ckpt.cli.browse.source import BackgroundJob
    from edl_ckpt.core import TableSummary, VariableSummary
    from edl_ckpt.core.base.progress import Reporter


MEASURES = (Column("what", "word", title=""), Column("number", "number", title="", worth=9), Column("", "bar"))
"""The columns of numbers with their names, and with bars."""
BAR = 60
_NUMBER_NAMES = {
    "minimum": "minimum",
    "maximum": "maximum",
    "mean": "mean",
    "standard deviation": "std",
    "L2 norm": "l2",
}


class TensorPage(BrowserPage):
    """A screen about a table or a variable of a version that is open; `kind` says which of them."""

    def __init__(self, opened: OpenVersion, kind: str, name: str) -> None:
        super().__init__()
        self._source, self._kind, self._tensor = opened, kind, name

    def reference(self) -> str:
        """Return the reference of the tensor, as `inspect` and `get` take it."""
        return self._source.reference(self._kind, self._tensor)

    def action_stats(self) -> None:
        """Show the statistics of the tensor."""
        self.app.push_screen(StatsPage(self._source, self._kind, self._tensor))


class StatsPage(TensorPage):
    """Numbers, then a line for each bin of the histogram."""

    keys = (HELP, BACK, QUIT, CANCEL, REFRESH, COPY)
    about = "Statistics of the finite values, and how many values lie in each interval."

    _found: TensorStats | None = None

    def title_parts(self) -> tuple[str, str]:
        """Return the tensor, and how many values were read."""
        elements = f", {text.count(self._found.elements, 'value')}" if self._found else ""
        return f"{self._source.version.ref} > {self._tensor}", f"statistics{elements}"

    def begin(self) -> None:
        """Read the values."""
        self.grid.show(ItemRows(MEASURES, (), list), empty="no statistics yet")
        self.work("reading values", self._read, self._show)

    def _read(self, reporter: Reporter) -> TensorStats:
        with self._source.reading() as checkpoint:
            chosen: dict[str, Any] = {"variables": (), "tables": (), f"{self._kind}s": (self._tensor,)}
            return tensor_stats(checkpoint, **chosen, reporter=reporter)[0]

    def _show(self, found: TensorStats) -> None:
        self._found = found
        self.grid.show(ItemRows(MEASURES, list(_lines(found)), list))
        self.show_title()


def _lines(found: TensorStats) -> Iterator[list[Any]]:
    measured = ((name, getattr(found, key)) for name, key in _NUMBER_NAMES.items())
    yield ["values", text.count(found.elements), ""]
    yield from ([name, "none" if value is None else f"{value:.6g}", ""] for name, value in measured)
    yield ["zeros", text.count(found.zeros), ""]
    for name, count in (("NaN", found.nan), ("infinite", found.inf)):
        yield [name, Cell(text.count(count), "red" if count else ""), ""]
    largest = max(found.histogram, default=0)
    for low, high, count in zip(found.edges, found.edges[1:], found.histogram, strict=False):
        yield [f"{low:.3g} to {high:.3g}", text.count(count), Bar(count, largest, BAR)]


GO = ScreenKey("g", "g", "go to id", "go", "go to the row of an id")
SAMPLE = ScreenKey("m", "m", "sample", "sample", "show 100 rows chosen at random; again: others; esc shows all rows")
STATS = ScreenKey("s", "s", "statistics", "stats", "read all values: range, mean, norm, zeros, NaN, and a histogram")
ROW = ScreenKey("colon", ":", "row", "row", "go to a row by its position")

_WINDOW_BYTES: Final = 4 << 20
_WINDOW_ROWS: Final = 500
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


class WindowRows(GridRows):
    """Many rows, of which a window is in memory."""

    def __init__(self, columns: Sequence[Column], total: int, make: Callable[[Any, int, int], Sequence[Any]]) -> None:
        self.columns, self._total, self._make = tuple(columns), total, make
        self.window = range(0)
        self.found: Any = None

    def __len__(self) -> int:
        return self._total

    def row(self, index: int) -> Sequence[Any] | None:
        """Make a row of what was read; None outside of the window."""
        return self._make(self.found, index - self.window.start, index) if index in self.window else None

    def wants(self, seen: range, step: int) -> range | None:
        """Return the rows to read so that those seen have some before and behind them; None when they have."""
        slack = step // 4
        low, high = max(seen.start - slack, 0), min(seen.stop + slack, self._total)
        if not len(seen) or (low >= self.window.start and high <= self.window.stop):
            return None
        return range(max(seen.start - step, 0), min(seen.stop + step, self._total))


class WindowPage(TensorPage):
    """A screen with a window on many rows."""

    step = _WINDOW_ROWS
    _reading: tuple[range, BackgroundJob | None] = range(0), None
    """The rows that are being read, and the job that does it."""

    def read(self, wanted: range, job: BackgroundJob) -> Any:
        """Return what the rows of this range are made of; called in a thread."""
        raise NotImplementedError

    def show_window(self, rows: WindowRows, cursor: int, empty: str) -> None:
        """Show other rows, and read those that are seen."""
        self._error = None
        self.give_up("rows")
        self.grid.show(rows, cursor=cursor, empty=empty)
        self.look()

    def on_grid_cursor_moved(self) -> None:
        """Read the rows that are seen, unless they are there or being read."""
        self.look()

    def action_row(self) -> None:
        """Ask for a position."""
        self.ask("row:", entered=self.go_to)

    def go_to(self, words: str) -> None:
        """Go to a row by its position."""
        wanted = _whole(words)
        if wanted is None or not 0 <= wanted < self.most_rows:
            self.notice(f"{words!r} is no row: they are 0 to {text.count(max(self.most_rows - 1, 0))}")
        else:
            self.grid.move_to(self.line_of(wanted))

    @property
    def most_rows(self) -> int:
        """Return how many positions there are."""
        return len(self.grid.rows)

    def line_of(self, row: int) -> int:
        """Return the line in which a row begins."""
        return row

    def look(self) -> None:
        """Read the rows that are seen, unless they are there."""
        rows, seen = self.grid.rows, self.grid.seen
        wanted = rows.wants(seen, self.step) if isinstance(rows, WindowRows) else None
        if wanted is None or self._error is not None:
            return
        reading, by = self._reading
        if by in self.jobs and seen.start in reading and seen[-1] in reading:
            return  # whoever scrolls on gets these first

        def show(found: Any) -> None:
            if rows is self.grid.rows and isinstance(rows, WindowRows):
                rows.window, rows.found = wanted, found
                self.grid.redraw()

        job = self.work("reading rows", lambda job: self.read(wanted, job), show, kind="rows")
        self._reading = wanted, job


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
        self.step = max(20, min(_WINDOW_ROWS, _WINDOW_BYTES // row_bytes))

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
        wanted = _whole(words)
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


def _whole(words: str) -> int | None:
    """Return a whole number as people write it, None for anything else."""
    plain = words.strip().replace(",", "").replace("_", "")
    try:
        return int(plain) if len(plain) < 30 else None
    except ValueError:
        return None


def _row_cells(found: PageRows | Lookup, number: int, position: int) -> list[Any]:
    """Return the cells of a row; a sample does not say where its rows lie."""
    vector = found.vectors[number]
    place = ("", "") if isinstance(found, Lookup) else (text.count(position), str(found.shards[number]))
    return [Cell(str(found.ids[number]), "bold"), *place, Numbers(numbers(vector), len(vector))]
