"""Small tables, read whole and many at a time: parts of tables that lie near each other take one read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.packing import near
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import Encoding, ShardIndex, TableEntry
from edl_ckpt.core.proof.duplicates import check_reads, order_of
from edl_ckpt.core.reading.blocks import check_row_count, id_blocks, read_rows
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import TablePart

_GAP_BYTES: Final = 16 << 10
"""The most bytes between two parts that are read along with them."""


class SmallTable:
    """A table in memory: its ids int64 [n], ascending and unique, and its rows, put in order when the first is wanted.

    The rows of a table that has no id of another one are never looked at.
    """

    def __init__(self, ids: bulk.I64, rows: Sequence[bulk.U8], dtype: DType | None, dim: int) -> None:
        self.dtype, self.dim = dtype, dim
        self._unordered, self._rows = ids, rows
        self.ids = ids.copy()
        bulk.sort_ids(self.ids)

    def rows(self, place: npt.NDArray[np.intp] | slice = slice(None)) -> npt.NDArray[np.generic]:
        """Return the rows at some places as [k, dim] elements."""
        return self._part.rows(place)

    @cached_property
    def _part(self) -> TablePart:
        if not self._rows:
            return TablePart(self.ids, np.empty((0, 0), np.uint8), self.dtype, self.dim)
        values = np.concatenate(self._rows)
        if values.shape[1]:
            values = bulk.take_rows(values, bulk.order_ids(self._unordered.copy()))
        return TablePart(self.ids, values, self.dtype, self.dim)


def read_tables(checkpoint: Checkpoint, names: Collection[str]) -> dict[str, SmallTable]:
    """Return some tables; CorruptError for an id that occurs twice. All of them are in memory at a time."""
    ids: dict[str, list[bulk.I64]] = {name: [] for name in names}
    rows: dict[str, list[bulk.U8]] = {name: [] for name in names}
    wanted: dict[int, list[TableEntry]] = {}
    for name in names:
        for shard, entry in checkpoint.entries(name):
            if entry.rows:
                wanted.setdefault(shard.file.ps_id, []).append(entry)
    for shard in checkpoint.shards:
        own = wanted.get(shard.file.ps_id, [])
        for entry in own:
            if not _is_in_first_file(entry):
                ids[entry.name] += [block for _, block in id_blocks(checkpoint, shard, entry)]
                out = np.empty((entry.rows, entry.row_bytes), np.uint8)
                rows[entry.name].append(read_rows(checkpoint, shard, entry, 0, out))
        for start, end, entries in near(sorted(filter(_is_in_first_file, own), key=_extent), _extent, _GAP_BYTES):
            data = np.empty(end - start, np.uint8)
            checkpoint.reader(shard).read_into(start, data.data)
            for entry in entries:
                ids[entry.name].append(_ids(checkpoint, shard, entry, start, data))
                at = entry.values.start - start
                rows[entry.name].append(data[at : at + entry.rows * entry.row_bytes].reshape(entry.rows, -1))
    return {name: _table(checkpoint, name, ids[name], rows[name]) for name in names}


def _is_in_first_file(entry: TableEntry) -> bool:
    """Say whether values and ids of a table are all in the first file of its shard."""
    return not entry.values.file and all(run.is_stored and not run.file for run in entry.ids)


def _extent(entry: TableEntry) -> tuple[int, int]:
    """Return where the values and ids of a table begin and end in a shard."""
    starts = [entry.values.start, *(run.start for run in entry.ids)]
    return min(starts), max([entry.values.end, *(run.end for run in entry.ids)])


def _ids(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, start: int, data: bulk.U8) -> bulk.I64:
    """Return the ids of a table in a shard; CorruptError when they are not as many as its rows."""
    if len(entry.ids) == 1 and entry.ids[0].encoding is Encoding.VARINT:
        try:
            ids, _ = bulk.decode_varints(data[entry.ids[0].start - start : entry.ids[0].end - start])
        except bulk.VarintError:
            pass  # `id_blocks` names the fault and its place
        else:
            check_row_count(shard, entry, len(ids))
            return ids
    return np.concatenate([ids for _, ids in id_blocks(checkpoint, shard, entry)])


def _table(checkpoint: Checkpoint, name: str, ids: list[bulk.I64], rows: list[bulk.U8]) -> SmallTable:
    """Return a table whose ids and rows come shard by shard."""
    dim = max((e.dim for _, e in checkpoint.entries(name)), default=0)
    all_ids = np.concatenate([np.empty(0, np.int64), *ids])
    table = SmallTable(all_ids, rows, checkpoint.table_dtype(name), dim)
    check_reads(name, [lambda: table.ids], order_of(table.ids), at_once=len(table.ids), version=checkpoint.version)
    return table
