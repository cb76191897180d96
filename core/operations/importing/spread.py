"""Arrays of an import that other processes read: as a value, and with the ids counted by them.

Every process opens the files itself, those that the command has checked. The rows of a table are cut into stretches of
a task each. What a stretch gives to each server follows from the counts, so all of them can be written at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.duplicates import NO_IDS, IdOrder, order_of
from edl_ckpt.core.checkpoint.elsewhere import FileValue
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DType
from edl_ckpt.core.operations.importing.arrays import ArrayData, ArraySource
from edl_ckpt.core.operations.importing.names import Assignment, ImportedTable
from edl_ckpt.core.packing import packed
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import Reporter

IDS_AT_ONCE: Final = 1 << 16
"""Ids that are looked at together: 512 KiB."""


class _ArrayValue(NamedTuple):
    """An array in one of the files, by its number."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    file: int
    offset: int


class _TableValue(NamedTuple):
    name: str
    ids: _ArrayValue
    vectors: _ArrayValue
    initializer: str


@dataclass(frozen=True, slots=True)
class ArraysValue:
    """The arrays of an import as a value."""

    files: Sequence[FileValue]
    variables: Mapping[str, _ArrayValue]
    tables: Sequence[_TableValue]

    @classmethod
    def of(cls, arrays: Assignment, source: ArraySource) -> ArraysValue:
        """Return the value of arrays that a source has opened."""
        numbers = {id(reader): number for number, reader in enumerate(source.readers())}

        def value(array: ArrayData) -> _ArrayValue:
            return _ArrayValue(array.name, array.dtype, array.shape, numbers[id(array.reader)], array.offset)

        variables = {name: value(array) for name, array in arrays.variables.items()}
        tables = [_TableValue(t.name, value(t.ids), value(t.vectors), t.initializer) for t in arrays.tables]
        return cls(source.values(), variables, tables)

    def open(self) -> Assignment:
        """Open the arrays in another process; each file is opened by its first read."""
        readers = [file.open() for file in self.files]

        def array(value: _ArrayValue) -> ArrayData:
            return ArrayData(value.name, value.dtype, value.shape, readers[value.file], value.offset)

        variables = {name: array(value) for name, value in self.variables.items()}
        tables = (ImportedTable(t.name, array(t.ids), array(t.vectors), t.initializer) for t in self.tables)
        return Assignment(variables, tuple(tables))


class Rows(NamedTuple):
    """Rows [start, end) of a table, by its number."""

    table: int
    start: int
    end: int


class Counts(NamedTuple):
    """The order of the ids of some rows; how many rows and bytes of ids go to each server, int64 [ps_num]."""

    order: IdOrder
    rows: bulk.I64
    id_bytes: bulk.I64


@dataclass(frozen=True, slots=True)
class CountWork:
    """Counting ids; a task is some rows of some tables."""

    arrays: ArraysValue
    ps_num: int

    def open(self) -> Assignment:
        """Open the arrays in another process."""
        return self.arrays.open()

    def do(self, opened: Assignment, task: tuple[Rows, ...], advance: Advance) -> list[Counts]:
        """Count the ids of some rows."""
        found = []
        for part in task:
            table, order = opened.tables[part.table], NO_IDS
            rows, id_bytes = np.zeros(self.ps_num, np.int64), np.zeros(self.ps_num, np.int64)
            for start in range(part.start, part.end, IDS_AT_ONCE):
                ids = table.read_ids(start, min(IDS_AT_ONCE, part.end - start))
                more_rows, more_bytes = bulk.tally(bulk.owners(ids, self.ps_num), bulk.varint_lengths(ids), self.ps_num)
                rows, id_bytes, order = rows + more_rows, id_bytes + more_bytes, order.followed_by(order_of(ids))
                advance(ids.nbytes)
            found.append(Counts(order, rows, id_bytes))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The arrays as a value, and the stretches of their tables with what was counted."""

    arrays: ArraysValue
    stretches: Sequence[Rows]
    counted: Sequence[Counts]
    task_bytes: int

    def counts(self, table: int, ps_num: int) -> tuple[bulk.I64, bulk.I64, IdOrder]:
        """Return the rows and the bytes of ids of a table for each server, int64 [ps_num], and the order of its ids."""
        rows, id_bytes, order = np.zeros(ps_num, np.int64), np.zeros(ps_num, np.int64), NO_IDS
        for part, own in zip(self.stretches, self.counted, strict=True):
            if part.table == table:
                rows, id_bytes, order = rows + own.rows, id_bytes + own.id_bytes, order.followed_by(own.order)
        return rows, id_bytes, order


def count_elsewhere(
    arrays: Assignment, source: ArraySource, ps_num: int, executor: Executor, reporter: Reporter
) -> Spread:
    """Let other processes count the ids of all tables."""
    value, task_bytes = ArraysValue.of(arrays, source), executor.task_bytes(arrays.size_bytes)
    stretches = [
        Rows(number, start, min(start + step, table.rows))
        for number, table in enumerate(arrays.tables)
        for step in [max(task_bytes // (8 + table.row_bytes) // IDS_AT_ONCE, 1) * IDS_AT_ONCE]
        for start in range(0, table.rows, step)
    ]
    reporter.start("counting ids", sum(8 * (part.end - part.start) for part in stretches))
    tasks = list(packed(((part, 8 * (part.end - part.start), "", 16 * ps_num) for part in stretches), task_bytes))
    work = CountWork(value, ps_num)
    with closing(executor.run(work, arrays, tasks, reporter.advance)) as found:
        return Spread(value, stretches, [counts for some in found for counts in some], task_bytes)
