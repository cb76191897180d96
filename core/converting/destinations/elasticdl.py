"""ElasticDL's shards as a destination: rows by `id % ps_num`, ids as varints, variables by the hash of their name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from edl_ckpt.core.converting.changes import OutTable
from edl_ckpt.core.converting.destinations.interface import Destination
from edl_ckpt.core.converting.rows import CountedRows, Cut, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.sources.elasticdl.target import (
    DESIGN,
    CountedTable,
    PlacedVariable,
    VersionLayout,
    lay_out_shards,
)


class ToElasticDL(Destination):
    """A file for each server."""

    system = DESIGN.system
    of_system = re.compile("")
    other_way = ""
    varints = True
    _layout: VersionLayout

    @property
    def holder(self) -> str:
        """Return what cannot hold a dtype, in words."""
        return "a checkpoint of ElasticDL"

    def describes(self, name: str, read: Collection[str]) -> bool:
        """Say True: shards without a value are shards, and a version has nothing else."""
        del name, read
        return True

    def spread(self, table: OutTable) -> Spread:
        """Return the rule of ElasticDL."""
        del table
        return Spread(self.ranks, partial(bulk.owners, ps_num=self.ranks))

    def lay_out(self, rows: Mapping[str, CountedRows]) -> None:
        """Lay out v4 shards."""
        variables = [PlacedVariable(v.name, v.dtype, v.shape, v.size_bytes) for v in self.out.variables]
        tables = [
            CountedTable(
                replace(counted.table.info, initializer=counted.table.info.initializer or "uniform"),
                counted.table.dtype if counted.total else None,
                counted.of_bucket,
                counted.id_bytes,
            )
            for counted in rows.values()
        ]
        self._layout = lay_out_shards(self.given.number, variables, tables, self.ranks)
        self._sizes = {v.name: v.size_bytes for v in variables}

    @property
    def new_files(self) -> Mapping[str, int]:
        """Return the shards."""
        names = (DESIGN.shard_file(rank, self.ranks) for rank in range(self.ranks))
        return dict(zip(names, self._layout.size_bytes.tolist(), strict=True))

    def places(self, table: str) -> RowPlaces:
        """Return where rows and ids of a table begin in each shard."""
        every = np.arange(self.ranks)
        return RowPlaces((every, self._layout.values_at(table)), (every, self._layout.ids_at(table)), as_varints=True)

    def cuts(self, name: str) -> Sequence[Cut]:
        """Return the one place of a variable."""
        shard, offset = self._layout.dense_at(name)
        return [Cut(0, self._sizes[name], shard, offset)]

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[int, int, bytes]]:
        """Yield what stands before values and ids."""
        del sums
        for rank in range(self.ranks):
            for offset, data in (*self._layout.front(rank), *self._layout.heads(rank, self._layout.names)):
                yield rank, offset, data
