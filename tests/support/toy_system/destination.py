"""Toy as a destination: rank `id % N` has a row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edl_ckpt.core.converting.changes import OutTable
from edl_ckpt.core.converting.destinations.raw import RawDestination, RawLayout
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout
from toy_system import ABOUT


class ToToy(RawDestination):
    """Tables in files of ids and of rows."""

    system = ABOUT.name
    of_system = re.compile(r"\.toy-")
    forbidden = re.compile(r"\A\.|/|\0|\.toy-", re.DOTALL)

    def rule(self, table: OutTable) -> Placement:
        """Return the one rule of Toy."""
        del table
        return Placement.MOD

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield ids and rows."""
        yield self.column(rows, f"{rows.table.name}.ids", ids=True)
        yield self.column(rows, f"{rows.table.name}.rows", ids=False)

    def places(self, table: str) -> RowPlaces:
        """Return the files of ids and of rows."""
        return self._row_places(f"{table}.ids", f"{table}.rows")

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return a file for each array of each rank."""

        def path_of(key: str, rank: int) -> str:
            name, _, kind = key.rpartition(".")
            return f"{name}.toy-{rank}-of-{self.ranks}.{kind}"

        return RawLayout(arrays, path_of, {})
