"""The contents of one shard: its part of each table, and its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.browse.grid import ItemRows
from edl_ckpt.cli.browse.page import BACK, COPY, HELP, QUIT, SEARCH, SearchPage
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Cell, Column
from edl_ckpt.core.base import words
from edl_ckpt.core.model.tables import DenseEntry

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.source import OpenVersion
    from edl_ckpt.core.model.tables import TableEntry

_COLUMNS = (
    Column("name", "name"),
    Column("kind", worth=8),
    Column("rows", "number", worth=7),
    Column("dtype", worth=6),
    Column("shape", worth=6),
    Column("size", "number", worth=8),
    Column("offset", "number", worth=2),
)


class ShardPage(SearchPage):
    """One shard, from its header."""

    keys = (HELP, BACK, QUIT, SEARCH, COPY)
    about = "The contents of one shard, and where they begin in its file."

    def __init__(self, source: OpenVersion, ps_id: int) -> None:
        super().__init__()
        self._source, self._ps_id = source, ps_id
        self._shard = next(s for s in source.checkpoint.shards if s.file.ps_id == ps_id)

    def title_parts(self) -> tuple[str, str]:
        """Return the shard and its size."""
        size = words.size(self._shard.file.size_bytes)
        return f"{self._source.version.ref} > shard {self._ps_id}", f"{size}, {self._shard.generation}"

    def reference(self) -> str:
        """Return the path of the file."""
        return self._shard.file.path

    def begin(self) -> None:
        """Show what the header says."""
        entries: list[TableEntry | DenseEntry] = [*self._shard.tables, *self._shard.variables]
        found = [entry for entry in entries if self._has(entry.name)]
        self.grid.show(ItemRows(_COLUMNS, found, _cells), empty="nothing" + " contains it" * bool(self._wanted))

    def show_found(self) -> None:
        """Show the entries that contain it."""
        self.begin()


def _cells(entry: TableEntry | DenseEntry) -> list[Any]:
    is_variable = isinstance(entry, DenseEntry)
    shape = "x".join(map(str, entry.shape)) or "scalar" if isinstance(entry, DenseEntry) else str(entry.dim)
    return [
        Cell(entry.name, "bold"),
        "variable" if is_variable else "table",
        "" if isinstance(entry, DenseEntry) else text.count(entry.rows),
        entry.dtype.name if entry.dtype else "-",
        shape,
        words.size(entry.size_bytes),
        text.count(entry.offset),
    ]
