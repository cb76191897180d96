"""A system whose files are arrays without headers: a file for each array of each rank."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import FLOATS, Outgoing, OutTable
from edl_ckpt.core.converting.destinations.interface import ArrayDestination, by_rank, check_ids, rule_owners
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces, Spread
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps.file_layout import Array

INT64: Final = DTYPES["int64"]


class RawLayout:
    """A file for each slab of each array, at the path that `path_of` says, and `others` by their paths."""

    checksum: ClassVar = ""

    def __init__(
        self, arrays: Sequence[Array], path_of: Callable[[str, int], str], others: Mapping[str, bytes]
    ) -> None:
        self._path_of, self._others = path_of, others
        sizes = {
            path_of(array.key, slab.rank): math.prod(slab.sizes) * array.dtype.itemsize
            for array in arrays
            for slab in array.slabs
        }
        self.files: Mapping[str, int] = sizes | {path: len(data) for path, data in others.items()}

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of a slab, whose number is its rank."""
        return self._path_of(key, slab), 0

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield the other files."""
        del sums
        for path, data in self._others.items():
            yield path, 0, data


class RawDestination(ArrayDestination):
    """Tables whose keys and values are files."""

    least_id: ClassVar[int | None] = None
    other_dtypes = None
    forbidden: ClassVar[re.Pattern[str]]
    """What no name of a table may have in it."""

    def rule(self, table: OutTable) -> Placement:
        """Return the rule by which rows belong to ranks."""
        raise NotImplementedError

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return the tables; variables are left out, and rows that are no float32 are refused."""
        out = out.without([variable.source for variable in out.variables], f"{self.system} keeps tables only")
        for table in out.tables:
            if self.forbidden.search(table.name) or not table.name:
                hint = f"try: --rename '{table.source}=NEW'"
                raise UnsupportedError(f"{table.name!r} cannot be the name of a table of {self.system}", hint=hint)
        return out

    def spread(self, table: OutTable) -> Spread:
        """Return the rule of the system."""
        return Spread(self.ranks, partial(rule_owners, self.rule(table), count=self.ranks))

    def check(self, rows: CountedRows) -> None:
        """Raise UnsupportedError for keys that no job can have."""
        if self.least_id is not None and not self.is_own:
            check_ids(rows, self.least_id, None, f"{self.system} has no key below {self.least_id}")

    def column(self, rows: CountedRows, key: str, *, ids: bool) -> Array:
        """Return the array of the ids of a table, or of its values."""
        table = rows.table
        shape, slabs = by_rank(rows.of_bucket, None if ids else table.info.dim)
        return Array(key, INT64 if ids else table.dtype, shape, slabs)

    def _row_places(self, keys: str | None, values: str) -> RowPlaces:
        every = range(self.ranks)
        return RowPlaces(self.spots(values, every), None if keys is None else self.spots(keys, every))


def check_floats(system: str, out: Outgoing) -> None:
    """Raise UnsupportedError for a table whose rows are no float32."""
    for table in out.tables:
        if table.dtype.name != "float32" and table.rows:
            hint = "try: --dtype float32" if table.dtype.name in FLOATS else "choose others: --table GLOB"
            raise UnsupportedError(
                f"table {table.source!r} has rows of {table.dtype.name}; {system} keeps float32", hint=hint
            )
