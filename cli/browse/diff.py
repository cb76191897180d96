"""A comparison of two versions, made in the background."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.browse.grid import Grid, ItemRows
from edl_ckpt.cli.browse.keys import ScreenKey
from edl_ckpt.cli.browse.page import BACK, CANCEL, COPY, HELP, OPEN, QUIT, REFRESH, SEARCH, BrowserPage, SearchPage
from edl_ckpt.cli.browse.stats import BAR, MEASURES
from edl_ckpt.cli.render import diff as render_diff
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column
from edl_ckpt.core import HISTOGRAM_EDGES, DenseDiff, DiffResult, TableDiff, diff_versions, listed_again

if TYPE_CHECKING:
    from edl_ckpt.core import Version

_COLUMNS = (Column("name", "name"), *render_diff.COLUMNS.values())
_TOP = 20
"""The rows of each table that changed most."""
_ALL = ScreenKey("a", "a", "all", "all", "show equal tensors too, or only differences")


class DiffPage(SearchPage):
    """What changed from one version to another: those that differ come first."""

    keys = (HELP, BACK, QUIT, OPEN, CANCEL, _ALL, SEARCH, REFRESH, COPY)
    does = "compares"
    about = "Changes from the first version to the second. Enter shows the rows of a table that changed most."

    def __init__(self, a: Version, b: Version) -> None:
        super().__init__()
        self._a, self._b = a, b
        self._result: DiffResult | None = None
        self._all = False

    def title_parts(self) -> tuple[str, str]:
        """Return the two versions, and the verdict."""
        place = f"{self._a.ref} -> {self._b.ref}"
        if self._result is None:
            return place, ""
        parts = self._parts
        differing = sum(part.status != "equal" for part in parts)
        return place, "equal" if self._result.equal else f"{differing} of {text.count(len(parts), 'tensor')} differ"

    def reference(self) -> str:
        """Return what `diff` takes."""
        import shlex

        return f"{shlex.quote(self._a.ref)} {shlex.quote(self._b.ref)}"

    @property
    def _parts(self) -> list[DenseDiff | TableDiff]:
        """Return tables, then variables."""
        return [*self._result.tables, *self._result.variables] if self._result else []

    def begin(self) -> None:
        """Compare."""
        self.fill()
        self.work(
            "comparing",
            lambda reporter: diff_versions(listed_again(self._a), listed_again(self._b), top=_TOP, reporter=reporter),
            self._show,
        )

    def _show(self, result: DiffResult) -> None:
        self._result = result
        self._all = result.equal
        self.fill()
        self.show_title()

    def fill(self) -> None:
        """Show the tables, then the variables."""
        parts = self._parts
        largest = render_diff.largest_of(part.relative for part in parts)
        shown = [p for p in parts if (self._all or p.status != "equal") and self._has(p.name)]
        empty = "nothing"
        if self._result is None:
            empty = "not compared yet"
        elif self._wanted:
            empty = "nothing contains it"
        self.grid.show(ItemRows(_COLUMNS, shown, lambda part: _cells(part, largest)), empty=empty)

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Show the changes of a table row by row."""
        event.stop()
        if isinstance(event.item, TableDiff):
            self.app.push_screen(TableDiffPage(self._a, self._b, event.item))
        else:
            self.notice("a variable has no rows; its measures are in the line")

    def action_all(self) -> None:
        """Show what is equal too, or not."""
        self._all = not self._all
        self.fill()


def _cells(part: DenseDiff | TableDiff, largest: float) -> list[Any]:
    return [Cell(part.name, "bold"), *render_diff.cells(part, largest).values()]


class TableDiffPage(BrowserPage):
    """How much the rows of one table changed, and which changed most."""

    keys = (HELP, BACK, QUIT)
    about = "The changed rows of a table by the L2 norm of their change, then the rows that changed most."

    def __init__(self, a: Version, b: Version, part: TableDiff) -> None:
        super().__init__()
        self._a, self._b, self._part = a, b, part

    def title_parts(self) -> tuple[str, str]:
        """Return the table and the versions."""
        return f"{self._a.ref} -> {self._b.ref} > {self._part.name}", self._part.status

    def begin(self) -> None:
        """Show the numbers, the histogram and the rows."""
        self.grid.show(ItemRows(MEASURES, list(_details(self._part)), list))


def _details(part: TableDiff) -> Iterator[list[Any]]:
    for name in render_diff.COUNTS:
        yield [f"rows {name}", text.count(getattr(part, name)), ""]
    for name, value in (("largest change", part.max_abs), ("L2 of all changes", part.l2), ("relative", part.relative)):
        yield [name, render_diff.measure(value) or "none", ""]
    largest = max(part.histogram, default=0)
    lows = ["below", *(f"{edge:.0e} to" for edge in HISTOGRAM_EDGES)]
    highs = [*(f"{edge:.0e}" for edge in HISTOGRAM_EDGES), "more"]
    for low, high, count in zip(lows, highs, part.histogram, strict=False):
        if count:
            yield [f"L2 {low} {high}", text.count(count), Bar(count, largest, BAR, "yellow")]
    most = render_diff.largest_of(row.l2 for row in part.top)
    for row in part.top:
        yield [f"id {row.id}", f"{row.l2:.4g}", Bar(row.l2, most, BAR, "yellow")]
