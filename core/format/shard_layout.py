"""The layout of v4 shards: every offset is known before a value moves.

`lay_out_shard` computes, from names, shapes and sizes alone, where each value and each id of a shard's file will lie
and which bytes stand between them. `lay_out_shards` does so for all shards of a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edl_ckpt.core.format import bulk, placement, wire
from edl_ckpt.core.format.checks import check_ps_num, check_texts, check_version, restore_warnings
from edl_ckpt.core.format.model import DTYPES, DType, TableInfo
from edl_ckpt.proto import tensor_pb2

if TYPE_CHECKING:
    from edl_ckpt.core.storage.interface import Sink


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


def lay_out_shards(
    version: int, variables: Iterable[PlacedVariable], tables: Iterable[CountedTable], ps_num: int
) -> tuple[ShardLayout, ...]:
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
    ordered = sorted(tables, key=lambda t: t.info.name.encode())
    infos = [table.info for table in ordered]
    return tuple(
        lay_out_shard(version, infos, dense[ps_id], [table.in_shard(ps_id) for table in ordered])
        for ps_id in range(ps_num)
    )


def layout_warnings(
    layouts: Sequence[ShardLayout], variables: Sequence[PlacedVariable], tables: Sequence[CountedTable]
) -> tuple[str, ...]:
    """Return a warning for everything in the shards of a version that ElasticDL cannot read or does not use."""
    dtypes = [*(variable.dtype for variable in variables), *(table.dtype for table in tables)]
    sizes = [layout.size_bytes for layout in layouts]
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
    dtypes = {table.name: table_dtype(table.dtype, described.get(table.name)) for table in tables}
    builder = _Builder()
    dense_at: dict[str, int] = {}
    values_at: dict[str, int] = {}
    ids_at: dict[str, int] = {}
    if version:
        builder.literal(wire.tag(1, wire.VARINT) + wire.varint(version))
    for info in infos:
        number = dtypes.get(info.name, table_dtype(None, info)).tf_enum
        message = tensor_pb2.EmbeddingTableInfo(
            name=info.name, dim=info.dim, initializer=info.initializer, dtype=number
        )
        data = message.SerializeToString(deterministic=True)
        builder.literal(wire.head(2, len(data)) + data)
    for part in dense:
        tensor = _tensor_head(part.dtype, part.shape, part.size_bytes)
        name = part.name.encode()
        value_size = len(tensor) + part.size_bytes
        key = wire.head(1, len(name)) + name + wire.head(2, value_size)
        builder.literal(wire.head(3, len(key) + value_size) + key + tensor)
        dense_at[part.name] = builder.hole(part.size_bytes)
    for table in tables:
        values_at[table.name], ids_at[table.name] = _lay_out_table(builder, table, dtypes[table.name])
    builder.hole(0)
    return ShardLayout(builder.at, tuple(builder.between), dense_at, values_at, ids_at)


def _lay_out_table(builder: _Builder, table: PlacedTable, dtype: DType) -> tuple[int, int]:
    """Place a table's entry; return the offsets of its values and its ids."""
    values_size = table.rows * table.dim * dtype.itemsize
    tensor = _tensor_head(dtype, (table.rows, table.dim), values_size)
    vectors = wire.head(1, len(tensor) + values_size) + tensor
    ids = wire.head(2, table.id_bytes) if table.id_bytes else b""
    name = table.name.encode()
    slices_size = len(vectors) + values_size + len(ids) + table.id_bytes
    key = wire.head(1, len(name)) + name + wire.head(2, slices_size)
    builder.literal(wire.head(4, len(key) + slices_size) + key + vectors)
    values_at = builder.hole(values_size)
    builder.literal(ids)
    return values_at, builder.hole(table.id_bytes)


def _tensor_head(dtype: DType, shape: tuple[int, ...], size_bytes: int) -> bytes:
    """Return a TensorProto up to its values."""
    dims = [tensor_pb2.TensorShapeProto.Dim(size=size) for size in shape]
    data = tensor_pb2.TensorShapeProto(dim=dims).SerializeToString(deterministic=True)
    head = wire.tag(1, wire.VARINT) + wire.varint(dtype.tf_enum) + wire.head(2, len(data)) + data
    return head + (wire.head(4, size_bytes) if size_bytes else b"")


def write_groups(files: Sequence[Sink], data: bulk.U8, sizes: bulk.I64, offsets: bulk.I64) -> None:
    """Write consecutive stretches of `data`, one for each target, at each target's offset."""
    start = 0
    view = data.data
    for target in np.flatnonzero(sizes).tolist():
        end = start + int(sizes[target])
        files[target].write(int(offsets[target]), view[start:end])
        start = end
