"""Items, and files that no table and no variable is in: findings of their own checksums, and what nothing tells of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.tables import DenseEntry, ShardIndex
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.reading.item_sums import item_fault
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.used_files import files_read
from edl_ckpt.core.reading.zips import ZIP, zip_fault
from edl_ckpt.core.storage.interface import RangeReader

_STATE_FILE: Final = "checkpoint"
"""Of TensorFlow: read for the listing."""
_OF_TORCH: Final = (".pt", ".pth")


class Others(NamedTuple):
    """What was compared with checksums, and the names of what was not."""

    compared: int
    """Items whose bytes have the checksums that stand in them."""
    uncompared: tuple[str, ...]
    """Items without a checksum that is known, with their kinds."""
    unread: tuple[str, ...]
    """Files that no seal and no checksum tells anything of."""


NOTHING_ELSE: Final = Others(0, (), ())


def check_others(checkpoint: Checkpoint, seal: Seal | None, report: Report) -> Others:
    """Compare items, and zips among files that no format reads, with the checksums in them; add findings."""
    compared = 0
    uncompared: list[str] = []
    for shard in checkpoint.shards:
        crcs = dict(shard.text_crcs)
        for item in shard.items:
            fault = item_fault(checkpoint, shard, item, crcs.get(item.name))
            if fault is None:
                uncompared.append(f"{item.name} ({item.dtype.name})")
                continue
            compared += 1
            if fault:
                _add(report, shard, item, fault)
    sealed: Mapping[str, int] = seal.sizes if seal is not None else {}
    unread = tuple(name for name, reader in _other_files(checkpoint) if not _is_sound(name, reader, report, sealed))
    return Others(compared, () if seal is not None else tuple(sorted(uncompared)), unread)


def _add(report: Report, shard: ShardIndex, item: DenseEntry, fault: str) -> None:
    hint = "these bytes are damaged: restore the file from another copy"
    file = shard.file if item.values.file < len(shard.file.files) else None
    path = shard.path(item.values)
    message = f"{item.name!r}: {fault}"
    report.add("checksum-mismatch", message, shard=file, path=path, subject=item.name, offset=item.offset, hint=hint)


def _other_files(checkpoint: Checkpoint) -> Iterator[tuple[str, RangeReader]]:
    """Yield the files of a version that no value is in, and no index is."""
    version = checkpoint.version
    if version.has_only_shards:
        return
    # 30 ms, which neither --quick nor ElasticDL needs.
    from edl_ckpt.core.converting.destinations.table import DESTINATIONS

    destination = DESTINATIONS.get(version.layout.system)
    read = files_read(checkpoint)
    for path, reader in checkpoint.files.items():
        name = version.name_of(path)
        if destination is None or not destination.known_by_name:  # the source says what it has not claimed
            is_other = name in version.unclaimed
        else:
            is_other = name not in read and not destination.of_system.search(name)
        if is_other and name != _STATE_FILE:
            yield name, reader


def _is_sound(name: str, reader: RangeReader, report: Report, sealed: Mapping[str, int]) -> bool:
    """Say whether something tells that a file is what was written; a finding where it tells that it is not."""
    is_sealed = name in sealed
    try:
        begin = reader.read(0, min(4, reader.size_bytes))
    except EdlCkptError:
        return is_sealed
    if not begin and name.endswith(_OF_TORCH):
        report.add("empty-file", f"{name} is empty", path=reader.path, subject=name)
        return True
    fault = zip_fault(reader, 0, reader.size_bytes) if begin == ZIP else ""
    if fault:
        hint = "the file was cut or changed after it was written: restore it from another copy"
        report.add("checksum-mismatch", f"{name}: {fault}", path=reader.path, subject=name, hint=hint)
    return is_sealed or begin == ZIP
