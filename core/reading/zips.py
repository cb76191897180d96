"""The CRC-32 of the members of a zip that lies somewhere in a file: an item of torch, or what `torch.save` wrote."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Final, NamedTuple

from edl_ckpt.core.storage.interface import RangeReader

ZIP: Final = b"PK\3\4"
"""What a zip begins with."""
_STEP_BYTES: Final = 1 << 20
_MOST_TIMES: Final = 1000
"""A member that unpacks to more times its size is no file of a training job: it is not read."""


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


class ZipCheck(NamedTuple):
    """How many members of a zip have the CRC-32 that its directory says, and what is wrong with one; '' for nothing."""

    members: int
    fault: str


def zip_fault(reader: RangeReader, start: int, end: int) -> str:
    """Return what is wrong with a zip in bytes [start, end) of a file; '' for nothing."""
    return check_zip(reader, start, end).fault


def check_zip(reader: RangeReader, start: int, end: int) -> ZipCheck:
    """Read each member of a zip in bytes [start, end) of a file, in pieces, up to the first that is damaged."""
    import zipfile  # it takes 5 ms to import, and few versions have a zip

    members = 0
    try:
        is_small = end - start <= _STEP_BYTES  # then one read is enough
        data = io.BytesIO(reader.read(start, end - start)) if is_small else None
        with zipfile.ZipFile(data or io.BufferedReader(_Part(reader, start, end), _STEP_BYTES)) as archive:
            for member in archive.infolist():
                if member.file_size > _MOST_TIMES * max(member.compress_size, 1) or member.flag_bits & 1:
                    continue
                with archive.open(member) as opened:
                    while opened.read(_STEP_BYTES):
                        pass
                members += 1
    except NotImplementedError:
        return ZipCheck(members, "")  # packed in a way that is not known here
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, struct.error) as error:
        return ZipCheck(members, f"it is no whole zip: {error}")
    return ZipCheck(members, "")
