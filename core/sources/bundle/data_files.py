"""The open data files of a bundle, and tensors that lie whole in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.kernel.checksums import unmasked
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES, DType, item_type
from edl_ckpt.core.model.tables import (
    DenseEntry,
    Extent,
    StoredSum,
)
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.sources.bundle.index import StoredTensor
from edl_ckpt.core.sources.steps.content import ShardContent

_BYTES: Final = (
    *(dtype for dtype in TENSOR_DTYPES.values() if dtype.tf_enum),
    DType("qint8", 1, 11),
    DType("quint8", 1, 12),
    DType("qint32", 4, 13),
    DType("qint16", 2, 15),
    DType("quint16", 2, 16),
)
TENSORS: Final = {dtype.tf_enum: dtype for dtype in _BYTES}
"""The element types whose tensors are elements of whole bytes, by tensorflow.DataType."""
WRITTEN_DTYPES: Final = frozenset(one.name for number, one in TENSORS.items() if number not in range(26, 29))
"""Those that go into new bundles: TensorFlow 2.16 lists no bundle with a number from 26 to 28, which came later."""
_KINDS: Final = {7: "string", 20: "resource", 21: "variant", 29: "int4", 30: "uint4"}
"""What tensorflow.DataType calls the other ones."""
_SUMMED_APART: Final = {7, 21}
"""Texts and variants: `verify --deep` makes their checksum from their parts."""
_ENCODED: Final = {7, 20, 21}
"""Those whose checksum is of other bytes than those of the file."""


class DataFile(NamedTuple):
    """An open data file: its shard, and its number there."""

    shard: ShardContent
    file: ShardFile
    number: int

    def extent(self, tensor: StoredTensor) -> Extent:
        """Return the bytes of a tensor in it."""
        return Extent(tensor.start, tensor.end, file=self.number)

    def add_sum(self, name: str, tensor: StoredTensor, extent: Extent) -> None:
        """Add the checksum of a tensor, if it is one of the bytes in the file."""
        if tensor.dtype in _SUMMED_APART:
            self.shard.text_crcs.append((name, tensor.crc32c))
        if tensor.dtype not in _ENCODED:
            self.shard.sums.append(StoredSum(name, "crc32c", unmasked(tensor.crc32c), (extent,)))


DataFiles = Mapping[int, DataFile]
"""Open data files by their numbers."""


def dtype_of(name: str, tensor: StoredTensor, file: DataFile) -> DType:
    """Return the dtype of a tensor, or the type of an item; CorruptError when its bytes are not its shape's."""
    dtype = TENSORS.get(tensor.dtype) or item_type(_KINDS.get(tensor.dtype, f"dtype {tensor.dtype}"))
    if not dtype.is_item and prod(tensor.shape) * dtype.itemsize != tensor.end - tensor.start:
        message = f"{name!r} has {tensor.end - tensor.start} bytes; expected {dtype.name} {list(tensor.shape)}"
        raise CorruptError(message, path=file.file.path, offset=tensor.start)
    return dtype


def add_tensor(name: str, tensor: StoredTensor, file: DataFile) -> None:
    """Add a tensor that lies in one extent, with its checksum."""
    extent, dtype = file.extent(tensor), dtype_of(name, tensor, file)
    file.shard.variables.append(DenseEntry(name, dtype, tensor.shape, extent, tensor.start))
    file.add_sum(name, tensor, extent)
