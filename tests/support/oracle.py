"""A slow reader of checkpoints through the protobuf library: shares no code with the engine it judges.

Slot tables (`{table}-{slot}` with initializer "0.0", generation v1c) are tables like others in the bytes;
`expected.json` leaves them out, and so does `without_slots`.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edl_ckpt.proto import model_v0_pb2, model_v1_pb2, model_v3_pb2, model_v4_pb2

OLD_NAMES = {
    1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 8: "bool",
}  # fmt: skip
TF_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool", 19: "float16",
}  # fmt: skip

Dense = dict[str, tuple[str, tuple[int, ...], bytes]]


@dataclass
class Table:
    """A table: rows by id, and what its info says."""

    dim: int = 0
    initializer: str = ""
    dtype: str = ""
    rows: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Model:
    """All that a checkpoint holds, whatever its shards."""

    version: int = 0
    dense: Dense = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)


def read_model(paths: Iterable[Path], generation: str = "v4") -> Model:
    """Parse shards with the protobuf library and merge them, the last one read winning."""
    model = Model()
    for path in sorted(paths):
        add_shard(model, path.read_bytes(), generation)
    return model


def add_shard(model: Model, data: bytes, generation: str) -> None:
    """Merge one shard into a model."""
    family = generation[:2]
    if family == "v0":
        old = model_v0_pb2.Model.FromString(data)
        model.version = old.version
        for name, tensor in old.param.items():
            model.dense[name] = (OLD_NAMES[tensor.dtype or 6], tuple(tensor.dim), tensor.content)
        return
    if family in {"v1", "v2"}:
        _add_v1(model, data, OLD_NAMES if family == "v1" else TF_NAMES)
        return
    new: Any = (model_v3_pb2 if family == "v3" else model_v4_pb2).Model.FromString(data)
    model.version = new.version
    for info in new.embedding_table_infos:
        table = model.tables.setdefault(info.name, Table())
        table.dim, table.initializer = info.dim, info.initializer
    for name, tensor in new.dense_parameters.items():
        shape = tuple(d.size for d in tensor.tensor_shape.dim)
        model.dense[name] = (TF_NAMES[tensor.dtype], shape, tensor.tensor_content)
    for name, slices in new.embedding_tables.items():
        tensor = slices.concat_tensors
        _add_rows(
            model.tables.setdefault(name, Table()), list(slices.ids), tensor.tensor_content, TF_NAMES[tensor.dtype]
        )


def _add_v1(model: Model, data: bytes, names: Mapping[int, str]) -> None:
    old = model_v1_pb2.Model.FromString(data)
    model.version = old.version
    for info in old.embedding_table_info:
        table = model.tables.setdefault(info.name, Table())
        table.dim, table.initializer = info.dim, info.initializer
    for tensor in old.param:
        if tensor.name in model.tables:
            _add_rows(model.tables[tensor.name], list(tensor.indices), tensor.content, names.get(tensor.dtype, ""))
        else:
            model.dense[tensor.name] = (names[tensor.dtype], tuple(tensor.dim), tensor.content)


def _add_rows(table: Table, ids: list[int], content: bytes, dtype: str) -> None:
    if not ids:
        return
    table.dtype = dtype
    size = len(content) // len(ids)
    table.rows |= {i: content[k * size : (k + 1) * size] for k, i in enumerate(ids)}


def without_slots(model: Model) -> Model:
    """Return the model without optimizer slot tables."""
    slots = {n for n in model.tables if "-" in n and n.rpartition("-")[0] in model.tables}
    return Model(model.version, model.dense, {n: t for n, t in model.tables.items() if n not in slots})


def expected_model(section: Mapping[str, Any]) -> Model:
    """Return the model that a section of `expected.json` describes."""
    model = Model(section.get("version", 0))
    for name, held in section["dense"].items():
        model.dense[name] = (held["dtype"], tuple(held["shape"]), base64.b64decode(held["base64"]))
    for name, held in section["tables"].items():
        vectors, ids = base64.b64decode(held["vectors_base64"]), held["ids"]
        size = len(vectors) // max(len(ids), 1)
        rows = {i: vectors[k * size : (k + 1) * size] for k, i in enumerate(ids)}
        model.tables[name] = Table(held["dim"], held["initializer"], held["dtype"], rows)
    return model


def add_part(model: Model, part: Any, ps_id: int, ps_num: int) -> None:
    """Add what a server restores to a model, which has nothing of it yet."""
    for name, value in part.variables.items():
        assert name not in model.dense
        model.dense[name] = (value.dtype.name, value.shape, value.tobytes())
    for name, (ids, vectors) in part.tables.items():
        info = part.infos[name]
        table = model.tables.setdefault(name, Table(info.dim, info.initializer))
        assert not table.rows.keys() & set(ids.tolist())
        assert (ids % ps_num == ps_id).all()
        table.rows |= {int(i): row.tobytes() for i, row in zip(ids, vectors, strict=True)}
        table.dtype = vectors.dtype.name if len(ids) else table.dtype


def combined(model: Model) -> str:
    """Return the digest that `golden/README.md` describes: independent of shards and version."""
    digest = hashlib.sha256()

    def lp(data: bytes) -> None:
        digest.update(struct.pack("<q", len(data)) + data)

    for name in sorted(model.dense, key=str.encode):
        dtype, shape, data = model.dense[name]
        digest.update(b"D")
        lp(name.encode())
        lp(dtype.encode())
        lp(struct.pack(f"<{len(shape)}q", *shape))
        lp(data)
    for name in sorted(model.tables, key=str.encode):
        table = model.tables[name]
        ids = sorted(table.rows)
        digest.update(b"T")
        lp(name.encode())
        lp(table.initializer.encode())
        digest.update(struct.pack("<qq", table.dim, len(ids)))
        lp(table.dtype.encode() if ids else b"")
        lp(np.array(ids, "<i8").tobytes())
        lp(b"".join(table.rows[i] for i in ids))
    return digest.hexdigest()


def variable_owner(name: str, ps_num: int) -> int:
    """Return the placement of a variable: the hexadecimal digest read in base 32."""
    value = 0
    for digit in hashlib.sha256(name.encode()).hexdigest():
        value = value * 32 + "0123456789abcdef".index(digit)
    return value % ps_num
