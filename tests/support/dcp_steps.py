"""Steps as PyTorch's distributed checkpoints have them, made without PyTorch: the same pickles and archives.

The classes of PyTorch are stood in for by ours while a pickle is written. `tests/core/sources/dcp` compares what this
makes with what PyTorch reads.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_METADATA = "torch.distributed.checkpoint.metadata"
_NAMES = {
    _METADATA: "Metadata TensorStorageMetadata ChunkStorageMetadata TensorProperties MetadataIndex"
    " _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch": "Size float32 FloatStorage",
    "torch.serialization": "_get_layout",
    "torch._utils": "_rebuild_tensor_v2",
}


class Stand:
    """An object of one of PyTorch's classes; each class is its own."""

    def __init__(self, *state: Any, **named: Any) -> None:
        self.state = state or named

    def __getstate__(self) -> object:
        return self.state


class _Call:
    """Something that a pickle makes by calling a global."""

    def __init__(self, name: Any, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.name, self.arguments


@contextmanager
def stand_ins() -> Iterator[dict[str, Any]]:
    """Give the names of PyTorch to classes and functions of ours, as long as the block runs."""
    before = {name: sys.modules.get(name) for name in _NAMES}
    made: dict[str, Any] = {}
    try:
        for module, names in _NAMES.items():
            sys.modules[module] = types.ModuleType(module)
            for name in names.split():
                made[name] = type(name, (Stand,), {"__module__": module, "__qualname__": name})
                setattr(sys.modules[module], name, made[name])
        yield made
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before


def tensor_pickle(shape: Sequence[int]) -> bytes:
    """Return the pickle of a float32 tensor in C order, as it stands in an archive."""
    with stand_ins() as torch:
        storage, count = torch["FloatStorage"], int(np.prod(shape))
        stride = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))

        class Pickler(pickle.Pickler):
            def persistent_id(self, item: object) -> object:
                return ("storage", storage, "0", "cpu", count) if item == "the storage" else None

        file = io.BytesIO()
        tensor = _Call(torch["_rebuild_tensor_v2"], "the storage", 0, tuple(shape), stride, False, OrderedDict())
        Pickler(file, 2).dump(tensor)
    return file.getvalue()


def archive(values: npt.NDArray[np.float32]) -> bytes:
    """Return a tensor as `torch.save` writes it."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_STORED) as made:
        made.writestr("archive/data.pkl", tensor_pickle(values.shape))
        made.writestr("archive/byteorder", b"little")
        made.writestr("archive/data/0", values.tobytes())
        made.writestr("archive/version", b"3\n")
    return body.getvalue()


class _Holes(io.RawIOBase):
    """A file in which a run of zeros is a hole: nothing is written for it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: Any) -> int:
        if len(data) >= _HOLE_BYTES:
            self._file.seek(len(data), io.SEEK_CUR)
            self._file.truncate()
        else:
            self._file.write(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


_HOLE_BYTES = 1 << 20


def write_holes(folder: Path, name: str, rows: int, dim: int) -> None:
    """Write a table of zeros as a step of one rank, whose values are a hole in its file."""
    folder.mkdir(parents=True)
    path, piece, size = folder / "__0_0.distcp", bytes(_HOLE_BYTES), 4 * rows * dim
    file = _Holes(path)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as made:
        made.writestr("archive/data.pkl", tensor_pickle((rows, dim)))
        made.writestr("archive/byteorder", b"little")
        with made.open("archive/data/0", "w", force_zip64=True) as values:
            for start in range(0, size, _HOLE_BYTES):
                values.write(piece[: size - start])
    file.close()
    item = Item(name, 0, (0, 0), (rows, dim), 0, path.stat().st_size)
    (folder / ".metadata").write_bytes(metadata({name: (rows, dim)}, [item]))


@dataclass(frozen=True, slots=True)
class Item:
    """A box of a tensor in the file of a rank."""

    name: str
    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    length: int


def metadata(shapes: dict[str, tuple[int, ...]], items: Sequence[Item]) -> bytes:
    """Return a `.metadata`: the shapes of float32 tensors, and their items."""
    with stand_ins() as torch:

        def size(numbers: Sequence[int]) -> _Call:
            return _Call(torch["Size"], list(numbers))

        layout, memory = _Call(torch["_get_layout"], "torch.strided"), _Call(torch["_MEM_FORMAT_ENCODING"], 0)
        properties = torch["TensorProperties"](torch["float32"], layout, False, memory, False)
        tensors, storage = {}, {}
        for name, shape in shapes.items():
            chunks = [
                torch["ChunkStorageMetadata"](offsets=size(i.offsets), sizes=size(i.sizes))
                for i in items
                if i.name == name
            ]
            tensors[name] = torch["TensorStorageMetadata"](properties=properties, size=size(shape), chunks=chunks)
        for number, item in enumerate(items):
            key = torch["MetadataIndex"](fqn=item.name, offset=size(item.offsets), index=number)
            info = torch["_StorageInfo"](
                relative_path=f"__{item.rank}_0.distcp",
                offset=item.start,
                length=item.length,
                transform_descriptors=None,
            )
            storage[key] = info
        whole = torch["Metadata"](
            state_dict_metadata=tensors, planner_data=None, storage_data=storage, storage_meta=None, version=None
        )
        return pickle.dumps(whole)


def write_step(folder: Path, tensors: dict[str, npt.NDArray[np.float32]], ranks: int) -> None:
    """Write tensors as a step, each cut by its first axis over some ranks."""
    folder.mkdir(parents=True)
    items: list[Item] = []
    files = {rank: (folder / f"__{rank}_0.distcp").open("wb") for rank in range(ranks)}
    for name, values in tensors.items():
        step = -(-len(values) // ranks)
        for rank in range(ranks):
            part = np.ascontiguousarray(values[rank * step : (rank + 1) * step])
            if len(part):
                data = archive(part)
                offsets = (rank * step, *(0 for _ in part.shape[1:]))
                items.append(Item(name, rank, offsets, part.shape, files[rank].tell(), len(data)))
                files[rank].write(data)
    for file in files.values():
        file.close()
    (folder / ".metadata").write_bytes(metadata({name: values.shape for name, values in tensors.items()}, items))
