"""Archives of the zip format laid out: where the values of each member go is known before a value is written.

Members are stored, never compressed. A member has its bytes already, or its values are written later. Then their CRC-32
is put into the headers at last. Programs write the headers of a zip differently, and a `ZipDialect` says how:
`TorchZip` as `torch.save`, `NumpyZip` as `numpy.savez` does, byte for byte.

Source: APPNOTE.TXT 6.3.10 of PKWARE for the records; `inline_container.cc` and `miniz.c` of torch 2.13; `zipfile.py` of
Python 3.11.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol

from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.kernel.checksums import combined_crc32

_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
"""Signature, version, flags, method, time, date, CRC-32, two sizes, the lengths of the name and of the extra field."""
_DESCRIPTOR: Final = struct.Struct("<4sIII")
_WIDE_DESCRIPTOR: Final = struct.Struct("<4sIQQ")
"""Behind the values: signature, CRC-32 and two sizes."""
_ENTRY: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
"""As `_LOCAL`, after the version of the writer; then the length of a comment, disk, attributes, offset of `_LOCAL`."""
_WIDE_END: Final = struct.Struct("<4sQHHIIQQQQ")
"""Signature, size of the rest, versions, disks, numbers of members, bytes and begin of the directory."""
_LOCATOR: Final = struct.Struct("<4sIQI")
"""Signature, disk, where `_WIDE_END` is, number of disks."""
_END: Final = struct.Struct("<4sHHHHIIH")
_LOCAL_CRC: Final = 14
_DESCRIPTOR_CRC: Final = 4
_ENTRY_CRC: Final = 16
"""Where these records have the CRC-32."""
_MOST_16: Final = 0xFFFF
_MOST_32: Final = 0xFFFFFFFF
"""Stand for numbers that need more bits, which are in a wider field."""
_WIDE_VERSION: Final = 45
"""The version of the format that has sizes of 64 bits."""
_ZIP64: Final = 1
"""The tag of the extra field with numbers of 64 bits."""


class ZipMember(NamedTuple):
    """A member of an archive: a small one with its bytes, another one with the number of its bytes.

    `head` are those of its bytes that are known already, before the values.
    """

    name: str
    size: int
    data: bytes | None = None
    head: bytes = b""


class ZipDialect(Protocol):
    """How a program writes the headers of an archive."""

    @property
    def alignment(self) -> int:
        """Return the number of which the begin of each member is a multiple."""

    @property
    def has_descriptors(self) -> bool:
        """Return True if the CRC-32 of a member stands behind its values, not before them."""

    def local(self, member: ZipMember, crc: int, offset: int) -> bytes:
        """Return the header before the bytes of a member, where `offset` is that of the header."""

    def entry(self, member: ZipMember, crc: int, offset: int) -> bytes:
        """Return the entry of a member in the directory, where `offset` is that of its header."""

    def end(self, count: int, start: int, size: int) -> bytes:
        """Return the records behind the directory of `count` members in the bytes [start, start + size)."""


@dataclass(frozen=True, slots=True)
class TorchZip:
    """An archive of `torch.save`: members of one folder, whose bytes begin at multiples of 64.

    Its local headers have flags where the format has the compression: torch's readers look in the directory alone.
    """

    folder: str = "archive"
    alignment: ClassVar[int] = 64
    has_descriptors: ClassVar[bool] = True

    _FLAGS: ClassVar[int] = 0x0808
    """Names are UTF-8, and sizes stand behind the values."""
    _EMPTY_FLAGS: ClassVar[int] = 0x0800
    """No data descriptor follows a member without bytes: torch computes where the next member begins."""
    _PADDING: ClassVar[bytes] = b"FB"
    """The tag of the extra field that fills up."""

    def _name(self, member: ZipMember) -> bytes:
        return name_bytes(f"{self.folder}/{member.name}")

    def local(self, member: ZipMember, crc: int, offset: int) -> bytes:  # noqa: ARG002 - it stands behind the values
        """Return the header before the bytes of a member."""
        name = self._name(member)
        pad = -(offset + _LOCAL.size + len(name) + 4) % self.alignment
        flags = self._FLAGS if member.size else self._EMPTY_FLAGS
        header = _LOCAL.pack(b"PK\3\4", 0, 0, flags, 0, 0, 0, 0, 0, len(name), pad + 4)
        return header + name + self._PADDING + struct.pack("<H", pad) + b"Z" * pad

    def entry(self, member: ZipMember, crc: int, offset: int) -> bytes:
        """Return the entry of a member in the directory."""
        name = self._name(member)
        size, header, extra = _narrow(member.size, offset, _MOST_32 - 1)
        sizes = (size, size, len(name), len(extra), 0)
        flags = self._FLAGS if member.size else self._EMPTY_FLAGS
        return _ENTRY.pack(b"PK\1\2", 0, 0, flags, 0, 0, 0, crc, *sizes, 0, 0, 0, header) + name + extra

    def end(self, count: int, start: int, size: int) -> bytes:
        """Return the records behind the directory, always those of 64 bits, too."""
        return _wide_end(0x031E, count, start, size) + _narrow_end(count, start, size)


@dataclass(frozen=True, slots=True)
class NumpyZip:
    """An archive of `numpy.savez`, as Python's zipfile writes it: local headers of 64 bits, dates of 1980.

    A member with its bytes is as `ZipFile.writestr` writes it.
    """

    alignment: ClassVar[int] = 1
    has_descriptors: ClassVar[bool] = False

    _UTF8: ClassVar[int] = 0x0800
    _VERSION: ClassVar[int] = 20
    _UNIX: ClassVar[int] = 3 << 8
    _DATE: ClassVar[int] = 1 << 5 | 1
    """The first day of January 1980."""
    _ATTRIBUTES: ClassVar[int] = 0o600 << 16
    _LIMIT: ClassVar[int] = (1 << 31) - 1
    """Larger numbers are written with 64 bits."""
    _MOST_MEMBERS: ClassVar[int] = _MOST_16

    def _named(self, member: ZipMember) -> tuple[bytes, int]:
        """Return a name, and the flags that say how it is encoded."""
        name = name_bytes(member.name)
        return name, 0 if name.isascii() else self._UTF8

    def _version(self, member: ZipMember) -> int:
        return _WIDE_VERSION if member.data is None or member.size > self._LIMIT else self._VERSION

    def local(self, member: ZipMember, crc: int, offset: int) -> bytes:  # noqa: ARG002 - nothing is aligned
        """Return the header before the bytes of a member."""
        name, flags = self._named(member)
        version = self._version(member)
        size, extra = member.size, b""
        if version == _WIDE_VERSION:
            extra = struct.pack("<HHQQ", _ZIP64, 16, size, size)
            size = _MOST_32
        sizes = (size, size, len(name), len(extra))
        return _LOCAL.pack(b"PK\3\4", version, flags, 0, 0, self._DATE, crc, *sizes) + name + extra

    def entry(self, member: ZipMember, crc: int, offset: int) -> bytes:
        """Return the entry of a member in the directory."""
        name, flags = self._named(member)
        size, header, extra = _narrow(member.size, offset, self._LIMIT)
        version = _WIDE_VERSION if extra else self._version(member)
        attributes = 0 if member.data is None else self._ATTRIBUTES
        head = (b"PK\1\2", self._UNIX | version, version, flags, 0, 0, self._DATE, crc)
        return _ENTRY.pack(*head, size, size, len(name), len(extra), 0, 0, 0, attributes, header) + name + extra

    def end(self, count: int, start: int, size: int) -> bytes:
        """Return the records behind the directory, those of 64 bits only where they are needed."""
        is_wide = count > self._MOST_MEMBERS or start > self._LIMIT or size > self._LIMIT
        return (_wide_end(_WIDE_VERSION, count, start, size) if is_wide else b"") + _narrow_end(count, start, size)


def _narrow(size: int, offset: int, limit: int) -> tuple[int, int, bytes]:
    """Return a size and an offset in 32 bits, and the extra field with those of them that are over the limit."""
    wide: list[int] = []
    if size > limit:
        wide += [size, size]
        size = _MOST_32
    if offset > limit:
        wide.append(offset)
        offset = _MOST_32
    extra = struct.pack(f"<HH{len(wide)}Q", _ZIP64, 8 * len(wide), *wide) if wide else b""
    return size, offset, extra


def _wide_end(made_by: int, count: int, start: int, size: int) -> bytes:
    """Return the record of 64 bits at the end of an archive, and its locator."""
    record = _WIDE_END.pack(b"PK\6\6", 44, made_by, _WIDE_VERSION, 0, 0, count, count, size, start)
    return record + _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)


def _narrow_end(count: int, start: int, size: int) -> bytes:
    """Return the record at the end of an archive, where numbers that do not fit are the greatest that do."""
    counts = (min(count, _MOST_16), min(count, _MOST_16))
    return _END.pack(b"PK\5\6", 0, 0, *counts, min(size, _MOST_32), min(start, _MOST_32), 0)


class ZipPlan(NamedTuple):
    """An archive, but for the values of some members and their checksums."""

    size: int
    places: Mapping[str, int]
    """Where the values of each member without bytes begin."""
    literals: Sequence[tuple[int, bytes]]
    """What stands around them, with zeros for their checksums."""
    heads: Mapping[str, tuple[bytes, int]]
    """Of members whose first bytes are known: these, and the number of bytes of the values."""
    sums: Sequence[tuple[str, int]]
    """The members whose checksums are four bytes at an offset: near the values, and in the directory."""

    def parts(self, start: int, sums: Mapping[str, int]) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of all that is no value, in a file where the archive begins at `start`.

        `sums` has the CRC-32 of the values of each member.
        """
        texts = [bytearray(data) for _, data in self.literals]
        begins = [offset for offset, _ in self.literals]
        for name, offset in self.sums:
            crc = sums[name]
            if name in self.heads:
                head, value_bytes = self.heads[name]
                crc = combined_crc32(zlib.crc32(head), crc, value_bytes)
            number = bisect_right(begins, offset) - 1
            struct.pack_into("<I", texts[number], offset - begins[number], crc)
        for offset, data in zip(begins, texts, strict=True):
            yield start + offset, bytes(data)


def lay_out_zip(members: Sequence[ZipMember], dialect: ZipDialect) -> ZipPlan:
    """Return an archive of these members in their order."""
    literals: list[tuple[int, bytes]] = []
    places: dict[str, int] = {}
    heads: dict[str, tuple[bytes, int]] = {}
    sums: list[tuple[str, int]] = []
    entries: list[tuple[ZipMember, bytes]] = []
    next_header = 0
    for member in members:
        header = next_header
        crc = zlib.crc32(member.data or b"")
        local = dialect.local(member, crc, header)
        end = header + len(local) + member.size
        descriptor = _descriptor(crc, member.size) if dialect.has_descriptors and member.size else b""
        if member.data is None:
            places[member.name] = header + len(local) + len(member.head)
            literals.append((header, local + member.head))
            if descriptor:
                literals.append((end, descriptor))
            sums.append((member.name, end + _DESCRIPTOR_CRC if descriptor else header + _LOCAL_CRC))
            if member.head:
                heads[member.name] = member.head, member.size - len(member.head)
        else:
            literals.append((header, local + member.data + descriptor))
        entries.append((member, dialect.entry(member, crc, header)))
        next_header = end + len(descriptor)
    directory = next_header
    at = directory
    for member, entry in entries:
        if member.data is None:
            sums.append((member.name, at + _ENTRY_CRC))
        at += len(entry)
    end_records = dialect.end(len(members), directory, at - directory)
    literals.append((directory, b"".join(entry for _, entry in entries) + end_records))
    return ZipPlan(at + len(end_records), places, literals, heads, sums)


def _descriptor(crc: int, size: int) -> bytes:
    """Return the record behind the bytes of a member."""
    kind = _DESCRIPTOR if size < _MOST_32 else _WIDE_DESCRIPTOR
    return kind.pack(b"PK\7\x08", crc, size, size)


@dataclass(frozen=True, slots=True)
class ZipFileLayout:
    """Where everything goes in a file that is one archive, whose name is ''; a member has the values of one array."""

    checksum: ClassVar = "crc32"
    plan: ZipPlan
    members: Mapping[str, str]
    """The member of each array by its key."""

    @property
    def files(self) -> Mapping[str, int]:
        """Return the size of the file."""
        return {"": self.plan.size}

    def at(self, key: str, slab: int) -> tuple[str, int]:  # noqa: ARG002 - an array is in one piece
        """Return the file, and the offset of the values of an array."""
        return "", self.plan.places[self.members[key]]

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield all that is no value, given the CRC-32 of each array."""
        by_member = {self.members[key]: crc for (key, _), crc in sums.items()}
        for offset, data in self.plan.parts(0, by_member):
            yield "", offset, data
