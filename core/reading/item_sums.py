"""The checksums that stand in items: an item of torch is a zip, with a CRC-32 of each member; texts have a CRC-32C."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, masked
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.zips import ZIP, zip_fault

_MOST_TEXT_BYTES: Final = 64 << 20
"""Texts that are larger are not compared."""
_VALUE: Final = "value"


def item_fault(checkpoint: Checkpoint, shard: ShardIndex, item: DenseEntry, crc: int | None) -> str | None:
    """Return what is wrong with an item, '' for nothing, None where nothing tells; a text has a `crc` in its index."""
    if crc is not None and item.size_bytes <= _MOST_TEXT_BYTES:
        reader = checkpoint.reader(shard, item.values)
        return _text_fault(reader.read(item.values.start, item.size_bytes), item, crc)
    faults: list[str] = []
    for extent in _places(shard, item.values):
        reader = checkpoint.files[shard.sources[extent.file].path]
        if reader.read(extent.start, min(4, extent.size_bytes)) != ZIP:
            return "its bytes are no zip" if item.dtype.name == _VALUE else None
        faults.append(zip_fault(reader, extent.start, extent.end))
    return next(filter(None, faults), "")


def _places(shard: ShardIndex, values: Extent) -> list[Extent]:
    """Return where the bytes of an item are: those of several zips are gathered."""
    gathered = values.file - len(shard.file.files)
    return [values] if gathered < 0 else [box.extent for box in shard.gathered[gathered].boxes]


def _text_fault(data: bytes, item: DenseEntry, crc: int) -> str:
    """Return what is wrong with texts: their lengths as varints, a checksum of these, and the texts."""
    count = 1
    for dim in item.shape:
        count *= dim
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
