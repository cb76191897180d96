"""Members of zip archives, such as the arrays of an .npz.

Members that are stored as they are are extents of the archive, which several processes read. The checksum of a member
is compared while it is unpacked. Where nothing is unpacked, the members are read once more for that, by the same
processes.
"""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import packed
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.kernel.checksums import combined_crc32, crc32
from edl_ckpt.core.operations.importing.source import FileExtent
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.reading.picklable import FileValue
from edl_ckpt.core.reading.stored_sums import SumsCompared
from edl_ckpt.core.storage.interface import RangeReader

_HEAD_BYTES: Final = 30
"""Of a member, before its name and its extra field."""
_ENCRYPTED: Final = 1
_MOST_RATIO: Final = 1032
"""What deflate makes of a byte at most: of 258 bytes a copy takes two bits."""


class StoredMember(FileExtent):
    """The bytes of a member of the archive `base`, which are stored as they are."""

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
        super().__init__(base, info.header_offset + _HEAD_BYTES + name + extra, info.file_size)
        is_within = self.begin + info.file_size <= base.size_bytes
        if head[:4] != b"PK\3\4" or info.file_size != info.compress_size or not is_within:
            raise zipfile.BadZipFile(f"the entry of {info.filename!r} is damaged")
        self.name, self.crc = info.filename, info.CRC


class _MemberPiece(NamedTuple):
    """Bytes of a member, by its number."""

    member: int
    offset: int
    size: int


def _checksums(archive: RangeReader, task: tuple[_MemberPiece, ...], advance: Advance) -> list[int]:
    """Return the CRC-32 of each piece of an archive."""
    found = []
    for piece in task:
        crc = 0
        for at in range(piece.offset, piece.offset + piece.size, VALUE_BATCH_BYTES):
            data = archive.read(at, min(VALUE_BATCH_BYTES, piece.offset + piece.size - at))
            crc = crc32(data, crc)
            advance(len(data))
        found.append(crc)
    return found


def check_members(members: Sequence[StoredMember], archive: FileValue, job: Job, trust: Trust) -> SumsCompared:
    """Let other processes read an archive; CorruptError for a member whose bytes have another checksum.

    Where `trust` is forced, that is a warning. Returns how many were compared.
    """
    total = sum(member.size_bytes for member in members)
    task_bytes = job.executor.task_bytes(total)
    job.reporter.start("comparing checksums", total)

    def pieces() -> Iterator[_MemberPiece]:
        for number, member in enumerate(members):
            for start in range(0, member.size_bytes, task_bytes):
                yield _MemberPiece(number, member.begin + start, min(task_bytes, member.size_bytes - start))

    tasks = list(packed(((piece, piece.size, "", 8) for piece in pieces()), task_bytes))
    sums = [0] * len(members)
    with job.run(FunctionWork(archive, _checksums), members[0].base, tasks) as results:
        for task, found in zip(tasks, results, strict=True):
            for piece, crc in zip(task, found, strict=True):
                sums[piece.member] = combined_crc32(sums[piece.member], crc, piece.size)
    for member, crc in zip(members, sums, strict=True):
        if crc != member.crc:
            _doubt_member(member.name, crc, member.crc, member.path, trust)
    return SumsCompared(len(members))


def _doubt_member(name: str, found: int, noted: int, path: str, trust: Trust) -> None:
    message = f"{name.removesuffix('.npy')!r}: the values have the crc32 {found:08x}, and the file says {noted:08x}"
    trust.doubt(message, "checksum-mismatch", path=path)


def check_directory(archive: zipfile.ZipFile, size_bytes: int) -> None:
    """Raise BadZipFile for a directory by which an archive of so many bytes would unpack to more than it can hold.

    No two members have a name or a byte in common, and deflate makes at most 1,032 bytes of one: so the size of the
    file bounds what is unpacked. Raises UnsupportedError for other compressions, which numpy does not write.
    """
    end, names = 0, set[str]()
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.filename in names:
            raise zipfile.BadZipFile(f"its directory names {info.filename!r:.80} twice")
        if info.header_offset < end:
            raise zipfile.BadZipFile(f"{info.filename!r:.80} lies in another member")
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise UnsupportedError(f"{info.filename!r:.80} is compressed in a way that numpy does not write")
        names.add(info.filename)
        end = info.header_offset + _HEAD_BYTES + len(info.orig_filename) + info.compress_size
        if info.file_size > _MOST_RATIO * info.compress_size or end > size_bytes:
            raise zipfile.BadZipFile(f"{info.filename!r:.80} has more bytes than its entry can hold")


def unpacked(archive: zipfile.ZipFile, name: str, path: str, trust: Trust) -> Iterator[bytes]:
    """Yield the bytes of a member; at the end CorruptError for another checksum, unless `trust` is forced."""
    info, crc = copy.copy(archive.getinfo(name)), 0
    noted = info.CRC
    del info.CRC  # zipfile compares one that it knows, and then nobody can go on
    with archive.open(info) as member:
        while data := member.read(1 << 20):
            crc = crc32(data, crc)
            yield data
    if crc != noted:
        _doubt_member(name, crc, noted, path, trust)
