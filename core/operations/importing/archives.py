"""Arrays in archives: members of zip archives, and the .npy files in them or in a directory.

Members that are stored as they are are extents of the archive, which several processes read. The checksum of a member
is compared while it is unpacked. Where nothing is unpacked, the members are read once more for that, by the same
processes.
"""

from __future__ import annotations

import copy
import errno
import io
import mmap
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import packed
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.kernel.checksums import combined_crc32, crc32
from edl_ckpt.core.operations.importing.source import FileExtent
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.reading.picklable import FileValue
from edl_ckpt.core.reading.stored_sums import SumsCompared
from edl_ckpt.core.sources.elasticdl.target import why_impossible
from edl_ckpt.core.sources.safetensors.indexing import are_naturals
from edl_ckpt.core.storage.interface import RangeReader

_HEAD_BYTES: Final = 30
"""Of a member, before its name and its extra field."""
_ENCRYPTED: Final = 1
_MOST_RATIO: Final = 1032
"""What deflate makes of a byte at most: of 258 bytes a copy takes two bits."""
_NPY_HEAD_BYTES: Final = 1 << 16
_ELEMENTS_AT_ONCE: Final = 1 << 18
"""Of an array whose order changes."""


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


def as_stream(reader: RangeReader) -> io.BufferedReader:
    """Return an opened file as zipfile wants it; the caller, which has opened it, closes it."""
    return io.BufferedReader(RangeStream(reader, 0, reader.size_bytes), 1 << 16)


class RangeStream(io.RawIOBase):
    """Bytes [start, start + size) of an opened file as a stream."""

    def __init__(self, reader: RangeReader, start: int, size: int) -> None:
        super().__init__()
        self._reader, self._start, self._size, self._position = reader, start, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position; OSError for one before the beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"a position before the beginning: {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer, or as much of it as there are bytes."""
        count = max(min(len(buffer), self._size - self._position), 0)
        if count:
            self._reader.read_into(self._start + self._position, memoryview(buffer).cast("B")[:count])
            self._position += count
        return count


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


def npy_header(reader: RangeReader, name: str) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """Return (dtype, shape, offset of the elements, whether the first index changes fastest) of an .npy file.

    Raises UnsupportedError for Python objects.
    """
    head = io.BytesIO(reader.read(0, min(_NPY_HEAD_BYTES, reader.size_bytes)))
    try:
        version = np.lib.format.read_magic(head)
        readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = readers[version[0]](head)
    except Exception as error:  # noqa: BLE001 - numpy parses the header as Python, whose errors are many
        raise CorruptError(f"{name!r}: not an .npy file ({error})", path=reader.path, offset=0) from None
    if dtype.hasobject:
        raise UnsupportedError(f"{name!r}: an array of Python objects; nothing is unpickled", path=reader.path)
    if not are_naturals(list(shape)):
        raise CorruptError(f"{name!r}: not an .npy file (shape {shape!r:.80})", path=reader.path, offset=0)
    check_shape(name, shape, reader.path)
    return dtype, shape, head.tell(), fortran


def check_shape(name: str, shape: Sequence[int], path: str) -> None:
    """Raise UnsupportedError for a shape that no array in a checkpoint can have."""
    fault = why_impossible(shape)
    if fault:
        raise UnsupportedError(f"{name!r}: {fault}", path=path)


def in_order(
    reader: RangeReader, kind: np.dtype[Any], shape: tuple[int, ...], offset: int, order: Literal["C", "F"]
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of an array in C order, little-endian.

    They come from a mapped copy: if another process truncated a mapped file of its own, the kernel would kill this one.
    """
    if 0 in shape:
        return
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(RangeStream(reader, offset, reader.size_bytes - offset), file, VALUE_BATCH_BYTES)
        file.flush()
        iterate: Any = np.nditer
        options = {"order": "C", "casting": "equiv", "buffersize": _ELEMENTS_AT_ONCE}
        flags, form = ["external_loop", "buffered"], kind.newbyteorder("<")
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            values = np.ndarray(shape, kind, mapped, order=order)
            for block in iterate(values, flags, ["readonly", "contig"], [form], **options):
                yield block.view(np.uint8)
                mapped.madvise(mmap.MADV_DONTNEED)  # else the file would count as memory of this process
