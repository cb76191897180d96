"""The checksums that stand in items, and in zips beside a model: compared before damage gets a new checksum."""

from __future__ import annotations

from collections.abc import Collection

from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.item_sums import item_fault
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import SOME_NAMES, SumsCompared
from edl_ckpt.core.reading.zips import ZIP, check_zip, zip_fault
from edl_ckpt.core.storage.interface import RangeReader


def confirm_items(checkpoint: Checkpoint, names: Collection[str], trust: Trust) -> SumsCompared:
    """Compare the items of these names with the checksums in them, and count those that have one.

    Raises as `confirm_sums`: CorruptError with the item, its shard, file and offset, unless `trust` is forced.
    """
    compared, left = 0, list[str]()
    for shard in checkpoint.shards:
        crcs = dict(shard.text_crcs)
        for item in shard.items:
            if item.name not in names:
                left.append(item.name)
                continue
            fault = item_fault(checkpoint, shard, item, crcs.get(item.name))
            compared += fault is not None
            if fault:
                again = item_fault(checkpoint, shard, item, crcs.get(item.name))
                subject = f"{item.name!r} in shard {shard.file.ps_id}"
                _doubt(subject, fault, again, shard.path(item.values), item.offset, trust)
    return SumsCompared(compared, len(left), tuple(dict.fromkeys(left))[:SOME_NAMES])


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
