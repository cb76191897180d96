"""What `torch.load(weights_only=True)`, the default since torch 2.6, refuses: names and opcodes that it does not know.

Its unpickler takes a list of classes and functions of torch, and the opcodes that torch.save writes. The rules are
those of `torch/_weights_only_unpickler.py`, torch 2.13. A program may allow more names by `add_safe_globals`; DTensors
are allowed once `torch.distributed.tensor` is imported.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.sources.torch.kinds import PICKLE, is_legacy
from edl_ckpt.core.sources.torch.machine import read
from edl_ckpt.core.sources.torch.zips import TorchZip
from edl_ckpt.core.storage.interface import RangeReader

_MOST_BYTES: Final = 256 << 20
_FEW_BYTES: Final = 64
_PICKLES_OF_LEGACY: Final = 5
_ALLOWED: Final = frozenset({
    "_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.set", "collections.Counter",
    "collections.OrderedDict", "torch.Size", "torch.Tensor", "torch.device", "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout", "torch.storage.TypedStorage", "torch.storage.UntypedStorage",
    "torch._tensor._rebuild_from_type_v2",
})  # fmt: skip
_REBUILT: Final = re.compile(
    r"torch\._utils\._rebuild_(?:device_tensor_from_(?:cpu_tensor|numpy)|meta_tensor_no_storage|nested_tensor|parameter"
    r"|parameter_with_state|qtensor|sparse_tensor|tensor|tensor_v2|tensor_v3|wrapper_subclass)"
)
_TYPE: Final = re.compile(
    r"torch\.(?:cuda\.)?(?:sparse\.)?(?:BFloat16|Bool|Byte|Char|Double|Float|Half|Int|Long|Short)Tensor"
    r"|torch\.(?:cuda\.)?(?:BFloat16|Bool|Byte|Char|ComplexDouble|ComplexFloat|Double|Float|Half|Int|Long|Short)Storage"
    r"|torch\.Q(?:Int32|Int8|UInt2x4|UInt4x2|UInt8)Storage"
    r"|torch\.(?:bool|bfloat16|float(?:16|32|64)|complex(?:32|64|128)|u?int(?:[1-8]|16|32|64)|quint(?:8|2x4|4x2)|qint(?:8|32)"
    r"|bits(?:8|16|1x8|2x4|4x2)|float8_e(?:4m3fn|4m3fnuz|5m2|5m2fnuz|8m0fnu)|float4_e2m1fn_x2"
    r"|per_tensor_(?:affine|symmetric)|per_channel_(?:affine|symmetric|affine_float_qparams))"
)
_DISTRIBUTED: Final = re.compile(
    r"torch\.distributed\.(?:_mesh_layout\._(?:Flat|Mesh)Layout|device_mesh\.DeviceMesh|tensor\.DTensor"
    r"|tensor\._dtensor_spec\.(?:DTensorSpec|ShardOrderEntry|TensorMeta)"
    r"|tensor\.placement_types\.(?:Partial|Replicate|Shard|_StridedShard))"
)
_OPCODES: Final = frozenset({
    "PROTO", "STOP", "GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MARK", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWFALSE", "NEWTRUE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET",
    "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "BINPERSID", "BINGET", "LONG_BINGET",
    "BINPUT", "LONG_BINPUT", "LONG1",
})  # fmt: skip


class Refusal(NamedTuple):
    """What the unpickler refuses: in words, with the place of the opcode in the pickle."""

    words: str
    offset: int
    import_helps: bool = False
    """True for what it takes once `torch.distributed.tensor` is imported."""


def refusals(reader: RangeReader) -> Iterator[Refusal]:
    """Yield what `torch.load(weights_only=True)` refuses in a file of torch.save, each name once.

    Raises the errors of opening a zip, and CorruptError for a pickle that is damaged.
    """
    seen: set[str] = set()
    for data in _pickles(reader):
        for found in _refused(data):
            if found.words not in seen:
                seen.add(found.words)
                yield found


def _pickles(reader: RangeReader) -> Iterator[bytes]:
    """Yield the pickles of a file: one in a zip, five in a row in a file from before torch 1.6."""
    if not is_legacy(reader.read(0, min(reader.size_bytes, _FEW_BYTES))):
        yield TorchZip(reader).content(PICKLE, _MOST_BYTES)[0]
        return
    data, at = reader.read(0, min(reader.size_bytes, _MOST_BYTES)), 0
    for _ in range(_PICKLES_OF_LEGACY):
        end = read(data, at)[2]
        yield data[at:end]
        at = end


def _refused(data: bytes) -> Iterator[Refusal]:
    opcodes = pickletools.genops(io.BytesIO(data))
    while True:
        try:
            opcode, argument, place = next(opcodes)
        except StopIteration:
            return
        except (ValueError, IndexError) as error:  # an opcode that nothing has, or bytes that end
            raise CorruptError(f"the pickle is damaged: {error}") from None
        offset = place or 0
        if opcode.name not in _OPCODES:
            yield Refusal(f"the opcode {opcode.name}, of another protocol than torch.save writes", offset)
        elif opcode.name == "GLOBAL":
            name = str(argument).replace(" ", ".").replace("__builtin__.", "builtins.")
            if name in _ALLOWED or _REBUILT.fullmatch(name) or _TYPE.fullmatch(name):
                continue
            yield Refusal(name, offset, import_helps=_DISTRIBUTED.fullmatch(name) is not None)
