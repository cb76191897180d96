"""The layout of v4 shards: every offset is known before a value moves.

`lay_out_shard` computes, from names, shapes and sizes alone, where each value and each id of a shard's file will lie
and which bytes stand between them. `lay_out_shards` does so for all shards of a version.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, overload

import numpy as np

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.sources.elasticdl import placement, wire
from edl_ckpt.core.sources.elasticdl.checks import check_ps_num, check_texts, check_version, restore_warnings
from edl_ckpt.core.sources.elasticdl.literals import Literals
from edl_ckpt.core.storage.interface import OnDisk, Sinks, is_on_disk
from edl_ckpt.proto import tensor_pb2

EMPTY_MODEL: Final = wire.tag(1, wire.VARINT) + wire.varint(0)
"""A model of version 0 without anything, spelled out."""
_MANY_FILES: Final = 32
"""From so many files on the kernel writes them in one call."""


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A dense variable that gets a place in a shard."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlacedTable:
    """Rows of a table that get a place in a shard; `id_bytes` is the size of their ids as varints.

    `dtype` is that of the table's rows in all shards, and None when no shard has a row of it.
    """

    name: str
    dtype: DType | None
    dim: int
    rows: int
    id_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class CountedTable:
    """A table whose rows are counted for each shard: int64 [ps_num] rows, and bytes of their ids as varints.

    `dtype` is that of its rows, None without any.
    """

    info: TableInfo
    dtype: DType | None
    rows: bulk.I64
    id_bytes: bulk.I64

    def in_shard(self, ps_id: int) -> PlacedTable:
        """Return the part of the table that one shard has."""
        rows, id_bytes = int(self.rows[ps_id]), int(self.id_bytes[ps_id])
        return PlacedTable(self.info.name, self.dtype, self.info.dim, rows, id_bytes)


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The offsets of everything in a shard's file."""

    size_bytes: int
    between: tuple[tuple[int, bytes], ...]
    """The (offset, bytes) of everything that is neither values nor ids."""
    dense_at: Mapping[str, int]
    values_at: Mapping[str, int]
    ids_at: Mapping[str, int]


class _Builder:
    """Builds a layout from front to back."""

    def __init__(self) -> None:
        self.at = 0
        self.between: list[tuple[int, bytes]] = []
        self._pending = bytearray()

    def literal(self, data: bytes) -> None:
        self._pending += data
        self.at += len(data)

    def hole(self, size_bytes: int) -> int:
        """Leave room for values or ids and return its offset."""
        if self._pending:
            self.between.append((self.at - len(self._pending), bytes(self._pending)))
            self._pending.clear()
        start = self.at
        self.at += size_bytes
        return start


class VersionLayout(Sequence[ShardLayout]):
    """The layouts of all shards of a version; the offsets of tables are arrays, int64 [tables, ps_num].

    The layout of one shard is made when it is asked for: together they would be an object for each table in each shard.
    """

    def __init__(self, version: int, dense: Sequence[Sequence[PlacedVariable]], tables: Sequence[CountedTable]) -> None:
        self._dense, self._tables = dense, tables
        self._dtypes = {table.info.name: table_dtype(table.dtype, table.info) for table in tables}
        self._described = _describe(version, [table.info for table in tables], self._dtypes)
        self._number = {table.info.name: number for number, table in enumerate(tables)}
        fronts = [self.front(ps_id) for ps_id in range(len(dense))]
        sizes = np.zeros((len(tables) + 1, 3, len(dense)), np.int64)
        sizes[0, 2] = [front.size_bytes for front in fronts]
        self._dense_at = {name: (k, at) for k, front in enumerate(fronts) for name, at in front.dense_at.items()}
        for number, table in enumerate(tables, 1):
            sizes[number] = _table_sizes(table, self._dtypes[table.info.name])
        ends = np.cumsum(sizes.reshape(-1, len(dense)), axis=0).reshape(sizes.shape)
        self.tables_at: bulk.I64 = np.ascontiguousarray(ends[:, 2])
        """Where each table's entry begins, and where the last one ends: int64 [tables + 1, ps_num]."""
        self._values_at: bulk.I64 = ends[1:, 0]
        self._ids_at: bulk.I64 = ends[1:, 1]

    def __len__(self) -> int:
        return len(self._dense)

    @overload
    def __getitem__(self, index: int) -> ShardLayout: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardLayout]: ...
    def __getitem__(self, index: int | slice) -> ShardLayout | list[ShardLayout]:
        if isinstance(index, slice):
            return [self[ps_id] for ps_id in range(*index.indices(len(self)))]
        ps_id = range(len(self))[index]
        return self._lay_out(ps_id, self._tables)

    def front(self, ps_id: int) -> ShardLayout:
        """Return the layout of a shard without its tables: what is before them."""
        return self._lay_out(ps_id, ())

    def _lay_out(self, ps_id: int, tables: Sequence[CountedTable]) -> ShardLayout:
        parts = [table.in_shard(ps_id) for table in tables]
        return _lay_out(self._described, self._dense[ps_id], parts, self._dtypes)

    @property
    def size_bytes(self) -> bulk.I64:
        """Return the bytes of each shard: int64 [ps_num]."""
        sizes: bulk.I64 = self.tables_at[-1]
        return sizes

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

    def head(self, table: str, ps_id: int) -> tuple[bytes, bytes]:
        """Return what stands in a table's entry of one shard before its rows, and before its ids."""
        return _table_heads(self._tables[self._number[table]].in_shard(ps_id), self._dtypes[table])

    def heads(self, table: str) -> list[tuple[bytes, bytes]]:
        """Return, for each shard, what stands in a table's entry before its rows, and before its ids."""
        counted, dtype = self._tables[self._number[table]], self._dtypes[table]
        return [_table_heads(counted.in_shard(ps_id), dtype) for ps_id in range(len(self))]

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        dense = sum(variable.size_bytes for some in self._dense for variable in some)
        return dense + sum(int(t.rows.sum()) * t.info.dim * self._dtypes[t.info.name].itemsize for t in self._tables)

    @property
    def entries(self) -> bulk.I64:
        """Return how many variables and tables each shard has: int64 [ps_num]."""
        return np.array([len(self._tables) + len(some) for some in self._dense], np.int64)

    def literals(self, ps_id: int) -> Literals:
        """Return what a shard has besides values and ids, to the byte."""
        front = self.front(ps_id).between
        tables = slice(0, len(self._tables))
        values_at, ids_at = self._values_at[:, ps_id], self._ids_at[:, ps_id]
        widths = [t.info.dim * self._dtypes[t.info.name].itemsize for t in self._tables]
        values_end = values_at + np.array([t.rows[ps_id] for t in self._tables], np.int64) * np.array(widths, np.int64)
        starts = np.stack([self.tables_at[:-1, ps_id], values_end], 1).reshape(-1)
        ends = np.stack([values_at, ids_at], 1).reshape(-1)
        places = np.cumsum(ends - starts).reshape(-1, 2)
        heads = np.empty(int(places[-1, 1]) if len(places) else 0, np.uint8)
        self.put_heads(tables, places[:, :1], places[:, 1:], heads, shards=slice(ps_id, ps_id + 1))
        before = np.array([(at, at + len(data)) for at, data in front], np.int64).reshape(-1, 2)
        return Literals(
            np.concatenate([before[:, 0], starts]),
            np.concatenate([before[:, 1], ends]),
            np.concatenate([np.frombuffer(b"".join(data for _, data in front), np.uint8), heads]),
        )

    def put_heads(
        self, tables: slice, values_at: bulk.I64, ids_at: bulk.I64, out: bulk.U8, *, shards: slice = slice(None)
    ) -> None:
        """Put what stands before the rows and the ids of some tables into `out`, so that it ends at their places.

        The places are int64 [tables, shards]. Raises ValueError where `out` has no room.
        """
        some = self._tables[tables]
        if bulk.kernel is not None and some:
            rows, id_bytes = (
                np.stack(each) for each in zip(*((t.rows[shards], t.id_bytes[shards]) for t in some), strict=True)
            )
            names, forms = self._forms(some)
            places = np.ascontiguousarray(values_at), np.ascontiguousarray(ids_at)
            bulk.kernel.put_heads(names, forms, rows, id_bytes, places[0], places[1], out)
            return
        for table, of_table in zip(some, np.stack([values_at, ids_at], 2).tolist(), strict=True):
            for ps_id, ends in zip(range(len(self))[shards], of_table, strict=True):
                heads = _table_heads(table.in_shard(ps_id), self._dtypes[table.info.name])
                for data, end in zip(heads, ends, strict=True):
                    if not 0 <= end - len(data) <= end <= len(out):
                        raise ValueError(f"put_heads: table {table.info.name!r} has no room in shard {ps_id}")
                    out.data[end - len(data) : end] = data

    def _forms(self, tables: Sequence[CountedTable]) -> tuple[bytes, bulk.I64]:
        """Return the names of tables in one, and of each its end there, its dim, its itemsize and its dtype."""
        names = [table.info.name.encode() for table in tables]
        dtypes = [self._dtypes[table.info.name] for table in tables]
        ends = accumulate(map(len, names))
        dims = (table.info.dim for table in tables)
        forms = [(*each, d.itemsize, d.tf_enum) for *each, d in zip(ends, dims, dtypes, strict=True)]
        return b"".join(names), np.array(forms, np.int64).reshape(-1, 4)


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
    dense: list[list[PlacedVariable]] = [[] for _ in range(ps_num)]
    for variable in sorted(variables, key=lambda v: v.name.encode()):
        dense[placement.variable_owner(variable.name, ps_num)].append(variable)
    return VersionLayout(version, dense, sorted(tables, key=lambda t: t.info.name.encode()))


def layout_warnings(
    layouts: VersionLayout, variables: Sequence[PlacedVariable], tables: Sequence[CountedTable]
) -> tuple[str, ...]:
    """Return a warning for everything in the shards of a version that ElasticDL cannot read or does not use."""
    dtypes = [*(variable.dtype for variable in variables), *(table.dtype for table in tables)]
    sizes = layouts.size_bytes.tolist()
    return tuple(restore_warnings(sizes, len(variables), dtypes, [table.info for table in tables]))


def table_dtype(rows: DType | None, info: TableInfo | None) -> DType:
    """Return the dtype that a table is written with: that of its rows; without any, the one in its info or float32.

    >>> table_dtype(None, TableInfo("t", 4, "uniform", dtype=2)).name, table_dtype(None, None).name
    ('float64', 'float32')
    """
    return rows or (info.named_dtype if info else None) or DTYPES["float32"]


def lay_out_shard(
    version: int, infos: Sequence[TableInfo], dense: Sequence[PlacedVariable], tables: Sequence[PlacedTable]
) -> ShardLayout:
    """Return the layout of a v4 shard: version, infos, variables, tables, each in the order given.

    Empty values and ids are left out, as protobuf does. The info of a table and its tensor, [0, dim] where this shard
    has no row of it, name one dtype in every shard: a Go server takes the width of a row from the info, and cannot
    merge shards whose tensors differ in dtype.
    """
    described = {info.name: info for info in infos}
    dtypes = {info.name: table_dtype(None, info) for info in infos}
    dtypes |= {table.name: table_dtype(table.dtype, described.get(table.name)) for table in tables}
    return _lay_out(_describe(version, infos, dtypes), dense, tables, dtypes)


def _describe(version: int, infos: Iterable[TableInfo], dtypes: Mapping[str, DType]) -> bytes:
    """Return what a shard begins with: the version and the infos of all tables."""
    parts = [wire.tag(1, wire.VARINT) + wire.varint(version)] if version else []
    for info in infos:
        message = tensor_pb2.EmbeddingTableInfo(
            name=info.name, dim=info.dim, initializer=info.initializer, dtype=dtypes[info.name].tf_enum
        )
        data = message.SerializeToString(deterministic=True)
        parts.append(wire.head(2, len(data)) + data)
    return b"".join(parts)


def _lay_out(
    described: bytes, dense: Sequence[PlacedVariable], tables: Iterable[PlacedTable], dtypes: Mapping[str, DType]
) -> ShardLayout:
    builder = _Builder()
    dense_at: dict[str, int] = {}
    values_at: dict[str, int] = {}
    ids_at: dict[str, int] = {}
    builder.literal(described)
    for part in dense:
        tensor = _tensor_head(part.dtype, part.shape, part.size_bytes)
        name = part.name.encode()
        value_size = len(tensor) + part.size_bytes
        key = wire.head(1, len(name)) + name + wire.head(2, value_size)
        builder.literal(wire.head(3, len(key) + value_size) + key + tensor)
        dense_at[part.name] = builder.hole(part.size_bytes)
    for table in tables:
        dtype = dtypes[table.name]
        before_values, before_ids = _table_heads(table, dtype)
        builder.literal(before_values)
        values_at[table.name] = builder.hole(table.rows * table.dim * dtype.itemsize)
        builder.literal(before_ids)
        ids_at[table.name] = builder.hole(table.id_bytes)
    builder.hole(0)
    return ShardLayout(builder.at, tuple(builder.between), dense_at, values_at, ids_at)


def _table_heads(table: PlacedTable, dtype: DType) -> tuple[bytes, bytes]:
    """Return what stands in a table's entry before its rows, and before its ids."""
    values_size = table.rows * table.dim * dtype.itemsize
    tensor = _tensor_head(dtype, (table.rows, table.dim), values_size)
    vectors = wire.head(1, len(tensor) + values_size) + tensor
    ids = wire.head(2, table.id_bytes) if table.id_bytes else b""
    name = table.name.encode()
    slices_size = len(vectors) + values_size + len(ids) + table.id_bytes
    key = wire.head(1, len(name)) + name + wire.head(2, slices_size)
    return wire.head(4, len(key) + slices_size) + key + vectors, ids


def _table_sizes(table: CountedTable, dtype: DType) -> bulk.I64:
    """Return the bytes before a table's rows, of its rows with what stands before its ids, and of its ids.

    They are int64 [3, ps_num], what `_table_heads` has for each shard.
    """
    values, ids = table.rows * (table.info.dim * dtype.itemsize), table.id_bytes
    shape = _sizes_of(table.rows) + _sizes_of(np.full_like(ids, table.info.dim))
    tensor = 3 + _width(shape) + shape + np.where(values > 0, 1 + _width(values), 0)
    vectors = 1 + _width(tensor + values) + tensor
    before_ids = np.where(ids > 0, 1 + _width(ids), 0)
    slices = vectors + values + before_ids + ids
    name = len(table.info.name.encode())
    key = 1 + len(wire.varint(name)) + name + 1 + _width(slices)
    return np.stack([1 + _width(key + slices) + key + vectors, values + before_ids, ids])


def _sizes_of(count: bulk.I64) -> bulk.I64:
    """Return the bytes of each size in a shape."""
    return 2 + np.where(count > 0, 1 + _width(count), 0)


def _width(numbers: bulk.I64) -> bulk.I64:
    """Return how many bytes the varint of each number takes."""
    return bulk.varint_lengths(numbers).astype(np.int64)


@functools.lru_cache(1 << 14)
def _tensor_head(dtype: DType, shape: tuple[int, ...], size_bytes: int) -> bytes:
    """Return a TensorProto up to its values."""
    dims = (wire.tag(1, wire.VARINT) + wire.varint(size) if size else b"" for size in shape)
    data = b"".join(wire.head(2, len(dim)) + dim for dim in dims)
    head = wire.tag(1, wire.VARINT) + wire.varint(dtype.tf_enum) + wire.head(2, len(data)) + data
    return head + (wire.head(4, size_bytes) if size_bytes else b"")


def write_groups(files: Sinks, data: bulk.U8, sizes: bulk.I64, offsets: bulk.I64) -> None:
    """Write consecutive stretches of `data`, one for each target, at each target's offset.

    Many files of the local disk are written by the compiled kernel: between two writes no thread waits for Python.
    """
    targets = np.flatnonzero(sizes).tolist()
    if len(targets) >= _MANY_FILES and bulk.kernel is not None:
        found = [file for file in map(files.__getitem__, targets) if is_on_disk(file)]
        if len(found) == len(targets):
            _write_directly(found, targets, data, sizes, offsets)
            return
    start = 0
    view = data.data
    for target in targets:
        end = start + int(sizes[target])
        files[target].write(int(offsets[target]), view[start:end])
        start = end


def _write_directly(
    files: Sequence[OnDisk], targets: Sequence[int], data: bulk.U8, sizes: bulk.I64, offsets: bulk.I64
) -> None:
    """Do so by the kernel, to the files of these targets; raises the error of the file that fails."""
    assert bulk.kernel is not None  # noqa: S101 - the caller looked
    some, at = sizes[targets], offsets[targets]
    descriptors = np.array([file.descriptor for file in files], np.int32)
    failed = bulk.kernel.write_groups(descriptors, data, some, at)
    if failed is not None:
        number, error = failed
        raise files[number].failed(error, int(at[number]))
    for file, size in zip(files, some.tolist(), strict=True):
        file.add_moved(size)
