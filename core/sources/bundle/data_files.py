"""Open data files of a bundle, and the tensors that lie in them in one extent."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.kernel.checksums import unmasked
from edl_ckpt.core.model.dtypes import TF_DTYPES, DType
from edl_ckpt.core.model.tables import Blob, DenseEntry, Extent, StoredSum
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.sources.bundle.index import StoredTensor
from edl_ckpt.core.sources.steps.content import ShardContent

_KINDS: Final = {
    7: "string",
    8: "complex64",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    15: "qint16",
    16: "quint16",
    18: "complex128",
    20: "resource",
    21: "variant",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    29: "int4",
    30: "uint4",
}
"""What tensorflow.DataType calls element types that are none of ours."""
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
        if tensor.dtype not in _ENCODED:
            self.shard.sums.append(StoredSum(name, "crc32c", unmasked(tensor.crc32c), (extent,)))


DataFiles = Mapping[int, DataFile]
"""Open data files by their numbers."""


def dtype_of(name: str, tensor: StoredTensor, file: DataFile) -> DType | None:
    """Return the dtype of a tensor, None for one that is not ours; CorruptError when its bytes are not its shape's."""
    dtype = TF_DTYPES.get(tensor.dtype)
    if dtype is not None and prod(tensor.shape) * dtype.itemsize != tensor.end - tensor.start:
        message = f"{name!r} has {tensor.end - tensor.start} bytes; expected {dtype.name} {list(tensor.shape)}"
        raise CorruptError(message, path=file.file.path, offset=tensor.start)
    return dtype


def add_tensor(name: str, tensor: StoredTensor, file: DataFile) -> None:
    """Add a tensor that lies in one extent, with its checksum."""
    extent, dtype = file.extent(tensor), dtype_of(name, tensor, file)
    if dtype is not None:
        file.shard.variables.append(DenseEntry(name, dtype, tensor.shape, extent, tensor.start))
    else:
        file.shard.blobs.append(Blob(name, _KINDS.get(tensor.dtype, f"dtype {tensor.dtype}"), extent))
    file.add_sum(name, tensor, extent)
