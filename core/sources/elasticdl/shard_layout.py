"""The layout of v4 shards: every offset is known before a value moves.

`lay_out_shards` computes, from names, shapes and sizes alone, where each value and each id of every shard of a version
will lie, and which bytes stand between them. A server that saves its own shard lays it out as a version of one shard.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import TableInfo, table_dtype
from edl_ckpt.core.sources.elasticdl import placement, wire
from edl_ckpt.core.sources.elasticdl.checks import check_ps_num, check_texts, check_version
from edl_ckpt.core.sources.elasticdl.generations import why_impossible
from edl_ckpt.core.sources.elasticdl.literals import Literals
from edl_ckpt.core.sources.elasticdl.small_messages import info_bytes
from edl_ckpt.core.storage.interface import Sinks, is_on_disk

EMPTY_MODEL: Final = wire.tag(1, wire.VARINT) + varint(0)
"""A model of version 0 without anything, spelled out."""
_MANY_FILES: Final = 32
"""From so many files on the kernel writes them in one call."""
_SIZES_AT_ONCE: Final = 1 << 14
"""Entries of tables, one for each table in each shard, whose sizes are computed at a time."""


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A dense variable that gets a place in a shard."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class CountedTable:
    """A table whose rows are counted for each shard: int64 [ps_num] rows, and bytes of their ids as varints.

    `dtype` is that of its rows, None without any in all shards.
    """

    info: TableInfo
    dtype: DType | None
    rows: bulk.I64
    id_bytes: bulk.I64


class VersionLayout:
    """The layouts of all shards of a version; the offsets of tables are arrays, int64 [tables, ps_num].

    Variables and tables stand in the order given. Empty values and ids are left out, as protobuf does. The info of a
    table and its tensor, [0, dim] where a shard has no row of it, name one dtype in every shard: a Go server takes the
    width of a row from the info, and cannot merge shards whose tensors differ in dtype.
    """

    def __init__(self, version: int, dense: Sequence[Sequence[PlacedVariable]], tables: Sequence[CountedTable]) -> None:
        self._dense, self._tables = dense, tables
        self._dtypes = [table_dtype(table.dtype, table.info) for table in tables]
        self._described = _describe(version, [table.info for table in tables], self._dtypes)
        self._number = {table.info.name: number for number, table in enumerate(tables)}
        self._dense_at: dict[str, tuple[int, int]] = {}
        sizes = np.zeros((len(tables) + 1, 3, len(dense)), np.int64)
        for ps_id, variables in enumerate(dense):
            at = len(self._described)
            for variable in variables:
                at += len(_variable_head(variable))
                self._dense_at[variable.name] = ps_id, at
                at += variable.size_bytes
            sizes[0, 2, ps_id] = at
        step = max(_SIZES_AT_ONCE // len(dense), 1)
        for start in range(0, len(tables), step):
            some = slice(start, start + step)
            sizes[1:][some] = _table_sizes(tables[some], self._dtypes[some])
        ends = np.cumsum(sizes.reshape(-1, len(dense)), axis=0).reshape(sizes.shape)
        self.tables_at: bulk.I64 = np.ascontiguousarray(ends[:, 2])
        """Where each table's entry begins, and where the last one ends: int64 [tables + 1, ps_num]."""
        self.size_bytes: bulk.I64 = self.tables_at[-1]
        """The bytes of each shard: int64 [ps_num]."""
        self._values_at: bulk.I64 = ends[1:, 0]
        self._ids_at: bulk.I64 = ends[1:, 1]

    def __len__(self) -> int:
        return len(self._dense)

    def front(self, ps_id: int) -> list[tuple[int, bytes]]:
        """Return the (offset, bytes) of what stands in a shard before its tables, but for values."""
        front: list[tuple[int, bytes]] = []
        data = bytearray(self._described)
        for variable in self._dense[ps_id]:
            data += _variable_head(variable)
            if variable.size_bytes:
                front.append((self._dense_at[variable.name][1] - len(data), bytes(data)))
                data.clear()
        if data:
            front.append((int(self.tables_at[0, ps_id]) - len(data), bytes(data)))
        return front

    @property
    def variables(self) -> list[int]:
        """Return the number of variables of each shard."""
        return [len(some) for some in self._dense]

    def dense_at(self, name: str) -> tuple[int, int]:
        """Return the shard of a variable, and the offset of its values there."""
        return self._dense_at[name]

    def number(self, table: str) -> int:
        """Return the number of a table in the order of the shards."""
        return self._number[table]

    def values_at(self, table: str) -> bulk.I64:
        """Return the offset of a table's rows in each shard: int64 [ps_num]."""
        offsets: bulk.I64 = self._values_at[self._number[table]]
        return offsets

    def ids_at(self, table: str) -> bulk.I64:
        """Return the offset of a table's ids in each shard: int64 [ps_num]."""
        offsets: bulk.I64 = self._ids_at[self._number[table]]
        return offsets

    @property
    def names(self) -> list[str]:
        """Return the names of all tables, in the order of the shards."""
        return [table.info.name for table in self._tables]

    def heads(self, ps_id: int, tables: Iterable[str]) -> Iterator[tuple[int, bytes]]:
        """Yield the (offset, bytes) of what stands in the entries of tables of a shard before rows, and before ids."""
        for number in map(self._number.__getitem__, tables):
            ends = int(self._values_at[number, ps_id]), int(self._ids_at[number, ps_id])
            for head, end in zip(self._heads(number, ps_id), ends, strict=True):
                if head:
                    yield end - len(head), head

    def _heads(self, number: int, ps_id: int) -> tuple[bytes, bytes]:
        """Return what stands in a table's entry of one shard before its rows, and before its ids."""
        table, dtype = self._tables[number], self._dtypes[number]
        rows, id_bytes = int(table.rows[ps_id]), int(table.id_bytes[ps_id])
        values_size = rows * table.info.dim * dtype.itemsize
        tensor = _tensor_head(dtype, (rows, table.info.dim), values_size)
        vectors = wire.head(1, len(tensor) + values_size) + tensor
        ids = wire.head(2, id_bytes) if id_bytes else b""
        name = table.info.name.encode()
        slices_size = len(vectors) + values_size + len(ids) + id_bytes
        key = wire.head(1, len(name)) + name + wire.head(2, slices_size)
        return wire.head(4, len(key) + slices_size) + key + vectors, ids

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        dense = sum(variable.size_bytes for some in self._dense for variable in some)
        rows = np.array([table.rows.sum() for table in self._tables], np.int64)
        return dense + int((rows * self._row_bytes()).sum())

    def _row_bytes(self) -> bulk.I64:
        """Return the bytes of a row of each table."""
        return np.array([t.info.dim * d.itemsize for t, d in zip(self._tables, self._dtypes, strict=True)], np.int64)

    @property
    def entries(self) -> bulk.I64:
        """Return how many variables and tables each shard has: int64 [ps_num]."""
        return np.array([len(self._tables) + len(some) for some in self._dense], np.int64)

    def literals(self, ps_id: int) -> Literals:
        """Return what a shard has besides values and ids, to the byte."""
        front = self.front(ps_id)
        values_at, ids_at = self._values_at[:, ps_id], self._ids_at[:, ps_id]
        rows = np.array([t.rows[ps_id] for t in self._tables], np.int64)
        values_end = values_at + rows * self._forms[1][:, 1] * self._forms[1][:, 2]
        starts = np.stack([self.tables_at[:-1, ps_id], values_end], 1).reshape(-1)
        ends = np.stack([values_at, ids_at], 1).reshape(-1)
        places = np.cumsum(ends - starts).reshape(-1, 2)
        heads = np.empty(int(places[-1, 1]) if len(places) else 0, np.uint8)
        self.put_heads(slice(None), places[:, :1], places[:, 1:], heads, shards=slice(ps_id, ps_id + 1))
        before = np.array([(at, at + len(data)) for at, data in front], np.int64).reshape(-1, 2)
        return Literals(
            np.concatenate([before[:, 0], starts]),
            np.concatenate([before[:, 1], ends]),
            np.concatenate([np.frombuffer(b"".join(data for _, data in front), np.uint8), heads]),
        )

    @functools.cached_property
    def _forms(self) -> tuple[bytes, bulk.I64]:
        """Return the names of all tables, and where each ends, its dim, its itemsize and dtype: int64 [tables, 4]."""
        names = [table.info.name.encode() for table in self._tables]
        ends, some = accumulate(map(len, names)), zip(self._tables, self._dtypes, strict=True)
        forms = [(end, t.info.dim, d.itemsize, d.tf_enum) for end, (t, d) in zip(ends, some, strict=True)]
        return b"".join(names), np.array(forms, np.int64).reshape(-1, 4)

    def put_heads(
        self, tables: slice, values_at: bulk.I64, ids_at: bulk.I64, out: bulk.U8, *, shards: slice = slice(None)
    ) -> None:
        """Put what stands before the rows and the ids of some tables into `out`, so that it ends at their places.

        The places are int64 [tables, shards]. Raises ValueError where `out` has no room.
        """
        some = self._tables[tables]
        if bulk.kernel is not None and some:
            rows = np.concatenate([table.rows[shards] for table in some])
            id_bytes = np.concatenate([table.id_bytes[shards] for table in some])
            names, forms = self._forms
            before = int(forms[tables.start - 1, 0]) if tables.start else 0
            places = np.ascontiguousarray(values_at), np.ascontiguousarray(ids_at)
            bulk.kernel.put_heads(names[before:], forms[tables] - [before, 0, 0, 0], rows, id_bytes, *places, out)
            return
        for table, of_table in zip(some, np.stack([values_at, ids_at], 2).tolist(), strict=True):
            number = self._number[table.info.name]
            for ps_id, ends in zip(range(len(self))[shards], of_table, strict=True):
                for data, end in zip(self._heads(number, ps_id), ends, strict=True):
                    if not 0 <= end - len(data) <= end <= len(out):
                        raise ValueError(f"put_heads: table {table.info.name!r} has no room in shard {ps_id}")
                    out.data[end - len(data) : end] = data


def lay_out_shards(
    version: int, variables: Iterable[PlacedVariable], tables: Iterable[CountedTable], ps_num: int
) -> VersionLayout:
    """Return the layouts of all shards of a version: each variable in the shard of its owner, tables in every shard.

    Variables and tables stand in the order of their names' bytes, whatever the order they are given in. Every writer
    calls this before it writes, so `checks` are made here. Raises UsageError for a version, a number of servers or a
    name that cannot be.
    """
    check_ps_num(ps_num)
    check_version(version)
    variables, tables = list(variables), list(tables)
    check_texts([variable.name for variable in variables], [table.info for table in tables])
    for variable in variables:
        if fault := why_impossible(variable.shape):
            raise UnsupportedError(f"variable {variable.name!r}: {fault}")
    dense: list[list[PlacedVariable]] = [[] for _ in range(ps_num)]
    for variable in sorted(variables, key=lambda v: v.name.encode()):
        dense[placement.variable_owner(variable.name, ps_num)].append(variable)
    return VersionLayout(version, dense, sorted(tables, key=lambda t: t.info.name.encode()))


def _describe(version: int, infos: Iterable[TableInfo], dtypes: Iterable[DType]) -> bytes:
    """Return what a shard begins with: the version and the infos of all tables."""
    parts = [wire.tag(1, wire.VARINT) + varint(version)] if version else []
    for info, dtype in zip(infos, dtypes, strict=True):
        data = info_bytes(info.name, info.dim, info.initializer, dtype.tf_enum)
        parts.append(wire.head(2, len(data)) + data)
    return b"".join(parts)


def _variable_head(variable: PlacedVariable) -> bytes:
    """Return what stands in a variable's entry before its values."""
    tensor = _tensor_head(variable.dtype, variable.shape, variable.size_bytes)
    name = variable.name.encode()
    value_size = len(tensor) + variable.size_bytes
    key = wire.head(1, len(name)) + name + wire.head(2, value_size)
    return wire.head(3, len(key) + value_size) + key + tensor


def _table_sizes(tables: Sequence[CountedTable], dtypes: Sequence[DType]) -> bulk.I64:
    """Return the bytes before each table's rows, of its rows with what stands before its ids, and of its ids.

    They are int64 [tables, 3, ps_num], what `VersionLayout._heads` has for each shard.
    """
    rows, ids = np.stack([table.rows for table in tables]), np.stack([table.id_bytes for table in tables])
    dims = np.array([[table.info.dim] for table in tables], np.int64)
    values = rows * dims * np.array([[dtype.itemsize] for dtype in dtypes], np.int64)
    shape = _sizes_of(rows) + _sizes_of(dims)
    tensor = 3 + _width(shape) + shape + np.where(values > 0, 1 + _width(values), 0)
    vectors = 1 + _width(tensor + values) + tensor
    before_ids = np.where(ids > 0, 1 + _width(ids), 0)
    slices = vectors + values + before_ids + ids
    names = np.array([[len(table.info.name.encode())] for table in tables], np.int64)
    key = 1 + _width(names) + names + 1 + _width(slices)
    return np.stack([1 + _width(key + slices) + key + vectors, values + before_ids, ids], 1)


def _sizes_of(count: bulk.I64) -> bulk.I64:
    """Return the bytes of each size in a shape."""
    return 2 + np.where(count > 0, 1 + _width(count), 0)


def _width(numbers: bulk.I64) -> bulk.I64:
    """Return how many bytes the varint of each number takes."""
    return bulk.varint_lengths(numbers.reshape(-1)).reshape(numbers.shape).astype(np.int64)


@functools.lru_cache(1 << 14)
def _tensor_head(dtype: DType, shape: tuple[int, ...], size_bytes: int) -> bytes:
    """Return a TensorProto up to its values."""
    dims = (wire.tag(1, wire.VARINT) + varint(size) if size else b"" for size in shape)
    data = b"".join(wire.head(2, len(dim)) + dim for dim in dims)
    head = wire.tag(1, wire.VARINT) + varint(dtype.tf_enum) + wire.head(2, len(data)) + data
    return head + (wire.head(4, size_bytes) if size_bytes else b"")


def write_groups(files: Sinks, data: bulk.U8, sizes: bulk.I64, offsets: bulk.I64) -> None:
    """Write consecutive stretches of `data`, one for each target, at each target's offset.

    Many files of the local disk are written by the compiled kernel: between two writes no thread waits for Python. It
    raises the error of the file that fails.
    """
    targets = np.flatnonzero(sizes)
    sizes, offsets = sizes[targets], offsets[targets]
    wanted = [files[target] for target in targets.tolist()]
    on_disk = [file for file in wanted if is_on_disk(file)] if len(wanted) >= _MANY_FILES else []
    if bulk.kernel is not None and on_disk and len(on_disk) == len(wanted):
        descriptors = np.array([file.descriptor for file in on_disk], np.int32)
        failed = bulk.kernel.write_groups(descriptors, data, sizes, offsets)
        if failed is not None:
            number, error = failed
            raise on_disk[number].failed(error, int(offsets[number]))
        for file, size in zip(on_disk, sizes.tolist(), strict=True):
            file.add_moved(size)
        return
    start = 0
    for sink, size, offset in zip(wanted, sizes.tolist(), offsets.tolist(), strict=True):
        sink.write(offset, data.data[start : start + size])
        start += size
