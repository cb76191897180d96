"""torch and safetensors write checkpoints with a tensor of each dtype that they have, and say what they read.

It runs under a Python that has torch and safetensors, as a program. Each line of stdin is a JSON list:

* ["dtypes", KIND] lists the names of the tensors that a kind of file can have: dcp, pt, safetensors.
* ["save", KIND, PATH, NAMES] writes them, and beside them the float32 tensor `w`; values of Python too, where the kind
  has them.
* ["read", KIND, PATH] reads all that is there by the loader of that kind: `dcp.load`, `torch.load(weights_only=True)`,
  `safe_open`.

The answers to `save` and `read` are the tensors by name: the dtype as torch calls it, the shape, the bytes in hex. What
is no tensor has its `repr`. Where a loader refuses, the answer is {"error": its words}.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import TensorSpec, safe_open, serialize_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

warnings.filterwarnings("ignore")
PLAIN = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "complex32",
    "complex64",
    "complex128",
]
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Those whose values are looked at: random bits would be too large to be weights."""
QUANTIZED = ["qint8", "quint8", "qint32", "channels"]
VALUES: dict[str, Any] = {"lr": 0.1, "step": 7, "text": "hello", "betas": (0.9, 0.99)}
SIX_BITS = ["F6_E2M3", "F6_E3M2"]
"""The format has them, and no library writes them: the judge of their bytes is `safe_open`'s check of the header."""
NOT_IN_SAFETENSORS = {"complex32", "complex128"}


def tensor(name: str) -> torch.Tensor:
    """Return a tensor of 3 x 4 with random values, other ones for each name."""
    made = torch.Generator().manual_seed(sum(name.encode()))
    if name == "bool":
        return torch.randint(0, 2, (3, 4), generator=made).bool()
    if name == "channels":
        scales, zeros = torch.rand(3, generator=made, dtype=torch.float64) + 0.1, torch.tensor([1, 2, 3])
        return torch.quantize_per_channel(torch.randn(3, 4, generator=made), scales, zeros, 0, torch.qint8)
    if name in QUANTIZED:
        return torch.quantize_per_tensor(torch.randn(3, 4, generator=made), 0.1, 3, getattr(torch, name))
    dtype = getattr(torch, name)
    if name in FLOATS:
        return torch.randn(3, 4, generator=made).to(dtype)
    return torch.randint(0, 256, (3, 4 * dtype.itemsize), dtype=torch.uint8, generator=made).view(dtype)


def described(value: Any) -> list[Any]:
    """Return the dtype, the shape and the bytes of a tensor, or the text of another value."""
    if not isinstance(value, torch.Tensor):
        return ["value", [], repr(value)]
    name = str(value.dtype).removeprefix("torch.")
    if not value.is_quantized:
        return [name, list(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes().hex()]
    scheme = (
        [value.q_scale(), value.q_zero_point()]
        if value.qscheme() == torch.per_tensor_affine
        else [
            value.q_per_channel_scales().tolist(),
            value.q_per_channel_zero_points().tolist(),
            value.q_per_channel_axis(),
        ]
    )
    return [f"{name} {scheme}", list(value.shape), value.int_repr().view(torch.uint8).numpy().tobytes().hex()]


def write_six_bits(path: str, names: list[str]) -> None:
    """Write a file of safetensors with tensors of 6 bits an element, and `w`."""
    header: dict[str, Any] = {}
    data = bytearray()
    for name in [*names, "w"]:
        values = described(tensor("uint8"))[2][:24] if name in SIX_BITS else described(tensor("float32"))[2]
        start, data = len(data), data + bytes.fromhex(values)
        dtype, shape = (name, [4, 4]) if name in SIX_BITS else ("F32", [3, 4])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def save(kind: str, path: str, names: list[str]) -> dict[str, Any]:
    """Write tensors and `w`; return what they are."""
    if set(names) & set(SIX_BITS):
        write_six_bits(path, names)
        return read(kind, path)
    state: dict[str, Any] = {name: tensor(name) for name in names} | {"w": tensor("float32")}
    if kind == "dcp":
        dcp.save(state | VALUES, checkpoint_id=path, no_dist=True)
        return {name: described(value) for name, value in (state | VALUES).items()}
    if kind == "pt":
        torch.save(state, path)
    else:
        specs = {
            name: TensorSpec(
                dtype=str(one.dtype).removeprefix("torch."),
                shape=list(one.shape),
                data_ptr=one.data_ptr(),
                data_len=one.numel() * one.itemsize,
            )
            for name, one in state.items()
        }  # the library's own writer: save_file lacks float4
        serialize_file(specs, path, {"format": "pt"})
    return {name: described(value) for name, value in state.items()}


def read_dcp(path: str) -> dict[str, Any]:
    """Load a step with `dcp.load` into tensors of the dtypes and shapes that its metadata names.

    Into a quantised tensor torch loads numbers alone, and keeps the scale that the target has; the scale that was saved
    is in the item, which `torch.load` reads.
    """
    metadata = dcp.FileSystemReader(path).read_metadata()
    state: dict[str, Any] = {}
    quantized: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            state[name] = None
        elif entry.properties.dtype not in {torch.qint8, torch.quint8, torch.qint32}:
            state[name] = torch.zeros(entry.size, dtype=entry.properties.dtype)
        else:
            (place,) = (place for index, place in metadata.storage_data.items() if index.fqn == name)
            data = (Path(path) / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
            quantized[name] = torch.load(io.BytesIO(data), weights_only=True)
            if quantized[name].qscheme() == torch.per_tensor_affine:  # torch loads no other one
                state[name] = torch.quantize_per_tensor(torch.zeros(entry.size), 1.0, 0, entry.properties.dtype)
    dcp.load(state, checkpoint_id=path, no_dist=True)
    for name, one in quantized.items():
        if name in state and not torch.equal(state[name].int_repr(), one.int_repr()):
            raise ValueError(f"{name}: dcp.load and torch.load differ")
    return state | quantized


def read(kind: str, path: str) -> dict[str, Any]:
    """Return all that the loader of a kind reads."""
    if kind == "dcp":
        return {name: described(value) for name, value in read_dcp(path).items()}
    if kind == "pt":
        loaded = torch.load(path, weights_only=True)
        return {name: described(value) for name, value in loaded.items()}
    found = {}
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no dict
            part = file.get_slice(name)
            try:
                found[name] = described(file.get_tensor(name))
            except Exception:  # noqa: BLE001 - torch has no such dtype: the bytes are where the header says
                found[name] = [part.get_dtype(), list(part.get_shape()), raw(path, name)]
    return found


def raw(path: str, name: str) -> str:
    """Return the bytes of a tensor in a file of safetensors."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    start, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return data[8 + length + start : 8 + length + end].hex()


def answer(request: list[Any]) -> Any:
    """Return what a request asks for."""
    what, kind, *rest = request
    if what == "dtypes":
        return {
            "dcp": [*PLAIN, *QUANTIZED],
            "pt": [*PLAIN, *QUANTIZED],
            "safetensors": [*(name for name in PLAIN if name not in NOT_IN_SAFETENSORS), *SIX_BITS],
        }[kind]
    try:
        return save(kind, *rest) if what == "save" else read(kind, *rest)
    except BaseException as error:  # noqa: BLE001 - whatever a loader says
        return {"error": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
