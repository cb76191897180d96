"""What a server hands over for its shard, checked: dense variables, and rows of tables in memory or in batches.

Everything is checked before the shard is visible, so bad values change nothing; whether an id occurs twice is found
while the disk is busy with the staged bytes. The sizes of a shard must be known
before it is written. For a table in memory its ids are read once. Batches are taken twice from a function that makes
them: once to count the rows, with the ids in a nameless temporary file, and once more for the values. Batches that come
only once go into such a file whole. The files are in $TMPDIR.

A save in the background has copies, in memory that the next one uses again: fresh memory costs more than the copy.

A whole model cut into what each server saves: variables by the hash of their names, rows by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Array, as_array, as_bytes, as_ids, dtype_name
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.parallel import default_workers, run_all
from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType, dtype_named
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.operations.save import Table, rows_of, vectors_of
from edl_ckpt.core.proof.duplicates import check_reads
from edl_ckpt.core.proof.id_order import NO_IDS, order_of
from edl_ckpt.core.sources.elasticdl.target import (
    CountedTable,
    PlacedVariable,
    check_ps_num,
    check_texts,
    row_owners,
    variable_owner,
)
from edl_ckpt.core.storage.files import ScratchFile

ID_BLOCK: Final = 1 << 16
"""Ids that are encoded at a time."""
_GROWTH: Final = 8
"""A buffer is an eighth larger than its array: tables grow from save to save."""
_PIECE_BYTES: Final = 16 << 20
_WORKERS: Final = 2
"""Threads that copy: more are not faster, because the memory is not."""

Batch: TypeAlias = tuple[Array, Array]
"""Rows of a table: int64 [n] ids and their [n, dim] vectors."""
Batches: TypeAlias = Callable[[], Iterable[Batch]] | Iterable[Batch]


@dataclass(frozen=True, slots=True)
class TableBatches:
    """A table larger than memory: batches of (int64 [n] ids, [n, dim] vectors), and what is known of all its rows.

    `batches` is a function that returns an iterable each time it is called, and gives the same rows each time: it is
    called twice. An iterable that is there only once, such as a generator, is copied to $TMPDIR first. `dim` and
    `dtype` are those of the vectors; they count where no batch comes.
    """

    batches: Batches
    dim: int
    dtype: str = "float32"
    initializer: str = "uniform"


AnyTable: TypeAlias = Table | TableBatches | Batch
Dense: TypeAlias = Mapping[str, Array]
Tables: TypeAlias = Mapping[str, AnyTable]
"""What `save` takes for a table; (ids, vectors) alone has the initializer 'uniform'."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseContent:
    """A dense variable: uint8 [size] are its bytes, little-endian, in C order."""

    placed: PlacedVariable
    data: bulk.U8


class TableContent:
    """Rows of a table, checked and counted: `block_bytes` int64 [blocks] has the bytes of each ID_BLOCK of ids."""

    def __init__(self, info: TableInfo, dtype: DType) -> None:
        self.info = info
        self.dtype = dtype
        self.row_bytes = info.dim * dtype.itemsize
        self.rows = 0
        self.block_bytes: bulk.I64 = np.zeros(0, np.int64)
        self._order = NO_IDS
        self._ps_num = 1

    @property
    def counted(self) -> CountedTable:
        """Return the table as a layout takes it; its dtype counts without rows too."""
        return CountedTable(self.info, self.dtype, np.array([self.rows]), self.block_bytes.sum(keepdims=True))

    def ids(self, start: int, stop: int) -> bulk.I64:
        """Return the ids of rows [start, stop)."""
        raise NotImplementedError

    def block(self, number: int) -> bulk.I64:
        """Return the ids of a block of ID_BLOCK rows; the last has fewer."""
        return self.ids(number * ID_BLOCK, min((number + 1) * ID_BLOCK, self.rows))

    def check(self, ps_id: int, ps_num: int) -> None:
        """Count the ids, and remember their order for `check_unique`; UsageError for one of another server."""
        sizes: list[int] = []
        for number in range(-(-self.rows // ID_BLOCK)):
            ids = self.block(number)
            sizes.append(int(bulk.varint_lengths(ids).sum(dtype=np.int64)))
            wrong = ids[row_owners(ids, ps_num) != ps_id] if ps_num > 1 else ids[:0]
            if len(wrong):
                (owner,) = row_owners(wrong[:1], ps_num).tolist()
                raise _misplaced(f"table {self.info.name!r}: id {wrong[0]}", owner, ps_id, ps_num)
            self._order = self._order.followed_by(order_of(ids))
        self.block_bytes = np.array(sizes, np.int64)
        self._ps_num = ps_num

    def check_unique(self) -> None:
        """Raise CorruptError when an id occurs twice; ids that ascend need no search."""
        reads = [partial(self.block, number) for number in range(len(self.block_bytes))]
        check_reads(self.info.name, reads, self._order, step=self._ps_num)


class MemoryTable(TableContent):
    """Rows of a table in memory: `values` is uint8 [n, row_bytes]."""

    def __init__(self, name: str, table: Table) -> None:
        ids, vectors = rows_of(name, table)
        dtype = dtype_named(name, dtype_name(vectors))
        super().__init__(TableInfo(name, vectors.shape[1], table.initializer), dtype)
        self._ids = np.ascontiguousarray(ids)
        self.values = as_bytes(vectors).reshape(len(ids), self.row_bytes)
        self.rows = len(ids)

    def ids(self, start: int, stop: int) -> bulk.I64:
        """Return the ids of rows [start, stop)."""
        return self._ids[start:stop]


class StreamedTable(TableContent):
    """Rows of a table that come in batches, with their ids in a temporary file, which `stack` closes."""

    def __init__(self, name: str, table: TableBatches, stack: ExitStack) -> None:
        """Take all batches: count and spool the ids, and the values too where they come only once."""
        dim = whole_number(f"dim of table {name!r}", table.dim, least=0)
        super().__init__(TableInfo(name, dim, table.initializer), dtype_named(name, str(table.dtype)))
        self._batches = table.batches
        self._id_file = stack.enter_context(closing(ScratchFile()))
        self._value_file = None if callable(table.batches) else stack.enter_context(closing(ScratchFile()))
        for ids, values in self._checked(table.batches() if callable(table.batches) else table.batches):
            self._id_file.write(8 * self.rows, as_bytes(ids).data)
            if self._value_file is not None and values.size:
                self._value_file.write(self.row_bytes * self.rows, values.reshape(-1).data)
            self.rows += len(ids)

    def _checked(self, batches: Iterable[Batch]) -> Iterator[tuple[bulk.I64, bulk.U8]]:
        name = self.info.name
        for batch in batches:
            try:
                some_ids, some_vectors = batch
            except (TypeError, ValueError):
                raise UsageError(f"table {name!r}: a batch must be (ids, vectors)") from None
            ids = np.ascontiguousarray(as_ids(some_ids, f"ids of table {name!r}"))
            vectors = vectors_of(name, some_vectors, len(ids), self.info.dim)
            if dtype_name(vectors) != self.dtype.name:
                raise UsageError(f"table {name!r}: a batch of {dtype_name(vectors)}, expected {self.dtype.name}")
            if len(ids):
                yield ids, as_bytes(vectors).reshape(len(ids), self.row_bytes)

    def ids(self, start: int, stop: int) -> bulk.I64:
        """Return the ids of rows [start, stop) as the first pass found them."""
        data = self._id_file.read(8 * start, 8 * (stop - start))
        return np.frombuffer(data, "<i8").astype(np.int64, copy=False)

    def read(self) -> Iterator[tuple[bulk.I64, bulk.U8]]:
        """Yield (ids, values uint8 [n, row_bytes]) once more; UsageError when they are other rows than before."""
        if self._value_file is not None:
            step = max((1 << 20) // max(self.row_bytes, 1), 1)
            for start in range(0, self.rows, step):
                count = min(step, self.rows - start)
                data = self._value_file.read(start * self.row_bytes, count * self.row_bytes)
                yield self.ids(start, start + count), np.frombuffer(data, np.uint8).reshape(count, self.row_bytes)
            return
        assert callable(self._batches)  # noqa: S101 - else there is a file of values
        text = f"table {self.info.name!r}: its batches had other ids when they were taken the second time"
        done, changed = 0, UsageError(text)
        for ids, values in self._checked(self._batches()):
            expected = self.ids(done, min(done + len(ids), self.rows))
            done += len(ids)
            if not np.array_equal(ids, expected):
                raise changed
            yield ids, values
        if done != self.rows:
            raise changed


@dataclass(frozen=True, slots=True, eq=False)
class ServerContent:
    """All that a shard will contain, in the order in which it is written."""

    variables: tuple[DenseContent, ...]
    tables: tuple[TableContent, ...]


def check_content(dense: Dense, tables: Tables, ps_id: int, ps_num: int, stack: ExitStack) -> ServerContent:
    """Return what a server saves, checked as every writer checks it; the stack closes temporary files.

    Whether an id occurs twice is left to `TableContent.check_unique`, which takes as long as all else. Raises
    UsageError for arrays that are no table, for names that cannot be, and for what belongs to another server;
    UnsupportedError for a dtype that no checkpoint can contain.
    """
    check_names(dense, tables)
    known = {name: known_table(name, table) for name, table in tables.items()}
    check_texts(dense, [TableInfo(name, 0, table.initializer) for name, table in known.items()])
    variables = [_dense(name, value) for name, value in dense.items()]
    for variable in variables:
        owner = variable_owner(variable.placed.name, ps_num)
        if owner != ps_id:
            raise _misplaced(f"variable {variable.placed.name!r}", owner, ps_id, ps_num)
    contents = [
        StreamedTable(name, table, stack) if isinstance(table, TableBatches) else MemoryTable(name, table)
        for name, table in known.items()
    ]
    for content in contents:
        content.check(ps_id, ps_num)
    return ServerContent(
        tuple(sorted(variables, key=lambda each: name_bytes(each.placed.name))),
        tuple(sorted(contents, key=lambda each: name_bytes(each.info.name))),
    )


def _misplaced(what: str, owner: int, ps_id: int, ps_num: int) -> UsageError:
    hint = "partition(dense, tables, ps_num) gives each server its part"
    return UsageError(f"{what} belongs to server {owner} of {ps_num}, not {ps_id}", hint=hint)


def known_table(name: str, table: object) -> Table | TableBatches:
    """Return a table of any form that `save` takes; UsageError for anything else."""
    if isinstance(table, Table | TableBatches):
        return table
    if isinstance(table, tuple) and len(table) == 2:
        return Table(*table)
    raise UsageError(f"table {name!r}: expected Table, TableBatches or (ids, vectors), got {type(table).__name__}")


def _dense(name: str, value: Array) -> DenseContent:
    array = as_array(value, what=f"variable {name!r}")
    data = as_bytes(array)
    return DenseContent(PlacedVariable(name, dtype_named(name, dtype_name(array)), array.shape, data.size), data)


def check_names(dense: object, tables: object) -> None:
    """Raise UsageError unless both are mappings of names."""
    for what, given in (("dense", dense), ("tables", tables)):
        if not isinstance(given, Mapping):
            raise UsageError(f"{what} must be a mapping of names, got {type(given).__name__}")


class SnapshotBuffers:
    """Takes one snapshot at a time; the one before it must not be used any more."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], bulk.U8] = {}
        self._used: dict[tuple[str, str], bulk.U8] = {}
        self._tasks: list[tuple[bulk.U8, bulk.U8]] = []

    def take(self, dense: Dense, tables: Tables) -> tuple[dict[str, Array], dict[str, AnyTable]]:
        """Return copies of all arrays; UsageError for tables in batches, and for values that are not arrays."""
        check_names(dense, tables)
        self._used, self._tasks = {}, []
        copied: dict[str, Array] = {
            name: self._copy(("variable", name), as_array(value, what=f"variable {name!r}"))
            for name, value in dense.items()
        }
        rows: dict[str, AnyTable] = {name: self._table(name, table) for name, table in tables.items()}
        self._buffers, tasks = self._used, self._tasks
        self._used, self._tasks = {}, []
        workers = min(default_workers(), _WORKERS) if sum(each.nbytes for _, each in tasks) > _PIECE_BYTES else 1
        run_all(lambda pair: np.copyto(*pair), tasks, workers)
        return copied, rows

    def _table(self, name: str, given: AnyTable) -> Table:
        table = known_table(name, given)
        if isinstance(table, TableBatches):
            raise UsageError(
                f"table {name!r}: batches cannot be copied", hint="hand everything over with copy=False, or use save"
            )
        own_ids, own_vectors = (
            self._copy((kind, name), as_array(value, what=f"{kind} of table {name!r}"))
            for kind, value in (("ids", table.ids), ("vectors", table.vectors))
        )
        return Table(own_ids, own_vectors, table.initializer)

    def _copy(self, key: tuple[str, str], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array of the same content in one of our buffers; the bytes are copied later, in pieces."""
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < array.nbytes:
            buffer = np.empty(array.nbytes + array.nbytes // _GROWTH, np.uint8)
        self._used[key] = buffer
        copy: npt.NDArray[Any] = buffer[: array.nbytes].view(array.dtype).reshape(array.shape)
        if not array.flags.c_contiguous:
            np.copyto(copy, array)
        else:
            source = array.reshape(-1).view(np.uint8)
            self._tasks += [
                (buffer[start : min(start + _PIECE_BYTES, array.nbytes)], source[start : start + _PIECE_BYTES])
                for start in range(0, array.nbytes, _PIECE_BYTES)
            ]
        return copy


@dataclass(frozen=True, slots=True, eq=False)
class ServerPart:
    """What one server saves of a model: dense variables and tables by their names; every server has every table."""

    dense: dict[str, Array] = field(default_factory=dict)
    tables: dict[str, Table | TableBatches] = field(default_factory=dict)

    def __repr__(self) -> str:
        return describe("ServerPart", "", counted(len(self.dense), "variable"), counted(len(self.tables), "table"))


def partition(dense: Dense, tables: Tables, ps_num: int) -> tuple[ServerPart, ...]:
    """Return the part of each of `ps_num` servers, for those who have the whole model; parts[i] is that of ps_id i.

    Variables are the arrays themselves. The rows of a table in memory are copied once, grouped by their server, and the
    parts are slices of that. Batches must come from a function: each server takes all of them, and keeps its own rows.
    Raises UsageError for arrays that are no table, and for batches that come only once.
    """
    count = whole_number("ps_num", ps_num)
    check_ps_num(count)
    check_names(dense, tables)
    check_texts(dense, [TableInfo(name, 0, "") for name in tables])
    parts = tuple(ServerPart() for _ in range(count))
    for name, value in dense.items():
        parts[variable_owner(name, count)].dense[name] = value
    for name, table in tables.items():
        for part, own in zip(parts, _partitioned(name, table, count), strict=True):
            part.tables[name] = own
    return parts


def _partitioned(name: str, given: AnyTable, ps_num: int) -> Iterator[Table | TableBatches]:
    table = known_table(name, given)
    if isinstance(table, TableBatches):
        if not callable(table.batches):
            raise UsageError(
                f"table {name!r}: its batches come only once, and each server needs all of them",
                hint="give a function that returns them anew each time",
            )
        for ps_id in range(ps_num):
            own = partial(_filtered, name, table.batches, ps_id, ps_num)
            yield TableBatches(own, table.dim, table.dtype, table.initializer)
        return
    (ids, vectors), initializer = rows_of(name, table), table.initializer
    if ps_num == 1:
        yield Table(ids, vectors, initializer)
        return
    owner = row_owners(ids, ps_num)
    rows = np.bincount(owner, minlength=ps_num).astype(np.int64)
    grouped_ids, grouped = _grouped(ids, owner, rows), _grouped(vectors, owner, rows)
    ends = np.cumsum(rows)
    for start, end in zip((ends - rows).tolist(), ends.tolist(), strict=True):
        yield Table(grouped_ids[start:end], grouped[start:end], initializer)


def _grouped(array: npt.NDArray[np.generic], owner: bulk.U16, rows: bulk.I64) -> npt.NDArray[np.generic]:
    """Return the rows of an array ordered by their server, and in their old order within one."""
    if not array.size:
        return array
    ordered = np.ascontiguousarray(array)
    out = np.empty_like(ordered)
    values, target = (each.reshape(len(array), -1).view(np.uint8).reshape(len(array), -1) for each in (ordered, out))
    bulk.group_rows(values, owner, rows, target)
    return out


def _filtered(name: str, batches: Callable[[], Iterable[Batch]], ps_id: int, ps_num: int) -> Iterator[Batch]:
    for some_ids, some_vectors in batches():
        ids = as_ids(some_ids, f"ids of table {name!r}")
        mine = row_owners(ids, ps_num) == ps_id
        yield ids[mine], as_array(some_vectors, what=f"vectors of table {name!r}")[mine]
