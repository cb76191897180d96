"""A checkpoint of torch laid out without torch: items as `torch.save` writes them, and the `.metadata` that names them.

The values of an item lie at a multiple of 64 bytes in it. What stands around them depends on dtype and shape alone, but
for the checksum of the values. Source: `PyTorchStreamWriter` (`inline_container.cc`), `serialization.py`, and
`distributed/checkpoint` (`filesystem.py`, `metadata.py`) of torch 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any, ClassVar, Final, NamedTuple

from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES, DType
from edl_ckpt.core.sources.dcp.metadata import VARIABLES_MARK, IndexedTensor, SavedBox
from edl_ckpt.core.sources.steps.file_layout import Array, Slab
from edl_ckpt.core.sources.zip_layout import TorchZip, ZipFileLayout, ZipMember, ZipPlan, lay_out_zip

METADATA: Final = ".metadata"
_TYPED: Final = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "bool": "Bool",
}
"""The storages that pickles name; those of other dtypes are untyped."""
OF_TORCH: Final = frozenset(TENSOR_DTYPES) - {"float8_e4m3b11fnuz"}
"""The dtypes that torch has, too."""
_CHECKPOINT: Final = "torch.distributed.checkpoint.metadata"


class Name(NamedTuple):
    """A global name in a pickle."""

    module: str
    name: str


class Made(NamedTuple):
    """An object in a pickle: of a class, with a state, or with arguments of a call, or a persistent id."""

    of: Name | None
    state: Any = None
    args: tuple[Any, ...] | None = None


class _Pairs(list[tuple[Any, Any]]):
    """The items of a dict whose keys are `Made`."""


def pickled(value: Any, *, memo: bool = True) -> bytes:
    """Return the pickle of nested values and of `Name` and `Made`, which name classes that need not be there.

    With `memo`, texts and names that come again are not written again; what torch loads with `weights_only` has none.

    >>> import pickle
    >>> pickle.loads(pickled({"a": [1, (2**40, None)], "b": True}))
    {'a': [1, (1099511627776, None)], 'b': True}
    """
    out: list[bytes] = [b"\x80\x04" if memo else b"\x80\x02"]
    _Pickle(out, {} if memo else None).put(value)
    return b"".join((*out, b"."))


@dataclass(slots=True)
class _Pickle:
    out: list[bytes]
    memo: dict[Any, bytes] | None

    def put(self, value: Any) -> None:
        """Write a value."""
        put, kind = self.out.append, type(value)
        if kind is str or kind is Name:
            self._shared(value)
        elif kind is Made:
            self._made(value)
        elif value is None or kind is bool:
            put({None: b"N", True: b"\x88", False: b"\x89"}[value])
        elif kind is int:
            put(
                b"J" + struct.pack("<i", value)
                if -(1 << 31) <= value < 1 << 31
                else b"\x8a\x08" + struct.pack("<q", value)
            )
        else:
            is_dict = kind is dict or kind is _Pairs
            begin, end = b"", b"t"
            if is_dict:
                begin, end = b"}", b"u"
            elif kind is list:
                begin, end = b"]", b"e"
            put(begin + b"(")
            pairs = value.items() if kind is dict else value
            for one in chain.from_iterable(pairs) if is_dict else value:
                self.put(one)
            put(end)

    def _shared(self, value: str | Name) -> None:
        """Write a text or a name, or that it is one of those before."""
        if self.memo is not None and value in self.memo:
            self.out.append(self.memo[value])
            return
        if isinstance(value, Name):
            self.out.append(b"c" + f"{value.module}\n{value.name}\n".encode())
        else:
            data = name_bytes(value)
            self.out.append(b"X" + struct.pack("<I", len(data)) + data)
        if self.memo is not None:
            number = len(self.memo)
            self.memo[value] = b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)
            self.out.append(b"\x94")

    def _made(self, made: Made) -> None:
        if made.of is None:
            self.put(made.state)
            self.out.append(b"Q")
        elif made.args is not None:
            self.put(made.of)
            self.put(made.args)
            self.out.append(b"R")
        else:
            self.put(made.of)
            self.out.append(b")\x81")
            if made.state is not None:
                self.put(made.state)
                self.out.append(b"b")


def storage_kind(dtype: DType) -> Name:
    """Return the class of a storage of a dtype; one of bytes where none is of its own."""
    typed = _TYPED.get(dtype.name)
    return Name("torch", f"{typed}Storage") if typed else Name("torch.storage", "UntypedStorage")


def tensor_of(dtype: DType, shape: Sequence[int], key: str) -> Made:
    """Return what a pickle says of a tensor in C order, whose storage is the member `data/KEY`."""
    strides = tuple(prod(shape[n + 1 :]) for n in range(len(shape)))
    typed, count = _TYPED.get(dtype.name), prod(shape)
    kind = storage_kind(dtype)
    storage = Made(None, ("storage", kind, key, "cpu", count if typed else count * dtype.itemsize))
    hooks = Made(Name("collections", "OrderedDict"), args=())
    args = (storage, 0, tuple(shape), strides, False, hooks)
    if typed:
        return Made(Name("torch._utils", "_rebuild_tensor_v2"), args=args)
    return Made(Name("torch._utils", "_rebuild_tensor_v3"), args=(*args, Name("torch", dtype.name)))


def small_members(pickle: bytes) -> tuple[list[ZipMember], list[ZipMember]]:
    """Return the members of an archive before the values, and behind them."""
    before = {"data.pkl": pickle, ".format_version": b"1", ".storage_alignment": b"64", "byteorder": b"little"}
    behind = {"version": b"3\n", ".data/serialization_id": b"0" * 40}
    first, last = ([ZipMember(name, len(data), data) for name, data in some.items()] for some in (before, behind))
    return first, last


@lru_cache(1 << 12)
def _item(dtype: DType, shape: tuple[int, ...]) -> ZipPlan:
    """Return the archive of a tensor alone."""
    before, behind = small_members(pickled(tensor_of(dtype, shape, "0"), memo=False))
    return lay_out_zip([*before, ZipMember("data/0", prod(shape) * dtype.itemsize), *behind], TorchZip())


@dataclass(frozen=True, slots=True)
class DcpLayout:
    """Where everything goes in the files of a checkpoint of torch."""

    checksum: ClassVar = "crc32"
    files: Mapping[str, int]
    _items: Mapping[tuple[str, int], tuple[str, int, ZipPlan | None]]
    """The file of each slab, where its item begins there, and the item; None where that is copied as it is."""
    _others: Sequence[tuple[str, int, bytes]]

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of a slab, and the offset of its values."""
        file, start, item = self._items[key, slab]
        return file, start + (item.places["data/0"] if item else 0)

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield what stands around values, pickled values, and `.metadata` at last, given the CRC-32 of each slab."""
        for slab, (file, start, item) in self._items.items():
            for offset, data in item.parts(start, {"data/0": sums[slab]}) if item else ():
                yield file, offset, data
        yield from self._others


def lay_out_state(arrays: Sequence[Array], others: Mapping[str, bytes]) -> ZipFileLayout:
    """Lay out a state_dict of arrays, each in one piece, in a file; `others` are members that torch passes over."""
    members = {array.key: f"data/{number}" for number, array in enumerate(arrays)}
    state = {array.key: tensor_of(array.dtype, array.shape, str(number)) for number, array in enumerate(arrays)}
    before, behind = small_members(pickled(state, memo=False))
    values = [ZipMember(members[a.key], prod(a.shape) * a.dtype.itemsize) for a in arrays]
    notes = [ZipMember(name, len(data), data) for name, data in others.items()]
    return ZipFileLayout(lay_out_zip([*before, *values, *notes, *behind], TorchZip()), members)


@dataclass(slots=True)
class _NewMetadata:
    """What `.metadata` is to say, and the sizes of the files so far."""

    folder: str
    sizes: dict[str, int] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    places: list[tuple[Any, Any]] = field(default_factory=list)

    def add(self, key: str, slab: tuple[int, tuple[int, ...]] | None, rank: int, size: int) -> tuple[str, int]:
        """Give an item the next bytes of the file of a rank; return its file and where it begins."""
        number, offsets = slab or (None, None)
        name = f"__{rank}_0.distcp"
        start = self.sizes.get(name, 0)
        self.sizes[name] = start + size
        index = {"fqn": key, "index": number, "offset": None if offsets is None else _size(offsets)}
        info = {"relative_path": name, "offset": start, "length": size}
        kinds = Name(_CHECKPOINT, "MetadataIndex"), Name("torch.distributed.checkpoint.filesystem", "_StorageInfo")
        self.places.append((Made(kinds[0], index), Made(kinds[1], info)))
        return self.folder + name, start

    def metadata(self, paths: Mapping[str, Any], variables: Sequence[str]) -> bytes:
        """Return the content of `.metadata`, with the mark of variables."""
        state: dict[str, Any] = {
            "state_dict_metadata": self.stored,
            "planner_data": {key: paths.get(key, (key,)) for key in self.stored},
            "storage_data": _Pairs(self.places),
            "storage_meta": None,
            "version": "1.0.0",
        }
        if variables:
            state[VARIABLES_MARK] = list(variables)
        return pickled(Made(Name(_CHECKPOINT, "Metadata"), state))


def _size(numbers: tuple[int, ...]) -> Made:
    return Made(Name("torch", "Size"), args=(numbers,))


def lay_out(
    arrays: Sequence[Array],
    *,
    folder: str = "",
    items: Mapping[str, IndexedTensor] | None = None,
    paths: Mapping[str, Any] | None = None,
    variables: Sequence[str] = (),
) -> DcpLayout:
    """Lay out arrays in `__RANK_0.distcp` files of a folder, which is '' or ends with a slash, and `.metadata`.

    `items` says what the index has of arrays that are items: their bytes are copied. `paths` are where torch found each
    key.
    `variables` are marked as such, since their names are those of tables.
    """
    draft = _NewMetadata(folder)
    placed: dict[tuple[str, int], tuple[str, int, ZipPlan | None]] = {}
    for array in arrays:
        form = (items or {}).get(array.key) if array.dtype.is_item else None
        if form is not None:
            draft.stored[array.key] = _described(form.dtype, form.shape, form.pieces)
            for number, slab in enumerate(array.slabs):
                box = (number, form.pieces[number].offsets) if form.dtype else None
                placed[array.key, number] = *draft.add(array.key, box, slab.rank, slab.sizes[0]), None
            continue
        draft.stored[array.key] = _described(array.dtype.name, array.shape, array.slabs)
        for number, slab in enumerate(array.slabs):
            item = _item(array.dtype, slab.sizes)
            placed[array.key, number] = *draft.add(array.key, (number, slab.offsets), slab.rank, item.size), item
    metadata = draft.metadata(paths or {}, variables)
    files = {f"{folder}{name}": size for name, size in sorted(draft.sizes.items())}
    name = f"{folder}{METADATA}"
    return DcpLayout({**files, name: len(metadata)}, placed, [(name, 0, metadata)])


def _described(dtype: str, shape: tuple[int, ...], boxes: Sequence[Slab | SavedBox]) -> Made:
    """Return what `.metadata` says of a tensor in boxes, or, without a dtype, of another value."""
    if not dtype:
        return Made(Name(_CHECKPOINT, "BytesStorageMetadata"))
    layout = Made(Name("torch.serialization", "_get_layout"), args=("torch.strided",))
    memory = Made(Name(_CHECKPOINT, "_MEM_FORMAT_ENCODING"), args=(0,))
    properties = Made(Name(_CHECKPOINT, "TensorProperties"), (Name("torch", dtype), layout, False, memory, False))
    chunks = [
        Made(Name(_CHECKPOINT, "ChunkStorageMetadata"), {"offsets": _size(box.offsets), "sizes": _size(box.sizes)})
        for box in boxes
    ]
    state = {"properties": properties, "size": _size(shape), "chunks": chunks}
    return Made(Name(_CHECKPOINT, "TensorStorageMetadata"), state)
