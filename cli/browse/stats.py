"""A screen about a table or a variable, and its statistics with a histogram, which are read in the background."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.browse.grid import ItemRows
from edl_ckpt.cli.browse.page import BACK, CANCEL, COPY, HELP, QUIT, REFRESH, BrowserPage
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column
from edl_ckpt.core import TensorStats, tensor_stats

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.open_version import OpenVersion
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
