"""Checkpoints made with the protobuf library, in any generation, as ElasticDL would place them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.sources.elasticdl.wire import head
from edl_ckpt.proto import model_v0_pb2, model_v1_pb2, model_v3_pb2, model_v4_pb2
from oracle import OLD_NAMES, TF_NAMES, Model, Table, variable_owner

LAYOUTS = {
    "design": ("version_{}", ".chkpt"),
    "elasticdl": ("version-{}", ".ckpt"),
    "elasticdl-2019": ("version-{}", ".chkpt"),
}
_TF = {name: number for number, name in TF_NAMES.items()}
_OLD = {name: number for number, name in OLD_NAMES.items()}


def write_checkpoint(
    location: Path, model: Model, ps_num: int, *, generation: str = "v4", layout: str = "design", saver: str = "go"
) -> Path:
    """Write a model as a checkpoint and return the version's directory (v0: the file); `saver` as in `shard_bytes`."""
    location.mkdir(parents=True, exist_ok=True)
    if generation == "v0":
        path = location / f"model_v{model.version}.chkpt"
        path.write_bytes(shard_bytes(model, 0, 1, "v0"))
        return path
    directory, suffix = LAYOUTS[layout]
    target = location / directory.format(model.version)
    target.mkdir()
    for ps_id in range(ps_num):
        path = target / f"variables-{ps_id}-of-{ps_num}{suffix}"
        path.write_bytes(shard_bytes(model, ps_id, ps_num, generation, saver=saver))
    return target


def write_unchecked(
    location: Path, version: int, ps_num: int, tables: Mapping[str, Any], *, number: int | None = None
) -> Path:
    """Write tables (ids, vectors, initializer) as `elasticdl` shards with the protobuf library, whatever ids they have.

    `version` is the number in the name of the directory, `number` the one in the shards.
    """
    target = location / f"version-{version}"
    target.mkdir(parents=True)
    for ps_id in range(ps_num):
        model = model_v4_pb2.Model(version=version if number is None else number)
        for name, table in tables.items():
            own = table.ids % ps_num == ps_id
            dtype, dim = _TF[table.vectors.dtype.name], table.vectors.shape[1]
            model.embedding_table_infos.add(name=name, dim=dim, initializer=table.initializer, dtype=dtype)
            slices = model.embedding_tables[name]
            slices.ids.extend(table.ids[own].tolist())
            slices.concat_tensors.dtype = dtype
            for size in (int(own.sum()), dim):
                slices.concat_tensors.tensor_shape.dim.add(size=size)
            slices.concat_tensors.tensor_content = table.vectors[own].tobytes()
        (target / f"variables-{ps_id}-of-{ps_num}.ckpt").write_bytes(model.SerializeToString())
    return target


def shard_bytes(model: Model, ps_id: int, ps_num: int, generation: str, *, saver: str = "go") -> bytes:
    """Return the bytes of one shard; of v3 and v4 as one of three savers writes the dtype of a table.

    "go" writes the table's own everywhere. "python" writes FLOAT in the info, and DOUBLE [0] in a shard without rows of
    the table. "earlier" is what edl-ckpt wrote at first: FLOAT in the info, and [0, dim] of FLOAT without rows.
    """
    dense = {n: v for n, v in model.dense.items() if variable_owner(n, ps_num) == ps_id}
    if generation == "v0":
        old = model_v0_pb2.Model(version=model.version)
        for name, (dtype, shape, data) in dense.items():
            old.param[name].CopyFrom(model_v0_pb2.Tensor(dim=shape, content=data, dtype=_OLD[dtype]))
        return old.SerializeToString(deterministic=True)
    if generation in {"v1", "v2"}:
        return _v1(model, dense, ps_id, ps_num, _OLD if generation == "v1" else _TF)
    new: Any = (model_v3_pb2 if generation == "v3" else model_v4_pb2).Model(version=model.version)
    for name, table in model.tables.items():
        own = _TF[table.dtype or "float32"]
        named = own if saver == "go" else _TF["float32"]
        new.embedding_table_infos.add(name=name, dim=table.dim, initializer=table.initializer, dtype=named)
        held = new.embedding_tables[name]
        ids = [i for i in table.rows if i % ps_num == ps_id]
        held.ids.extend(ids)
        held.concat_tensors.dtype = own if ids else _TF["float64"] if saver == "python" else named
        for size in (len(ids), table.dim) if ids or saver != "python" else (0,):
            held.concat_tensors.tensor_shape.dim.add(size=size)
        held.concat_tensors.tensor_content = b"".join(table.rows[i] for i in ids)
    for name, (dtype, shape, data) in dense.items():
        tensor = new.dense_parameters[name]
        tensor.dtype, tensor.tensor_content = _TF[dtype], data
        tensor.tensor_shape.SetInParent()
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
    data = new.SerializeToString(deterministic=True)
    assert isinstance(data, bytes)
    return data


def _v1(model: Model, dense: Any, ps_id: int, ps_num: int, numbers: dict[str, int]) -> bytes:
    old = model_v1_pb2.Model(version=model.version)
    for name, (dtype, shape, data) in dense.items():
        old.param.add(name=name, dim=shape, content=data, dtype=numbers[dtype])
    for name, table in model.tables.items():
        old.embedding_table_info.add(name=name, dim=table.dim, initializer=table.initializer)
        ids = [i for i in table.rows if i % ps_num == ps_id]
        if ids:
            values = b"".join(table.rows[i] for i in ids)
            old.param.add(name=name, dim=(len(ids), table.dim), content=values, indices=ids, dtype=numbers[table.dtype])
        else:
            old.param.add(name=name, dim=(0,), dtype=numbers["float64"])
    return old.SerializeToString(deterministic=True)


def message(number: int, *parts: bytes) -> bytes:
    """Return a length-delimited field by hand, for what the protobuf library would not write."""
    held = b"".join(parts)
    return head(number, len(held)) + held


def table_shard(ids: bytes, rows: int, *, dim: int = 1, version: int = 33) -> bytes:
    """Return a v4 shard with one table "t" of float32 zeros, whose field of ids is given as it stands in the file."""
    shape = message(2, message(2, b"\x08" + varint(rows)), message(2, b"\x08" + varint(dim)))
    slices = message(2, message(1, b"\x08\x01", shape, message(4, bytes(4 * rows * dim))), ids)
    info = message(2, message(1, b"t"), b"\x10" + varint(dim))
    return b"\x08" + varint(version) + info + message(4, message(1, b"t"), slices)


NAMES = st.one_of(
    st.text(min_size=1, max_size=12).filter(lambda s: ("\ud800" not in s and s.isprintable()) or "\x1b" in s),
    st.sampled_from(["a/b", "../../etc/passwd", "\x1b[31mred", "[bold]x[/bold]", "密集/权重 🚀:0", "a\nb", "dense:0"]),
)
DTYPES = st.sampled_from(["float32", "float64", "int8", "int16", "int32", "int64", "bool"])
EDGE_IDS = [0, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**31, 2**56 - 1, 2**56, 2**63 - 1, -1, -2, -(2**63)]
IDS = st.one_of(st.sampled_from(EDGE_IDS), st.integers(-(2**63), 2**63 - 1), st.integers(0, 50))


@st.composite
def models(draw: st.DrawFn, *, dtypes: st.SearchStrategy[str] = DTYPES, tables: bool = True) -> Model:
    """Any small model: every dtype, empty and scalar shapes, odd row sizes, ids over all of int64."""
    model = Model(draw(st.integers(1, 2**31 - 1)))
    for name in draw(st.lists(NAMES, unique=True, max_size=5)):
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        dtype = draw(dtypes)
        model.dense[name] = (dtype, shape, _values(draw, dtype, int(np.prod(shape))))
    for name in draw(st.lists(NAMES, unique=True, max_size=3)) if tables else []:
        if name in model.dense:
            continue
        dim, dtype = draw(st.integers(1, 9)), draw(dtypes)
        ids = draw(st.lists(IDS, unique=True, max_size=24))
        rows = {i: _values(draw, dtype, dim) for i in ids}
        model.tables[name] = Table(
            dim, draw(st.sampled_from(["uniform", "zeros", "RandomNormal"])), dtype if ids else "", rows
        )
    return model


def _values(draw: st.DrawFn, dtype: str, count: int) -> bytes:
    seed = draw(st.integers(0, 2**32 - 1))
    size = count * np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)
    return (raw & 1 if dtype == "bool" else raw).tobytes()
