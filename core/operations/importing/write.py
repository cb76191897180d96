"""The pass of an import over its arrays: every value is read once, and written at its offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.commit.part_plan import DenseBytes, Moved
from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.routing import sketch_size
from edl_ckpt.core.format.shard_layout import write_groups
from edl_ckpt.core.moving.passes import MoveTask, Pass, Read, Stretch
from edl_ckpt.core.moving.sparse import SparsePair
from edl_ckpt.core.operations.importing.arrays import ArrayData
from edl_ckpt.core.operations.importing.names import Assignment, ImportedTable
from edl_ckpt.core.operations.importing.plan import ImportPlan, moved_by
from edl_ckpt.core.operations.importing.spread import IDS_AT_ONCE, ArraysValue, Rows, Spread
from edl_ckpt.core.packing import packed
from edl_ckpt.core.parallel import Executor
from edl_ckpt.core.progress import Reporter

_PIECES_AT_ONCE: Final = 256
"""Small variables that one task writes."""


@dataclass(frozen=True, slots=True, eq=False)
class _RowPiece:
    """Rows of a table from `start` on, one for each id, and the offsets of the first of each shard."""

    table: ImportedTable
    start: int
    ids: bulk.I64
    owner: bulk.U16
    lengths: bulk.U8
    id_bytes: bulk.I64
    ids_at: bulk.I64
    values_at: bulk.I64


_Pieces: TypeAlias = list[DenseBytes] | _RowPiece


class Write(Pass[Assignment, _Pieces, Rows]):
    """The pass over arrays; in another process its plan has neither arrays nor counts."""

    doing = "importing"

    def __init__(self, plan: ImportPlan, arrays: Assignment, reporter: Reporter) -> None:
        super().__init__(plan.layouts, arrays, reporter)
        self._plan = plan
        self.parts = plan.parts

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all arrays."""
        return self.source.size_bytes

    @property
    def _spread(self) -> Spread:
        spread = self._plan.survey.spread
        assert spread is not None  # noqa: S101 - other processes have counted the ids
        return spread

    def value(self) -> tuple[ArraysValue, Callable[[Assignment, Reporter], Write]]:
        """Return the arrays as a value, and what begins the pass in another process."""
        survey = replace(self._plan.survey, arrays=Assignment({}, ()), spread=None)
        return self._spread.arrays, partial(Write, replace(self._plan, survey=survey))

    def moved(self) -> Moved:
        """Return what moves, for the plan of parts."""
        return moved_by(self._plan)

    def pieces(self) -> Iterator[_Pieces]:
        """Yield everything, the variables first."""
        tables = (self._row_pieces(table) for table in self.source.tables)
        return chain(_dense_pieces(self.source.variables), *tables)

    def write_between(self) -> None:
        """Write what stands between values."""
        for file, layout in zip(self.files, self.layouts, strict=True):
            file.write_between(layout.between)

    def tasks(self, executor: Executor) -> Iterator[MoveTask[Rows]]:  # noqa: ARG002 - counted before
        """Yield all variables in tasks, cut where the chunks of their sums begin, and then all rows."""
        task_bytes = self._spread.task_bytes
        yield from (MoveTask(dense) for dense in packed(self._dense_items(task_bytes), task_bytes))
        yield from (MoveTask(reads=reads) for reads in packed(self._row_items(), task_bytes))

    def _dense_items(self, task_bytes: int) -> Iterator[tuple[DenseBytes, int, str, int]]:
        step = max(task_bytes // bulk.CHUNK_BYTES, 1) * bulk.CHUNK_BYTES
        for name, array in self.source.variables.items():
            total = array.size_bytes
            result = total if total <= bulk.CHUNK_BYTES else 4 * sketch_size(total)
            for start in range(0, max(total, 1), step):
                size = min(step, total - start)
                yield DenseBytes(name, start, size), size, "", result

    def _row_items(self) -> Iterator[tuple[Read[Rows], int, str, int]]:
        for stretch in self._stretches:
            table, rows = self.source.tables[stretch.place.table], stretch.place
            yield Read(stretch), (rows.end - rows.start) * (8 + table.row_bytes), "", 4 * sketch_size(table.row_bytes)

    @cached_property
    def _stretches(self) -> list[Stretch[Rows]]:
        """All stretches with their places: each shard gets the rows of a table in the order of the source."""
        last, stretches = -1, list[Stretch[Rows]]()
        for rows, counts in zip(self._spread.stretches, self._spread.counted, strict=True):
            table = self.source.tables[rows.table]
            if rows.table != last:
                values_at, ids_at = self.layouts.values_at(table.name), self.layouts.ids_at(table.name)
                last = rows.table
            targets = np.flatnonzero(counts.id_bytes)
            pair, route = (counts.rows, counts.id_bytes), (values_at, ids_at)
            stretches.append(Stretch(rows, SparsePair.of(*pair, targets), SparsePair.of(*route, targets)))
            values_at, ids_at = values_at + counts.rows * table.row_bytes, ids_at + counts.id_bytes
        return stretches

    def stretch(self, number: int) -> Stretch[Rows]:
        """Return a stretch as a task names it."""
        return self._stretches[number]

    def move_dense(self, dense: DenseBytes) -> None:
        """Write bytes of a variable, some at a time."""
        for start in range(dense.start, max(dense.start + dense.size, dense.start + 1), VALUE_BATCH_BYTES):
            size = min(VALUE_BATCH_BYTES, dense.start + dense.size - start)
            self._write_dense(DenseBytes(dense.name, start, size))

    def move_rows(self, rows: Stretch[Rows] | tuple[str, ...], *, values: bool = True) -> None:
        """Write the ids of a stretch, and with `values` its rows; LockedError when its ids are not those counted."""
        assert isinstance(rows, Stretch)  # noqa: S101 - no tables of an import are small
        number, start, end = rows.place
        table, ps_num = self.source.tables[number], len(self.layouts)
        values_at, ids_at = rows.route.full(ps_num)
        ids_end = ids_at + rows.counts.full(ps_num)[1]
        for piece in self._cut(table, start, end, ids_at, values_at):
            if (piece.ids_at + piece.id_bytes > ids_end).any():
                raise LockedError("the ids have changed since they were counted", path=table.ids.reader.path)
            self._write_rows(piece, values=values)

    def _row_pieces(self, table: ImportedTable) -> Iterator[_RowPiece]:
        """Yield the rows of a table with their places: each shard gets its rows in the order of the source.

        `run_parallel` asks for one part after the other, in one thread, so each begins where the one before it ends.
        Nothing is kept of those that are done: the memory does not grow with the number of rows.
        """
        places = self.layouts.ids_at(table.name), self.layouts.values_at(table.name)
        yield from self._cut(table, 0, table.rows, *places)

    def _cut(
        self, table: ImportedTable, start: int, end: int, ids_at: bulk.I64, values_at: bulk.I64
    ) -> Iterator[_RowPiece]:
        """Yield rows [start, end) of a table, from the places of their first ids and values in each shard on."""
        ps_num = len(self.layouts)
        for start in range(start, end, IDS_AT_ONCE):  # noqa: PLR1704, B020 - each begins where the one before ends
            ids = table.read_ids(start, min(IDS_AT_ONCE, end - start))
            owner, lengths = bulk.owners(ids, ps_num), bulk.varint_lengths(ids)
            rows, id_bytes = bulk.tally(owner, lengths, ps_num)
            yield _RowPiece(table, start, ids, owner, lengths, id_bytes, ids_at, values_at)
            ids_at, values_at = ids_at + id_bytes, values_at + rows * table.row_bytes

    def do(self, piece: _Pieces) -> None:
        """Write a piece."""
        if isinstance(piece, _RowPiece):
            self._write_rows(piece)
        else:
            for dense in piece:
                self._write_dense(dense)

    def _write_dense(self, dense: DenseBytes) -> None:
        owner, offset = self.layouts.dense_at(dense.name)
        array = self.source.variables[dense.name]
        data = array.read(dense.start, dense.size)
        self.sketch.add_dense(dense.name, array.size_bytes, dense.start, data)
        self.files[owner].write(offset + dense.start, data.data)
        self.reporter.advance(dense.size)

    def _write_rows(self, part: _RowPiece, *, values: bool = True) -> None:
        """Write the ids of some rows as varints, then the rows in batches."""
        table, ids, ps_num = part.table, part.ids, len(self.layouts)
        varints = bulk.group_varints(bulk.encode_varints(ids), part.lengths, part.owner, part.id_bytes)
        write_groups(self.files, varints, part.id_bytes, part.ids_at)
        self.reporter.advance(ids.nbytes)
        if not values and table.row_bytes:
            return
        values_at = part.values_at.copy()
        step = min(max(VALUE_BATCH_BYTES // max(table.row_bytes, 1), 1), len(ids))
        read, grouped = (np.empty((step, table.row_bytes), np.uint8) for _ in range(2))
        for first in range(0, len(ids), step):
            some = slice(first, min(first + step, len(ids)))
            found = table.read_rows(part.start + first, read[: some.stop - first])
            self.sketch.add_rows(table.name, ids[some], found)
            if table.row_bytes:
                rows, _ = bulk.tally(part.owner[some], part.lengths[some], ps_num)
                ordered = found
                if rows.max() < len(found):  # else all go to one shard, as they are
                    ordered = grouped[: len(found)]
                    bulk.group_rows(found, part.owner[some], rows, ordered)
                write_groups(self.files, ordered.reshape(-1), rows * table.row_bytes, values_at)
                values_at += rows * table.row_bytes
            self.reporter.advance(found.nbytes)


def _dense_pieces(variables: Mapping[str, ArrayData]) -> Iterator[list[DenseBytes]]:
    """Cut the variables into pieces of a batch; small ones come together, or a task would outweigh each."""
    pieces: list[DenseBytes] = []
    size = 0
    for name, array in variables.items():
        for start in range(0, max(array.size_bytes, 1), VALUE_BATCH_BYTES):
            pieces.append(DenseBytes(name, start, min(VALUE_BATCH_BYTES, array.size_bytes - start)))
            size += pieces[-1].size
            if size >= VALUE_BATCH_BYTES or len(pieces) >= _PIECES_AT_ONCE:
                yield pieces
                pieces, size = [], 0
    if pieces:
        yield pieces
