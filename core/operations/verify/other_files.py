"""Items and files that no table and no variable is in: what checksums of their own they have, and what nothing tells.

An item of torch is a zip, and so is what `torch.save` wrote beside a model, such as `optimizer.pt`: a zip has a CRC-32
of each member. Texts of TensorFlow have a CRC-32C. All of them are read in pieces.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, masked
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex
from edl_ckpt.core.model.versions import Seal
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.used_files import files_read
from edl_ckpt.core.storage.interface import RangeReader

_ZIP: Final = b"PK\3\4"
_STEP_BYTES: Final = 1 << 20
_MOST_TIMES: Final = 1000
"""A member that unpacks to more times its size is no file of a training job: it is not read."""
_MOST_TEXT_BYTES: Final = 64 << 20
"""Texts that are larger are not compared."""
_STATE_FILE: Final = "checkpoint"
"""Of TensorFlow: read for the listing."""
_VALUE: Final = "value"
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


class _Part(io.RawIOBase):
    """Bytes [start, end) of a file as a file."""

    def __init__(self, reader: RangeReader, start: int, end: int) -> None:
        super().__init__()
        self._reader, self._start, self._size, self._at = reader, start, end - start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("a place before the begin")  # as a file does
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        count = max(min(len(buffer), self._size - self._at), 0)
        if count:
            buffer[:count] = self._reader.read(self._start + self._at, count)
        self._at += count
        return count


def zip_fault(reader: RangeReader, start: int, end: int) -> str:
    """Return what is wrong with a zip in bytes [start, end) of a file; '' for nothing.

    Each member is read, in pieces, and has its CRC-32.
    """
    try:
        with zipfile.ZipFile(io.BufferedReader(_Part(reader, start, end), _STEP_BYTES)) as archive:
            for member in archive.infolist():
                if member.file_size > _MOST_TIMES * max(member.compress_size, 1) or member.flag_bits & 1:
                    continue
                with archive.open(member) as opened:
                    while opened.read(_STEP_BYTES):
                        pass
    except NotImplementedError:
        return ""  # packed in a way that is not known here
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, struct.error) as error:
        return f"it is no whole zip: {error}"
    return ""


def check_others(checkpoint: Checkpoint, seal: Seal | None, report: Report) -> Others:
    """Compare items, and zips among files that no format reads, with the checksums in them; add findings."""
    compared = 0
    uncompared: list[str] = []
    for shard in checkpoint.shards:
        crcs = dict(shard.text_crcs)
        for item in shard.items:
            fault = _item_fault(checkpoint, shard, item, crcs.get(item.name))
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
    hint = "the bytes changed after the file was written; take it from another copy"
    file = shard.file if item.values.file < len(shard.file.files) else None
    path = shard.path(item.values)
    message = f"{item.name!r}: {fault}"
    report.add("checksum-mismatch", message, shard=file, path=path, subject=item.name, offset=item.offset, hint=hint)


def _item_fault(checkpoint: Checkpoint, shard: ShardIndex, item: DenseEntry, crc: int | None) -> str | None:
    """Return what is wrong with an item, '' for nothing; None where nothing tells."""
    if crc is not None and item.size_bytes <= _MOST_TEXT_BYTES:
        reader = checkpoint.reader(shard, item.values)
        return _text_fault(reader.read(item.values.start, item.size_bytes), item, crc)
    faults: list[str] = []
    for extent in _places(shard, item.values):
        reader = checkpoint.files[shard.sources[extent.file].path]
        if reader.read(extent.start, min(4, extent.size_bytes)) != _ZIP:
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


def _other_files(checkpoint: Checkpoint) -> Iterator[tuple[str, RangeReader]]:
    """Yield the files of a version that no value is in, and no index is."""
    version = checkpoint.version
    if version.is_elasticdl:
        return
    from edl_ckpt.core.converting.destinations import DESTINATIONS  # 30 ms: neither --quick nor ElasticDL needs it

    destination = DESTINATIONS.get(version.layout.system)
    if destination is None:
        return
    read = files_read(checkpoint)
    for path, reader in checkpoint.files.items():
        name = version.name_of(path)
        if name not in read and name != _STATE_FILE and not destination.of_system.search(name):
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
    fault = zip_fault(reader, 0, reader.size_bytes) if begin == _ZIP else ""
    if fault:
        hint = "the file was cut or changed after it was written; take it from another copy"
        report.add("checksum-mismatch", f"{name}: {fault}", path=reader.path, subject=name, hint=hint)
    return is_sealed or begin == _ZIP
