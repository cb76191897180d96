"""The pass of an import over its arrays: every value is read once, and written at its offset; here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.commit.part_plan import DenseBytes
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.routing import sketch_size
from edl_ckpt.core.format.shard_layout import VersionLayout, write_groups
from edl_ckpt.core.operations.importing.arrays import ArrayData
from edl_ckpt.core.operations.importing.names import Assignment, ImportedTable
from edl_ckpt.core.operations.importing.spread import IDS_AT_ONCE, ArraysValue, Rows, Spread
from edl_ckpt.core.packing import packed
from edl_ckpt.core.parallel import Advance, Executor, default_workers, run_parallel
from edl_ckpt.core.progress import Counted, Reporter
from edl_ckpt.core.storage.interface import Sink

_PARTS_AT_ONCE: Final = 256
"""Small variables that one task writes."""


class Stretch(NamedTuple):
    """Rows of a table as a task for another process: what of them goes to each server, and where that begins."""

    rows: Rows
    counts: bulk.I64
    id_bytes: bulk.I64
    ids_at: bulk.I64
    values_at: bulk.I64


def numbered_stretches(layouts: VersionLayout, arrays: Assignment, spread: Spread) -> Iterator[Stretch]:
    """Yield all stretches with their places: each shard gets the rows of a table in the order of the source."""
    last = -1
    for rows, counts in zip(spread.stretches, spread.counted, strict=True):
        table = arrays.tables[rows.table]
        if rows.table != last:
            ids_at, values_at = layouts.ids_at(table.name), layouts.values_at(table.name)
            last = rows.table
        yield Stretch(rows, counts.rows, counts.id_bytes, ids_at, values_at)
        ids_at, values_at = ids_at + counts.id_bytes, values_at + counts.rows * table.row_bytes


@dataclass(frozen=True, slots=True)
class ImportWork:
    """The pass over the arrays as a work for other processes; a task is some bytes of variables, or some stretches."""

    arrays: ArraysValue
    layouts: VersionLayout
    targets: StagedTargets

    def open(self) -> Assignment:
        """Open the arrays in another process."""
        return self.arrays.open()

    def do(self, opened: Assignment, task: tuple[DenseBytes | Stretch, ...], advance: Advance) -> ContentSketch:
        """Write everything in a task; return the sums of what was read."""
        numbers: set[int] = set()
        for part in task:
            if isinstance(part, Stretch):
                numbers.update(np.flatnonzero(part.id_bytes).tolist())
            else:
                numbers.add(self.layouts.dense_at(part.name)[0])
        with self.targets.opened(numbers) as files:
            write = Write(self.layouts, opened, files, Counted(advance))
            for part in task:
                if isinstance(part, Stretch):
                    write.move_rows(part)
                else:
                    write.move_dense(part)
        return write.sketch


@dataclass(frozen=True, slots=True)
class _DensePart:
    """Bytes [start, start + size) of an array that becomes a dense variable."""

    name: str
    array: ArrayData
    start: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class _RowPart:
    """Rows of a table from `start` on, one for each id, and the offsets of the first of each shard."""

    table: ImportedTable
    start: int
    ids: bulk.I64
    owner: bulk.U16
    lengths: bulk.U8
    id_bytes: bulk.I64
    ids_at: bulk.I64
    values_at: bulk.I64


class Write:
    """The pass over the arrays: workers read every value once and write it at its offset."""

    def __init__(self, layouts: VersionLayout, arrays: Assignment, files: Sequence[Sink], reporter: Reporter) -> None:
        self._layouts = layouts
        self._arrays = arrays
        self._files = files
        self._reporter = reporter
        self.sketch = ContentSketch()

    def run(self) -> ContentSketch:
        """Write everything; return the sketch of the values that were read."""
        arrays = self._arrays
        self._write_between()
        tasks: Iterator[list[_DensePart] | _RowPart] = chain(
            _dense_parts(arrays.variables), *(self._row_parts(table) for table in arrays.tables)
        )
        for _ in run_parallel(self._do, tasks, default_workers()):
            pass
        return self.sketch

    def run_elsewhere(self, spread: Spread, executor: Executor, targets: StagedTargets) -> ContentSketch:
        """Do the same with the values read and written into files by other processes."""
        self._write_between()
        tasks: Iterator[tuple[DenseBytes | Stretch, ...]] = chain(
            self._dense_tasks(spread.task_bytes), self._stretch_tasks(spread)
        )
        work = ImportWork(spread.arrays, self._layouts, targets)
        with closing(executor.run(work, self._arrays, tasks, self._reporter.advance)) as results:
            for sketch in results:
                self.sketch.add(sketch)
        return self.sketch

    def _write_between(self) -> None:
        for file, layout in zip(self._files, self._layouts, strict=True):
            file.write_between(layout.between)
        self._reporter.start("importing", self._arrays.size_bytes)

    def _dense_tasks(self, task_bytes: int) -> Iterator[tuple[DenseBytes, ...]]:
        """Yield all variables in tasks, cut where the chunks of their sums begin."""
        step = max(task_bytes // bulk.CHUNK_BYTES, 1) * bulk.CHUNK_BYTES

        def parts() -> Iterator[tuple[DenseBytes, int, str, int]]:
            for name, array in self._arrays.variables.items():
                total = array.size_bytes
                result = total if total <= bulk.CHUNK_BYTES else 4 * sketch_size(total)
                for start in range(0, max(total, 1), step):
                    size = min(step, total - start)
                    yield DenseBytes(name, start, size), size, "", result

        return packed(parts(), task_bytes)

    def _stretch_tasks(self, spread: Spread) -> Iterator[tuple[Stretch, ...]]:
        """Yield all rows in tasks."""

        def parts() -> Iterator[tuple[Stretch, int, str, int]]:
            for stretch in numbered_stretches(self._layouts, self._arrays, spread):
                table, rows = self._arrays.tables[stretch.rows.table], stretch.rows
                yield stretch, (rows.end - rows.start) * (8 + table.row_bytes), "", 4 * sketch_size(table.row_bytes)

        return packed(parts(), spread.task_bytes)

    def move_dense(self, part: DenseBytes) -> None:
        """Write bytes of a variable, some at a time."""
        array = self._arrays.variables[part.name]
        for start in range(part.start, max(part.start + part.size, part.start + 1), VALUE_BATCH_BYTES):
            size = min(VALUE_BATCH_BYTES, part.start + part.size - start)
            self._write_dense(_DensePart(part.name, array, start, size))

    def move_rows(self, part: Stretch, *, values: bool = True) -> None:
        """Write the ids of a stretch, and with `values` its rows; LockedError when its ids are not those counted."""
        table = self._arrays.tables[part.rows.table]
        ids_end = part.ids_at + part.id_bytes
        for some in self._parts(table, part.rows.start, part.rows.end, part.ids_at, part.values_at):
            if (some.ids_at + some.id_bytes > ids_end).any():
                raise LockedError("the ids have changed since they were counted", path=table.ids.reader.path)
            self._write_rows(some, values=values)

    def _row_parts(self, table: ImportedTable) -> Iterator[_RowPart]:
        """Yield the rows of a table with their places: each shard gets its rows in the order of the source.

        `run_parallel` asks for one part after the other, in one thread, so each begins where the one before it ends.
        Nothing is kept of those that are done: the memory does not grow with the number of rows.
        """
        places = self._layouts.ids_at(table.name), self._layouts.values_at(table.name)
        yield from self._parts(table, 0, table.rows, *places)

    def _parts(
        self, table: ImportedTable, start: int, end: int, ids_at: bulk.I64, values_at: bulk.I64
    ) -> Iterator[_RowPart]:
        """Yield rows [start, end) of a table, from the places of their first ids and values in each shard on."""
        ps_num = len(self._layouts)
        for start in range(start, end, IDS_AT_ONCE):  # noqa: PLR1704, B020 - each begins where the one before ends
            ids = table.read_ids(start, min(IDS_AT_ONCE, end - start))
            owner, lengths = bulk.owners(ids, ps_num), bulk.varint_lengths(ids)
            rows, id_bytes = bulk.tally(owner, lengths, ps_num)
            yield _RowPart(table, start, ids, owner, lengths, id_bytes, ids_at, values_at)
            ids_at, values_at = ids_at + id_bytes, values_at + rows * table.row_bytes

    def _do(self, task: list[_DensePart] | _RowPart) -> None:
        if isinstance(task, _RowPart):
            self._write_rows(task)
        else:
            for part in task:
                self._write_dense(part)

    def _write_dense(self, part: _DensePart) -> None:
        owner, offset = self._layouts.dense_at(part.name)
        data = part.array.read(part.start, part.size)
        self.sketch.add_dense(part.name, part.array.size_bytes, part.start, data)
        self._files[owner].write(offset + part.start, data.data)
        self._reporter.advance(part.size)

    def _write_rows(self, part: _RowPart, *, values: bool = True) -> None:
        """Write the ids of some rows as varints, then the rows in batches."""
        table, ids, ps_num = part.table, part.ids, len(self._layouts)
        varints = bulk.group_varints(bulk.encode_varints(ids), part.lengths, part.owner, part.id_bytes)
        write_groups(self._files, varints, part.id_bytes, part.ids_at)
        self._reporter.advance(ids.nbytes)
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
                write_groups(self._files, ordered.reshape(-1), rows * table.row_bytes, values_at)
                values_at += rows * table.row_bytes
            self._reporter.advance(found.nbytes)


def _dense_parts(variables: Mapping[str, ArrayData]) -> Iterator[list[_DensePart]]:
    """Cut the variables into parts of a batch; small ones come together, or a task of its own would outweigh each."""
    parts: list[_DensePart] = []
    size = 0
    for name, array in variables.items():
        for start in range(0, max(array.size_bytes, 1), VALUE_BATCH_BYTES):
            parts.append(_DensePart(name, array, start, min(VALUE_BATCH_BYTES, array.size_bytes - start)))
            size += parts[-1].size
            if size >= VALUE_BATCH_BYTES or len(parts) >= _PARTS_AT_ONCE:
                yield parts
                parts, size = [], 0
    if parts:
        yield parts
