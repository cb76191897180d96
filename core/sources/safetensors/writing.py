"""Files of safetensors laid out: their headers, and the index of a set as huggingface's loaders read it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from edl_ckpt.core.base.job import together
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.sources.safetensors.indexing import TAGS
from edl_ckpt.core.sources.safetensors.sets import ENDING, INDEX
from edl_ckpt.core.sources.steps.file_layout import Array

_ALIGN: Final = 8


class Named(Protocol):
    """A tensor to be written."""

    @property
    def dtype(self) -> DType:
        """Return its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape."""


def header(tensors: Mapping[str, Named], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the first tensor; loaders of PyTorch's weights want metadata with a `format`."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + math.prod(tensor.shape) * tensor.dtype.itemsize
        document[name] = {"dtype": TAGS[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": [begin, end]}
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


def lay_out(stem: str, arrays: Sequence[Array], most_bytes: int | None, metadata: Mapping[str, str]) -> SetLayout:
    """Lay out arrays in `STEM.safetensors`, or in a set of files of at most so many bytes; an array is never split."""
    size = {array.key: math.prod(array.shape) * array.dtype.itemsize for array in arrays}
    groups = list(together(((array, size[array.key]) for array in arrays), most_bytes or sum(size.values()) + 1)) or [
        []
    ]
    folder, slash, name = stem.rpartition("/")
    one = [f"{name}{ENDING}"]
    names = one if len(groups) == 1 else [file_of_several(n, len(groups), name) for n in range(len(groups))]
    files: dict[str, int] = {}
    places: dict[str, tuple[str, int]] = {}
    heads: dict[str, bytes] = {}
    for file, group in zip((f"{folder}{slash}{name}" for name in names), groups, strict=True):
        heads[file] = header({array.key: array for array in group}, metadata)
        begin = len(heads[file])
        for array in group:
            places[array.key] = file, begin
            begin += size[array.key]
        files[file] = begin
    if len(groups) > 1:
        weights = {key: file.rpartition("/")[2] for key, (file, _) in places.items()}
        index = json.dumps(index_of(weights, sum(size.values()), {}), indent=1).encode()
        heads[f"{stem}{INDEX}"], files[f"{stem}{INDEX}"] = index, len(index)
    return SetLayout(files, places, heads)
