"""Writing v4 shards: every offset is known before a value moves.

`lay_out_shard` computes, from names, shapes and sizes alone, where each value and each id of a shard's file will lie
and which bytes stand between them. `save_checkpoint` writes a new version from arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core import bulk, placement, wire
from edl_ckpt.core.catalog import list_versions, pick
from edl_ckpt.core.errors import UnsupportedError, UsageError
from edl_ckpt.core.layout import WRITABLE, Layout
from edl_ckpt.core.model import DTYPES, DType, TableInfo, Version
from edl_ckpt.proto import tensor_pb2

if TYPE_CHECKING:
    from edl_ckpt.core.output import Sink

EMPTY_DTYPE: Final = DTYPES["float32"]
"""What the vectors of a table without rows are said to be: [0, dim] float32 loads in both of ElasticDL's readers."""


@dataclass(frozen=True, slots=True)
class DensePart:
    """A dense variable to be placed in a shard."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of a table to be placed in a shard; `id_bytes` is the size of their ids as varints."""

    name: str
    dtype: DType
    dim: int
    rows: int
    id_bytes: int


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Where everything lies in a shard's file."""

    size_bytes: int
    between: tuple[tuple[int, bytes], ...]
    """The (offset, bytes) of all that is neither values nor ids."""
    dense_at: Mapping[str, int]
    values_at: Mapping[str, int]
    ids_at: Mapping[str, int]


class _Layer:
    """Grows a layout from front to back."""

    def __init__(self) -> None:
        self.at = 0
        self.between: list[tuple[int, bytes]] = []
        self._pending = bytearray()

    def literal(self, data: bytes) -> None:
        self._pending += data
        self.at += len(data)

    def hole(self, size_bytes: int) -> int:
        """Leave room for values or ids and return where it begins."""
        if self._pending:
            self.between.append((self.at - len(self._pending), bytes(self._pending)))
            self._pending.clear()
        start = self.at
        self.at += size_bytes
        return start


def lay_out_shard(
    version: int, infos: Sequence[TableInfo], dense: Sequence[DensePart], tables: Sequence[TablePart]
) -> ShardLayout:
    """Return the layout of a v4 shard: version, infos, variables, tables, each in the order given.

    Empty values and ids are left out, as protobuf does; a table without rows is [0, dim] float32.
    """
    layer = _Layer()
    dense_at: dict[str, int] = {}
    values_at: dict[str, int] = {}
    ids_at: dict[str, int] = {}
    if version:
        layer.literal(wire.tag(1, wire.VARINT) + wire.varint(version))
    for info in infos:
        message = tensor_pb2.EmbeddingTableInfo(
            name=info.name, dim=info.dim, initializer=info.initializer, dtype=info.dtype
        )
        data = message.SerializeToString(deterministic=True)
        layer.literal(wire.head(2, len(data)) + data)
    for part in dense:
        tensor = _tensor_head(part.dtype, part.shape, part.size_bytes)
        name = part.name.encode()
        value_size = len(tensor) + part.size_bytes
        key = wire.head(1, len(name)) + name + wire.head(2, value_size)
        layer.literal(wire.head(3, len(key) + value_size) + key + tensor)
        dense_at[part.name] = layer.hole(part.size_bytes)
    for table in tables:
        values_at[table.name], ids_at[table.name] = _lay_out_table(layer, table)
    layer.hole(0)
    return ShardLayout(layer.at, tuple(layer.between), dense_at, values_at, ids_at)


def _lay_out_table(layer: _Layer, table: TablePart) -> tuple[int, int]:
    """Place a table's entry; return where its values and its ids begin."""
    dtype = table.dtype if table.rows else EMPTY_DTYPE
    values_size = table.rows * table.dim * dtype.itemsize
    tensor = _tensor_head(dtype, (table.rows, table.dim), values_size)
    vectors = wire.head(1, len(tensor) + values_size) + tensor
    ids = wire.head(2, table.id_bytes) if table.id_bytes else b""
    name = table.name.encode()
    slices_size = len(vectors) + values_size + len(ids) + table.id_bytes
    key = wire.head(1, len(name)) + name + wire.head(2, slices_size)
    layer.literal(wire.head(4, len(key) + slices_size) + key + vectors)
    values_at = layer.hole(values_size)
    layer.literal(ids)
    return values_at, layer.hole(table.id_bytes)


def _tensor_head(dtype: DType, shape: tuple[int, ...], size_bytes: int) -> bytes:
    """Return a TensorProto up to its values."""
    dims = [tensor_pb2.TensorShapeProto.Dim(size=size) for size in shape]
    data = tensor_pb2.TensorShapeProto(dim=dims).SerializeToString(deterministic=True)
    head = wire.tag(1, wire.VARINT) + wire.varint(dtype.tf_enum) + wire.head(2, len(data)) + data
    return head + (wire.head(4, size_bytes) if size_bytes else b"")


@dataclass(frozen=True, slots=True)
class Table:
    """A whole table in memory: int64 [n] ids, [n, dim] rows, and the initializer of ids yet unseen."""

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.generic]
    initializer: str = "uniform"


def save_checkpoint(
    location: str,
    version: int,
    ps_num: int,
    *,
    variables: Mapping[str, npt.NDArray[np.generic]],
    tables: Mapping[str, Table],
    layout: str = "design",
    storage_options: Mapping[str, str] | None = None,
) -> Version:
    """Write a new version from arrays, placed for `ps_num` servers, and return it.

    Staged, flushed, published by one rename (on remote storage as `output.py` says), and sealed. Raises RefusedError
    when the version exists, UsageError for arrays that are no table, UnsupportedError for a dtype that no checkpoint
    can hold.
    """
    from edl_ckpt.core.fingerprint import fingerprint_checkpoint
    from edl_ckpt.core.output import open_output
    from edl_ckpt.core.reader import open_checkpoint
    from edl_ckpt.core.seal import Seal, make_seal

    if not 1 <= ps_num <= placement.MAX_PS_NUM:
        raise UsageError(f"ps_num must be 1 to {placement.MAX_PS_NUM}, got {ps_num}")
    chosen = writable_layout(layout)
    dense = {name: np.asarray(value) for name, value in variables.items()}
    for name, table in tables.items():
        _check_table(name, table)
    held = [_part_of(version, i, ps_num, dense, tables) for i in range(ps_num)]

    def seal(written: Version, staged: bool) -> Seal:  # noqa: FBT001 - as `Prove` has it
        with open_checkpoint(written, staged=staged, storage_options=storage_options) as checkpoint:
            return make_seal(checkpoint, fingerprint_checkpoint(checkpoint).text, workers=1)

    output = open_output(location, chosen, version, purpose="save", storage_options=storage_options)
    with output:
        for file, part in zip(output.create([part.layout.size_bytes for part in held]), held, strict=True):
            part.write(file)
        output.publish(seal)
    return pick(list_versions(location, storage_options=storage_options), version)


def write_groups(files: Sequence[Sink], data: bulk.U8, sizes: bulk.I64, offsets: bulk.I64) -> None:
    """Write consecutive stretches of `data`, one for each target, at each target's offset."""
    start = 0
    view = data.data
    for target in np.flatnonzero(sizes).tolist():
        end = start + int(sizes[target])
        files[target].write(int(offsets[target]), view[start:end])
        start = end


def writable_layout(name: str) -> Layout:
    """Return the layout of a name that `--layout` takes; UsageError for another."""
    if name not in WRITABLE:
        raise UsageError(f"no layout {name!r}; expected {' or '.join(WRITABLE)}")
    return WRITABLE[name]


def _check_table(name: str, table: Table) -> None:
    if table.ids.ndim != 1 or table.ids.dtype != np.int64 or table.rows.shape[:1] != table.ids.shape:
        raise UsageError(f"table {name!r}: expected ids int64 [n] and rows [n, dim]")
    if table.rows.ndim != 2:
        raise UsageError(f"table {name!r}: expected rows [n, dim], got shape {list(table.rows.shape)}")


@dataclass(frozen=True, slots=True)
class _ShardPart:
    """What one server holds of the given variables and tables, and where it lies in the shard."""

    layout: ShardLayout
    dense: Mapping[str, npt.NDArray[np.generic]]
    rows: Mapping[str, tuple[bulk.U8, npt.NDArray[np.generic]]]
    """Of each table, the ids as varints and the vectors."""

    def write(self, file: Sink) -> None:
        for offset, data in self.layout.between:
            file.write(offset, data)
        for name, value in self.dense.items():
            file.write(self.layout.dense_at[name], little_endian(value))
        for name, (ids, vectors) in self.rows.items():
            file.write(self.layout.ids_at[name], ids.data)
            file.write(self.layout.values_at[name], little_endian(vectors))


def _part_of(
    version: int,
    ps_id: int,
    ps_num: int,
    variables: Mapping[str, npt.NDArray[np.generic]],
    tables: Mapping[str, Table],
) -> _ShardPart:
    """Return what one server holds of the given variables and tables."""
    mine = {n: v for n, v in sorted(variables.items()) if placement.variable_owner(n, ps_num) == ps_id}
    rows: dict[str, tuple[bulk.U8, npt.NDArray[np.generic]]] = {}
    infos, parts = [], []
    for name, table in sorted(tables.items()):
        held = placement.row_owners(table.ids, ps_num) == ps_id
        rows[name] = (bulk.encode_varints(table.ids[held]), table.rows[held])
        infos.append(TableInfo(name, table.rows.shape[1], table.initializer))
        dtype = _dtype_of(name, table.rows)
        parts.append(TablePart(name, dtype, table.rows.shape[1], int(held.sum()), len(rows[name][0])))
    dense = [DensePart(n, _dtype_of(n, v), v.shape, v.nbytes) for n, v in mine.items()]
    return _ShardPart(lay_out_shard(version, infos, dense, parts), mine, rows)


def little_endian(values: npt.NDArray[np.generic]) -> bytes:
    """Return the values as a checkpoint holds them: C order, little-endian."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _dtype_of(name: str, values: npt.NDArray[np.generic]) -> DType:
    dtype = DTYPES.get(values.dtype.name)
    if dtype is None:
        raise UnsupportedError(f"{name!r}: no checkpoint can hold dtype {values.dtype.name}")
    return dtype
