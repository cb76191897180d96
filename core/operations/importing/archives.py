"""Members of a zip archive that are stored as they are: extents of the archive, which several processes read.

zipfile compares the checksum of a member while it unpacks it. Where nothing is unpacked, the members are read once more
for that, by the same processes.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.elsewhere import FileValue
from edl_ckpt.core.errors import CorruptError, UnsupportedError
from edl_ckpt.core.operations.export.places import combined_crc32
from edl_ckpt.core.packing import packed
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.storage.interface import PlainReader, RangeReader

_HEAD_BYTES: Final = 30
"""Of a member, before its name and its extra field."""
_ENCRYPTED: Final = 1


class StoredMember(PlainReader):
    """The bytes of a member, which begin at `begin` of the archive `base`."""

    def __init__(self, base: RangeReader, info: zipfile.ZipInfo) -> None:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise UnsupportedError(
                f"{info.filename!r} is {'encrypted' if info.flag_bits & _ENCRYPTED else 'compressed'}; the workers of a"
                " cluster import an .npz whose members are stored",
                path=base.path,
                hint="numpy.savez stores them; without --cluster, this machine unpacks them",
            )
        if info.header_offset + _HEAD_BYTES > base.size_bytes:
            raise zipfile.BadZipFile(f"the entry of {info.filename!r} is damaged")
        head = base.read(info.header_offset, _HEAD_BYTES)
        name, extra = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
        self.base, self.begin = base, info.header_offset + _HEAD_BYTES + name + extra
        is_within = self.begin + info.file_size <= base.size_bytes
        if head[:4] != b"PK\3\4" or info.file_size != info.compress_size or not is_within:
            raise zipfile.BadZipFile(f"the entry of {info.filename!r} is damaged")
        self.name, self.crc = info.filename, info.CRC
        self.path, self.size_bytes, self.bytes_read = base.path, info.file_size, 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        return self.base.read(self.begin + offset, size)


def as_stream(reader: RangeReader) -> io.BufferedReader:
    """Return an opened file as zipfile wants it; whoever has opened it closes it."""
    return io.BufferedReader(_Stream(reader), 1 << 16)


class _Stream(io.RawIOBase):
    def __init__(self, reader: RangeReader) -> None:
        self._reader, self._at = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.size_bytes}[whence]
        if start + offset < 0:
            raise OSError(22, "a seek to before the begin of the file")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = max(min(len(buffer), self._reader.size_bytes - self._at), 0)
        buffer[:size] = self._reader.read(self._at, size) if size else b""
        self._at += size
        return size


class _Piece(NamedTuple):
    """Bytes of a member, by its number."""

    member: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ChecksumWork:
    """The checksums of pieces of an archive; a task is some of them."""

    archive: FileValue

    def open(self) -> RangeReader:
        """Open the archive in another process."""
        return self.archive.open()

    def do(self, opened: RangeReader, task: tuple[_Piece, ...], advance: Advance) -> list[int]:
        """Return the CRC-32 of each piece."""
        found = []
        for piece in task:
            crc = 0
            for at in range(piece.offset, piece.offset + piece.size, VALUE_BATCH_BYTES):
                data = opened.read(at, min(VALUE_BATCH_BYTES, piece.offset + piece.size - at))
                crc = zlib.crc32(data, crc)
                advance(len(data))
            found.append(crc)
        return found


def check_members(members: Sequence[StoredMember], archive: FileValue, executor: Executor, reporter: Reporter) -> None:
    """Let other processes read an archive; CorruptError for a member whose bytes have another checksum."""
    total = sum(member.size_bytes for member in members)
    task_bytes = executor.task_bytes(total)
    reporter.start("comparing checksums", total)

    def pieces() -> Iterator[_Piece]:
        for number, member in enumerate(members):
            for start in range(0, member.size_bytes, task_bytes):
                yield _Piece(number, member.begin + start, min(task_bytes, member.size_bytes - start))

    tasks = list(packed(((piece, piece.size, "", 8) for piece in pieces()), task_bytes))
    sums = [0] * len(members)
    with closing(executor.run(ChecksumWork(archive), members[0].base, tasks, reporter.advance)) as results:
        for task, found in zip(tasks, results, strict=True):
            for piece, crc in zip(task, found, strict=True):
                sums[piece.member] = combined_crc32(sums[piece.member], crc, piece.size)
    for member, crc in zip(members, sums, strict=True):
        if crc != member.crc:
            raise CorruptError(f"not a readable .npz: Bad CRC-32 for file {member.name!r}", path=member.path)
