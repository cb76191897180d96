"""Checkpoints of torch.distributed.checkpoint, written without torch: damaged, huge or odd ones, which no job saves."""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import types
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import numpy as np
import numpy.typing as npt

METADATA = "torch.distributed.checkpoint.metadata"
STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


def _class(module: str, name: str, **more: Any) -> type:
    return type(name, (), {"__module__": module, "__qualname__": name, **more})


_SIZE = _class("torch", "Size", __reduce__=lambda self: (type(self), (self.numbers,)))
_DTYPE = _class("torch", "dtype", __reduce__=lambda self: self.name)
_ENCODING = _class(METADATA, "_MEM_FORMAT_ENCODING", __reduce__=lambda self: (type(self), (0,)))
_LAYOUT = _class(
    "torch", "layout", __reduce__=lambda self: (_NAMES["torch.serialization", "_get_layout"], ("torch.strided",))
)
_NAMES: dict[tuple[str, str], Any] = {
    (cls.__module__, cls.__name__): cls
    for cls in (
        *(_SIZE, _ENCODING),
        *(_class(METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata")),
        *(_class(METADATA, name) for name in ("ChunkStorageMetadata", "MetadataIndex")),
        _class(METADATA, "TensorProperties", __getstate__=lambda self: self.values),
        _class("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(_class("torch", name) for name in STORAGES.values()),
        _class("torch.serialization", "_get_layout"),
        _class("torch._utils", "_rebuild_tensor_v2"),
    )
}
_DTYPES = {}
for _name in (*STORAGES, "complex64", "float8_e4m3fn", "qint8"):
    _DTYPES[_name] = _NAMES["torch", _name] = _DTYPE()
    _DTYPES[_name].name = _name


def _fake_modules() -> dict[str, types.ModuleType]:
    """Return modules that have the names of torch, for a pickler that looks them up."""
    modules: dict[str, types.ModuleType] = {}
    for (module, name), value in _NAMES.items():
        parts = module.split(".")
        for n in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:n]), types.ModuleType(".".join(parts[:n])))
        setattr(modules[module], name, value)
    return modules


def _record(name: str, module: str = METADATA, **values: Any) -> Any:
    record = _NAMES[module, name]()
    vars(record).update(values)
    return record


def size(numbers: Iterable[int]) -> Any:
    """Return a torch.Size."""
    return _record("Size", "torch", numbers=tuple(numbers))


class _TensorPickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.id if isinstance(obj, _Storage) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Tensor):
            storage, first, sizes, strides = obj.args
            return _NAMES["torch._utils", "_rebuild_tensor_v2"], (storage, first, sizes, strides, False, {})
        return NotImplemented


class _Storage:
    def __init__(self, pid: tuple[Any, ...]) -> None:
        self.id = pid


class _Tensor:
    def __init__(self, *args: Any) -> None:
        self.args = args


def tensor_pickle(
    dtype: str, sizes: Sequence[int], strides: Sequence[int], *, first: int = 0, length: int = -1
) -> bytes:
    """Return the `data.pkl` of a tensor: strides, first and length are numbers of elements."""
    length = math.prod(sizes) if length < 0 else length
    buffer = io.BytesIO()
    with mock.patch.dict(sys.modules, _fake_modules()):
        storage = _Storage(("storage", _NAMES["torch", STORAGES[dtype]], "0", "cpu", length))
        _TensorPickler(buffer, 2).dump(_Tensor(storage, first, tuple(sizes), tuple(strides)))
    return buffer.getvalue()


@dataclass
class Saved:
    """A box of a tensor: its values, or for a hole only their number of bytes; what the index says of it."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    values: npt.NDArray[Any] | None = None
    rank: int = 0
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None
    pickled: bytes | None = None
    order: bytes = b"little"
    crc: int | None = None
    deflated: bool = False
    """Whether its smallest member is compressed, as torch itself never does it."""


def boxes(name: str, array: npt.NDArray[Any], cuts: Sequence[Sequence[int]], ranks: int = 1) -> list[Saved]:
    """Return an array in boxes that are cut at some places of each dimension, in turn on some ranks."""
    edges = [[0, *cut, length] for cut, length in zip(cuts, array.shape, strict=True)]
    grid = np.stack(np.meshgrid(*[np.arange(len(edge) - 1) for edge in edges], indexing="ij"), -1)
    saved: list[Saved] = []
    for number, at in enumerate(grid.reshape(-1, array.ndim).tolist()):
        low, high = ([edges[n][i + step] for n, i in enumerate(at)] for step in (0, 1))
        part = array[tuple(map(slice, low, high))]
        saved.append(Saved(name, array.shape, tuple(low), part.shape, part, number % ranks, array.dtype.name))
    return saved


def _strides(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[n + 1 :]) for n in range(len(sizes)))


def _deflated(data: bytes) -> bytes:
    """Return bytes compressed as in a zip: without a header."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def write_item(file: BinaryIO, saved: Saved) -> tuple[int, int]:
    """Write a box as an item of torch; return where it begins and ends."""
    begin = file.tell()
    strides = saved.strides or _strides(saved.sizes)
    itemsize = 8 if saved.dtype.endswith("64") else 2 if saved.dtype.endswith("16") else 4
    length = math.prod(saved.sizes) * (itemsize if saved.values is None else saved.values.itemsize)
    pickled = saved.pickled or tensor_pickle(saved.dtype, saved.sizes, strides)
    data = None if saved.values is None else np.ascontiguousarray(saved.values).tobytes()
    directory: list[bytes] = []
    members: dict[str, bytes | None] = {
        "data.pkl": pickled,
        "byteorder": saved.order,
        "data/0": data,
        "version": b"3\n",
    }
    for name, content in members.items():
        header, encoded = file.tell() - begin, f"archive/{name}".encode()
        count = length if content is None else len(content)
        crc = zlib.crc32(content or b"") if name != "data/0" or saved.crc is None else saved.crc
        padding = -(header + 34 + len(encoded)) % 64
        method, packed, written = 0, count, content
        if saved.deflated and name == "byteorder" and content is not None:
            written, method = _deflated(content), 8
            packed = len(written)
        fields = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, 0x808, method, 0, 0, 0, 0, 0, len(encoded), padding + 4)
        file.write(fields + encoded + struct.pack("<2sH", b"FB", padding) + b"Z" * padding)
        if written is None:
            file.seek(count, io.SEEK_CUR)
        else:
            file.write(written)
        file.write(struct.pack("<4sIQQ" if count >> 32 else "<4sIII", b"PK\7\x08", crc, packed, count))
        wide = count >> 32 > 0
        known = (0xFFFFFFFF, 0xFFFFFFFF) if wide else (packed, count)
        far = header >> 32 > 0
        numbers = ([count, count] if wide else []) + ([header] if far else [])
        extra = struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""
        entry = (b"PK\1\2", 0, 0, 0x808, method, 0, 0, crc, *known, len(encoded), len(extra), 0, 0, 0, 0)
        directory.append(struct.pack("<4sHHHHHHIIIHHHHHI", *entry) + struct.pack("<I", 0xFFFFFFFF if far else header))
        directory[-1] += encoded + extra
    start, whole = file.tell() - begin, b"".join(directory)
    file.write(whole)
    end, count = start + len(whole), len(directory)
    file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 45, 0, 0, count, count, len(whole), start))
    file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
    file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(whole), min(start, 0xFFFFFFFF), 0))
    return begin, file.tell()


def write_step(directory: Path, parts: Sequence[Saved], **more: Any) -> Path:
    """Write a step: a file for each rank, and the index."""
    directory.mkdir(parents=True)
    items: dict[Any, Any] = {}
    by_rank: dict[int, list[Saved]] = defaultdict(list)
    for part in parts:
        by_rank[part.rank].append(part)
    for rank, some in by_rank.items():
        with (directory / f"__{rank}_0.distcp").open("wb") as file:
            for part in some:
                begin, end = write_item(file, part)
                key = _record("MetadataIndex", fqn=part.name, offset=size(part.offsets), index=0)
                place = {"relative_path": f"__{rank}_0.distcp", "offset": begin, "length": end - begin}
                items[key] = _record("_StorageInfo", "torch.distributed.checkpoint.filesystem", **place)
    tensors: dict[str, Any] = {}
    for part in parts:
        if part.name not in tensors:
            values = (_DTYPES[part.dtype], _LAYOUT(), False, _record("_MEM_FORMAT_ENCODING"), False)
            properties = _record("TensorProperties", values=values)
            tensors[part.name] = _record(
                "TensorStorageMetadata", properties=properties, size=size(part.shape), chunks=[]
            )
        box = _record("ChunkStorageMetadata", offsets=size(part.offsets), sizes=size(part.sizes))
        tensors[part.name].chunks.append(box)
    index: dict[str, Any] = {"state_dict_metadata": tensors, "planner_data": {}, "storage_data": items, **more}
    with mock.patch.dict(sys.modules, _fake_modules()):
        (directory / ".metadata").write_bytes(pickle.dumps(_record("Metadata", **index), 4))
    return directory


def write_many(directory: Path, tensors: int, ranks: int) -> Path:
    """Write the index of a step in which each rank has a box of each tensor, and files as long as it says."""
    directory.mkdir(parents=True)
    items: dict[Any, Any] = {}
    stored: dict[str, Any] = {}
    paths = [f"__{rank}_0.distcp" for rank in range(ranks)]
    for number in range(tensors):
        name = f"optim.state.model.layers.{number}.mlp.gate_proj.weight.exp_avg"
        values = (_DTYPES["float32"], _LAYOUT(), False, _record("_MEM_FORMAT_ENCODING"), False)
        chunks = [
            _record("ChunkStorageMetadata", offsets=size((rank * 7, 0)), sizes=size((7, 5120))) for rank in range(ranks)
        ]
        properties = _record("TensorProperties", values=values)
        stored[name] = _record(
            "TensorStorageMetadata", properties=properties, size=size((ranks * 7, 5120)), chunks=chunks
        )
        for rank, path in enumerate(paths):
            key = _record("MetadataIndex", fqn=name, offset=size((rank * 7, 0)), index=rank)
            place = {
                "relative_path": path,
                "offset": number * 150_000,
                "length": 145_000,
                "transform_descriptors": None,
            }
            items[key] = _record("_StorageInfo", "torch.distributed.checkpoint.filesystem", **place)
    index: dict[str, Any] = {
        "state_dict_metadata": stored,
        "planner_data": {},
        "storage_data": items,
        "storage_meta": None,
    }
    with mock.patch.dict(sys.modules, _fake_modules()):
        (directory / ".metadata").write_bytes(pickle.dumps(_record("Metadata", **index), 4))
    for path in paths:
        with (directory / path).open("wb") as file:
            file.truncate(tensors * 150_000)
    return directory
