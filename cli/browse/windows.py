"""Many rows of which a window is in memory, and the screens that read it as the cursor moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.browse.grid import GridRows
from edl_ckpt.cli.browse.stats import TensorPage
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Column

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.source import BackgroundJob

WINDOW_ROWS: Final = 500
"""The rows that are read at a time."""


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

    step = WINDOW_ROWS
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
        wanted = whole_number(words)
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
            return  # a person who scrolls on gets these first

        def show(found: Any) -> None:
            if rows is self.grid.rows and isinstance(rows, WindowRows):
                rows.window, rows.found = wanted, found
                self.grid.redraw()

        job = self.work("reading rows", lambda job: self.read(wanted, job), show, kind="rows")
        self._reading = wanted, job


def whole_number(words: str) -> int | None:
    """Return a whole number as people write it, None for anything else."""
    plain = words.strip().replace(",", "").replace("_", "")
    try:
        return int(plain) if len(plain) < 30 else None
    except ValueError:
        return None
