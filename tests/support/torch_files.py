"""Files as `torch.save` writes them, built without torch: the pickle opcode by opcode, the zip member by member."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


@dataclass(frozen=True)
class Call:
    """A call of a name, as a pickle has it, or an object with a state."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    is_object: bool = False


@dataclass(frozen=True)
class Name:
    """The name of a class or a function."""

    name: str


@dataclass(frozen=True)
class Tensor:
    """A view of a storage: of a key, with an offset, a shape and strides in elements."""

    key: str
    dtype: str
    elements: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class Pickle:
    """The bytes of a pickle, and the storages that it names."""

    data: bytearray = field(default_factory=lambda: bytearray(b"\x80\x02"))
    storages: dict[str, bytes] = field(default_factory=dict)

    def put(self, value: Any) -> None:  # noqa: C901, PLR0912 - a table of kinds
        """Append the opcodes that make a value."""
        match value:
            case None:
                self.data += b"N"
            case bool():
                self.data += b"\x88" if value else b"\x89"
            case int():
                raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
                self.data += b"K" + bytes([value]) if 0 <= value < 256 else b"\x8a" + bytes([len(raw)]) + raw
            case float():
                self.data += b"G" + struct.pack(">d", value)
            case str():
                text = value.encode("utf-8", "surrogatepass")
                self.data += b"X" + struct.pack("<I", len(text)) + text
            case tuple():
                self.data += b"("
                for one in value:
                    self.put(one)
                self.data += b"t"
            case list():
                self.data += b"]("
                for one in value:
                    self.put(one)
                self.data += b"e"
            case dict():
                self.data += b"}("
                for key, one in value.items():
                    self.put(key)
                    self.put(one)
                self.data += b"u"
            case Name(name):
                module, _, last = name.rpartition(".")
                self.data += f"c{module}\n{last}\n".encode()
            case Call(name, args, state, is_object):
                self.put(Name(name))
                self.put(args)
                self.data += b"\x81" if is_object else b"R"
                if state is not None:
                    self.put(state)
                    self.data += b"b"
            case Tensor():
                self.put_tensor(value)
            case np.ndarray():
                self.put_tensor(self.stored(value))
            case _:
                raise TypeError(type(value))

    def stored(self, array: npt.NDArray[Any]) -> Tensor:
        """Return an array in a storage of its own, in C order."""
        key = str(len(self.storages))
        self.storages[key] = np.ascontiguousarray(array).tobytes()
        strides = tuple(n // array.itemsize for n in np.ascontiguousarray(array).strides) if array.ndim else ()
        return Tensor(key, array.dtype.name, array.size, 0, array.shape, strides)

    def put_tensor(self, tensor: Tensor) -> None:
        """Append a call that makes a tensor."""
        self.put(Name("torch._utils._rebuild_tensor_v2"))
        self.data += b"("
        kind = Name(f"torch.{STORAGES[tensor.dtype]}")
        self.put(("storage", kind, tensor.key, "cpu", tensor.elements))
        self.data += b"Q"
        for one in (tensor.offset, tensor.shape, tensor.strides, False, Call("collections.OrderedDict")):
            self.put(one)
        self.data += b"tR"


def dtensor(
    local: npt.NDArray[Any], shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int],
    placements: Sequence[Call],
) -> Call:  # fmt: skip
    """Return the part of a DTensor that the rank at a coordinate has, as torch 2.13 pickles it."""
    words = "torch.distributed."
    axes = tuple(Call(f"{words}_mesh_layout._FlatLayout", (), {"shape": (n,)}, is_object=True) for n in mesh)
    layout = Call(f"{words}_mesh_layout._MeshLayout", (), {"axes": axes}, is_object=True)
    state = {"_layout": layout, "_coordinate_on_dim": tuple(coordinate)}
    device_mesh = Call(f"{words}device_mesh.DeviceMesh", (), state, is_object=True)
    spec_state = {"mesh": device_mesh, "placements": tuple(placements)}
    spec = Call(f"{words}tensor._dtensor_spec.DTensorSpec", (), spec_state, is_object=True)
    kind = Name("torch.distributed.tensor.DTensor")
    wrapped = (kind, Name("torch.float32"), tuple(shape), (1,) * len(shape), 0, None, None, False)
    wrapper = Name("torch._utils._rebuild_wrapper_subclass")
    parts = (wrapper, kind, wrapped, (None, {"_local_tensor": local, "_spec": spec}))
    return Call("torch._tensor._rebuild_from_type_v2", parts)


def shard(dim: int) -> Call:
    """Return the placement that cuts a dimension."""
    return Call("torch.distributed.tensor.placement_types.Shard", (), {"dim": dim}, is_object=True)


REPLICATE = Call("torch.distributed.tensor.placement_types.Replicate", (), {}, is_object=True)


def save(path: Path, value: Any, *, storages: Mapping[str, bytes] = {}) -> None:
    """Write a file as `torch.save` does, with further storages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pickled = Pickle()
    pickled.put(value)
    pickled.data += b"."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(pickled.data))
        archive.writestr("archive/byteorder", "little")
        for key, data in (pickled.storages | dict(storages)).items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", "3\n")


def save_legacy(path: Path, value: Any) -> None:
    """Write a file as torch before 1.6 did: pickles in a row, then the storages."""
    pickled = Pickle()
    pickled.put(value)
    pickled.data += b"."
    keys = Pickle()
    keys.put([*pickled.storages])
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03."
    facts = Pickle()
    facts.put({"protocol_version": 1001, "little_endian": True})
    data = magic + bytes(facts.data) + b"." + bytes(pickled.data) + bytes(keys.data) + b"."
    for storage in pickled.storages.values():
        data += struct.pack("<q", len(storage) // 4) + storage
    path.write_bytes(data)
