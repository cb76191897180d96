"""The checksums that stand in items.

An item of torch is a zip, with a CRC-32 of each member; texts and variants of TensorFlow have a CRC-32C in the index.
"""

from __future__ import annotations

import math
from typing import Final

from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, masked
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.zips import ZIP, zip_fault

_MOST_TEXT_BYTES: Final = 64 << 20
"""Texts that are larger are not compared."""
_VALUE: Final = "value"
_OF_ZIPS: Final = "dcp"
"""The system whose values are zips."""
_VARIANT: Final = "variant"
_SUM_BYTES: Final = 4


def item_fault(checkpoint: Checkpoint, shard: ShardIndex, item: DenseEntry, crc: int | None) -> str | None:
    """Return what is wrong with an item, '' for nothing, None where nothing tells.

    Texts and variants have a `crc` in the index.
    """
    if crc is not None and item.size_bytes <= _MOST_TEXT_BYTES:
        reader = checkpoint.reader(shard, item.values)
        data = reader.read(item.values.start, item.size_bytes)
        return _variant_fault(data, item, crc) if item.dtype.name == _VARIANT else _text_fault(data, item, crc)
    if _is_summed(shard, item.values):
        return ""  # it is compared with the rest of its file's pickle
    faults: list[str] = []
    for extent in _places(shard, item.values):
        reader = checkpoint.files[shard.sources[extent.file].path]
        if reader.read(extent.start, min(4, extent.size_bytes)) != ZIP:
            is_zip = item.dtype.name == _VALUE and checkpoint.version.layout.system == _OF_ZIPS
            return "its bytes are no zip" if is_zip else None
        faults.append(zip_fault(reader, extent.start, extent.end))
    return next(filter(None, faults), "")


def _is_summed(shard: ShardIndex, values: Extent) -> bool:
    """Say whether a checksum of the file is of the bytes of an item, and of others with them."""
    places = (extent for stored in shard.sums for extent in stored.extents)
    return any(one.file == values.file and one.start <= values.start and values.end <= one.end for one in places)


def _places(shard: ShardIndex, values: Extent) -> list[Extent]:
    """Return where the bytes of an item are: those of several zips are gathered."""
    gathered = values.file - len(shard.file.files)
    return [values] if gathered < 0 else [box.extent for box in shard.gathered[gathered].boxes]


def _text_fault(data: bytes, item: DenseEntry, crc: int) -> str:
    """Return what is wrong with texts: their lengths as varints, a checksum of these, and the texts."""
    count = math.prod(item.shape)
    at, summed = 0, 0
    try:
        for _ in range(min(count, len(data) + 1)):
            length, at = varint_at(data, at, len(data))
            summed = crc32c(length.to_bytes(4 if length < 1 << 32 else 8, "little"), summed)
    except MalformedError as error:
        return f"its lengths are damaged: {error}"
    if not count and not data:
        return ""
    check = masked(summed).to_bytes(4, "little")
    if data[at : at + 4] != check or masked(crc32c(data[at + 4 :], crc32c(check, summed))) != crc:
        return "the texts have another crc32c than the index says"
    return ""


def _variant_fault(data: bytes, item: DenseEntry, crc: int) -> str:
    """Return what is wrong with variants: each is a length as a varint, a message, and a checksum of all before it.

    The lengths count as numbers of 8 bytes. Source: `WriteVariantTensor` in
    tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
    """
    at = 0
    summed = 0
    message = "the variants have another crc32c than the index says"
    try:
        for _ in range(min(math.prod(item.shape), len(data) + 1)):
            length, at = varint_at(data, at, len(data))
            summed = crc32c(data[at : at + length], crc32c(length.to_bytes(8, "little"), summed))
            at += length + _SUM_BYTES
            check = masked(summed).to_bytes(_SUM_BYTES, "little")
            if data[at - _SUM_BYTES : at] != check:
                return message
            summed = crc32c(check, summed)
    except MalformedError as error:
        return f"its lengths are damaged: {error}"
    return "" if at == len(data) and masked(summed) == crc else message
