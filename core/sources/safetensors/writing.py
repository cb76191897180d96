"""Files of safetensors laid out: their headers, and the index of a set as huggingface's loaders read it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.sources.safetensors.indexing import tag_and_shape
from edl_ckpt.core.sources.safetensors.sets import ENDING, INDEX
from edl_ckpt.core.sources.steps.file_layout import Array

_ALIGN: Final = 8
_PARAMETERS: Final = "total_parameters"
METADATA: Final = "__metadata__"
"""The key of a header that has texts in place of a tensor."""


class Named(Protocol):
    """A tensor to be written."""

    @property
    def dtype(self) -> DType:
        """Return its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape; of an item the number of its bytes."""

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        """Return the shape that an item says it has."""


def header(tensors: Mapping[str, Named], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the first tensor; loaders of PyTorch's weights want metadata with a `format`.

    Raises UnsupportedError for a tensor with the name that the header gives its own texts.
    """
    if METADATA in tensors:
        message = f"safetensors cannot have a tensor named {METADATA!r}: its header uses that name"
        raise UnsupportedError(message, hint=f"try: --rename {METADATA}=NEW")
    document: dict[str, Any] = {METADATA: {"format": "pt", **metadata}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + math.prod(tensor.shape) * tensor.dtype.itemsize
        item_shape = tensor.item_shape
        tag, shape = tag_and_shape(tensor.dtype, tensor.shape if item_shape is None else item_shape)
        document[name] = {"dtype": tag, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def file_of_several(number: int, count: int, stem: str = "model") -> str:
    """Return the name of a file of several, as huggingface's loaders know it.

    >>> file_of_several(0, 12)
    'model-00001-of-00012.safetensors'
    """
    return f"{stem}-{number + 1:05}-of-{count:05}{ENDING}"


def index_of(weights: Mapping[str, str], total_bytes: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the index of a set: the file of each tensor."""
    return {"metadata": {"total_size": total_bytes, **metadata}, "weight_map": dict(weights)}


@dataclass(frozen=True, slots=True)
class SetLayout:
    """Where everything goes in a file, or in a set of files with an index."""

    checksum: ClassVar = ""
    files: Mapping[str, int]
    _places: Mapping[str, tuple[str, int]]
    _heads: Mapping[str, bytes]

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of an array, which is in one piece, and the offset of its values."""
        assert not slab  # noqa: S101 - there is one
        return self._places[key]

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield the headers and the index."""
        del sums
        for file, data in self._heads.items():
            yield file, 0, data


def lay_out(
    stem: str,
    arrays: Sequence[Array],
    most_bytes: int | None,
    metadata: Mapping[str, str],
    of_index: Mapping[str, Any] | None = None,
) -> SetLayout:
    """Lay out arrays in `STEM.safetensors`, or in a set of files of at most so many bytes; an array is never split.

    `of_index` is the metadata of the index, in which `total_parameters` is counted again.
    """
    sized = [(array, math.prod(array.shape) * array.dtype.itemsize) for array in arrays]
    groups = list(together(sized, most_bytes or sum(size for _, size in sized) + 1)) or [[]]
    folder, slash, name = stem.rpartition("/")
    one = [f"{name}{ENDING}"]
    names = one if len(groups) == 1 else [file_of_several(n, len(groups), name) for n in range(len(groups))]
    files = (f"{folder}{slash}{name}" for name in names)
    tensors = {file: {a.key: a for a in group} for file, group in zip(files, groups, strict=True)}
    noted = dict(of_index or {})
    if _PARAMETERS in noted:
        noted[_PARAMETERS] = sum(math.prod(array.shape) for array in arrays if array.item_shape is None)
    return lay_out_files(tensors, metadata, f"{stem}{INDEX}" if len(groups) > 1 else "", noted)


def lay_out_files(
    files: Mapping[str, Mapping[str, Named]],
    metadata: Mapping[str, str],
    index: str = "",
    of_index: Mapping[str, Any] | None = None,
) -> SetLayout:
    """Lay out the tensors of some files; a set has an `index` of this name, with its own metadata."""
    sizes: dict[str, int] = {}
    places: dict[str, tuple[str, int]] = {}
    heads: dict[str, bytes] = {}
    for file, tensors in files.items():
        heads[file] = header(tensors, metadata)
        begin = len(heads[file])
        for name, tensor in tensors.items():
            places[name] = file, begin
            begin += math.prod(tensor.shape) * tensor.dtype.itemsize
        sizes[file] = begin
    if index:
        weights = {name: file.rpartition("/")[2] for name, (file, _) in places.items()}
        total_bytes = sum(sizes.values()) - sum(map(len, heads.values()))
        heads[index] = json.dumps(index_of(weights, total_bytes, of_index or {}), indent=1).encode()
        sizes[index] = len(heads[index])
    return SetLayout(sizes, places, heads)
