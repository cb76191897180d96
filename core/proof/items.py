"""The checksums that stand in items, and in zips beside a model: compared before damage gets a new checksum.

An item of torch is a zip, and so is what `torch.save` wrote beside a model, such as `optimizer.pt`: a zip has a CRC-32
of each member. Texts of TensorFlow have a CRC-32C. All of them are read in pieces.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, masked
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import SumsCompared
from edl_ckpt.core.reading.zips import ZIP, check_zip, zip_fault
from edl_ckpt.core.storage.interface import RangeReader

_MOST_TEXT_BYTES: Final = 64 << 20
"""Texts that are larger are not compared."""
_VALUE: Final = "value"


def confirm_items(checkpoint: Checkpoint, names: Collection[str], trust: Trust) -> SumsCompared:
    """Compare the items of these names with the checksums in them, and count those that have one.

    Raises as `confirm_sums`: CorruptError with the item, its shard, file and offset, unless `trust` is forced.
    """
    compared = left = 0
    for shard in checkpoint.shards:
        crcs = dict(shard.text_crcs)
        for item in shard.items:
            if item.name not in names:
                left += 1
                continue
            fault = item_fault(checkpoint, shard, item, crcs.get(item.name))
            compared += fault is not None
            if fault:
                again = item_fault(checkpoint, shard, item, crcs.get(item.name))
                subject = f"{item.name!r} in shard {shard.file.ps_id}"
                _doubt(subject, fault, again, shard.path(item.values), item.offset, trust)
    return SumsCompared(compared, left)


def confirm_zip(reader: RangeReader, name: str, trust: Trust) -> SumsCompared:
    """Compare the members of a file that goes along with their checksums, if it is a zip; errors as `confirm_items`."""
    if reader.read(0, min(len(ZIP), reader.size_bytes)) != ZIP:
        return SumsCompared()
    found = check_zip(reader, 0, reader.size_bytes)
    if found.fault:
        _doubt(repr(name), found.fault, zip_fault(reader, 0, reader.size_bytes), reader.path, 0, trust)
    return SumsCompared(found.members)


def _doubt(subject: str, fault: str, again: str | None, path: str, offset: int, trust: Trust) -> None:
    """Raise what a fault is: UnavailableError where a second look does not find it, else what `Trust.doubt` raises."""
    if not again:
        message = f"{subject} was damaged in one read, and is right in the next: nothing was published"
        raise UnavailableError(message, path=path, offset=offset, hint="try again")
    trust.doubt(f"{subject}: {fault}", "checksum-mismatch", path=path, offset=offset)


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
