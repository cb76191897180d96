"""The zip that torch.save writes: its directory at the end, and its members, which are stored as they are.

torch takes the name of the archive from the first member, and never compresses. Python's `zipfile` is not used: it
would read what a directory of lies names. Here no member may overlap another one or the directory, and none is there
twice.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.base.words import ends_early
from edl_ckpt.core.storage.interface import RangeReader

MAGIC: Final = b"PK\3\4"
_ENTRY: Final = struct.Struct("<4s6xH4xIIIHHH8xI")
LOCAL: Final = struct.Struct("<4s22xHH")
_END: Final = struct.Struct("<4s6xHIIH")
"""The last record: members, bytes of the directory, where it begins, bytes of a comment."""
_END_64: Final = struct.Struct("<4s28xQQQ")
_LOCATOR: Final = struct.Struct("<4s4xQ4x")
_IN_EXTRA: Final = 0xFFFFFFFF
_MANY: Final = 0xFFFF
_TAIL_BYTES: Final = 64 << 10
"""So much of the end is read at once: the directory of a file with 700 tensors is there."""
_MOST_DIRECTORY: Final = 512 << 20
_NEAR_BYTES: Final = 4 << 10
_FAR_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 1 << 20
_LONGEST_NAME: Final = 1 << 10
_DATA: Final = b"data/"
CUT: Final = "truncated"
"""The code of the error of a zip without an end."""
_SMALL_MEMBERS: Final = 8 << 10
"""So many bytes of small members are between two storages."""
_DESCRIPTOR: Final = struct.Struct("<4sI")


class Member(NamedTuple):
    """A member of a zip: the name of the archive before its own, its checksum, its size, and where its header is."""

    archive: bytes
    crc: int
    size_bytes: int
    header: int


class Place(NamedTuple):
    """The bytes [start, end) of a member in a file, and their CRC-32."""

    start: int
    end: int
    crc: int


def directory_entries(data: bytes, offset: int) -> Iterator[tuple[bytes, Member]]:
    """Yield the members in a directory, by their names without that of the archive.

    `offset` is where the directory begins. Raises UnsupportedError for a compressed member, CorruptError for damage,
    whose offset is counted as `offset` is.
    """
    position, size = 0, len(data)
    while position < size:
        if size - position < _ENTRY.size or data[position : position + 4] != b"PK\1\2":
            raise CorruptError("the directory of its zip is damaged", offset=offset + position)
        _, method, crc, packed, length, named, extra, comment, header = _ENTRY.unpack_from(data, position)
        begin = position + _ENTRY.size
        position = begin + named + extra + comment
        name = data[begin : begin + named]
        if _IN_EXTRA in {length, packed, header}:
            long = data[begin + named : begin + named + extra]
            length, packed, header = _long(long, [length, packed, header], offset)
        if method and packed == length:  # torch compresses nothing, and what is compressed has another size
            message = f"the directory of its zip says that {name!r} is compressed"
            raise CorruptError(message, offset=offset + begin)
        if method or packed != length:
            raise UnsupportedError(f"its zip has a compressed member: {name!r}")
        folder, _, inner = name.partition(b"/")
        yield inner, Member(folder, crc, length, header)


def _long(extra: bytes, numbers: list[int], offset: int) -> list[int]:
    """Return the numbers of an entry; of these, in this order, its extra field has those that need 64 bits."""
    wide = [n for n, number in enumerate(numbers) if number == _IN_EXTRA]
    if extra[:2] != b"\1\0" or len(extra) < 4 + 8 * len(wide):
        raise CorruptError("the directory of its zip lacks a size", offset=offset)
    for n, number in zip(wide, struct.unpack_from(f"<{len(wide)}Q", extra, 4), strict=True):
        numbers[n] = number
    return numbers


@dataclass(frozen=True, slots=True)
class Ending:
    """What the records at the end of a zip say: where its directory is, and how many members it has."""

    start: int
    end: int
    members: int


def read_ending(reader: RangeReader) -> tuple[Ending, bytes]:
    """Return the records at the end of a file, and the last bytes of it.

    Raises CorruptError for a file without them: it was cut, or its save was.
    """
    size = reader.size_bytes
    tail = reader.read(max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES))
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\5\6":
        at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) - at < _END.size:
            raise CorruptError("its zip has no end: it was cut, or its save was", code=CUT, offset=size)
    _, members, length, start, comment = _END.unpack_from(tail, at)
    end = size - len(tail) + at
    if at + _END.size + comment != len(tail):
        raise CorruptError("its zip does not end as it must", offset=end)
    if {members, length, start} & {_MANY, _IN_EXTRA} or tail[max(at - _LOCATOR.size, 0) : at][:4] == b"PK\6\7":
        end, members, length, start = _ending_64(reader, tail, at, end)
    if start < 0 or length < 0 or start + length != end:
        raise CorruptError("its zip does not end as it must", offset=end)
    if members * _ENTRY.size > length:
        raise CorruptError(f"its zip names {members:,} members, which its directory has no bytes for", offset=end)
    return Ending(start, start + length, members), tail


def _ending_64(reader: RangeReader, tail: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Return (end, members, bytes, start) of the directory by the records of 64 bits, which are before the last one."""
    if at < _LOCATOR.size:
        raise CorruptError("its zip does not end as it must", offset=end)
    mark, place = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
    if mark != b"PK\6\7" or place + _END_64.size > end - _LOCATOR.size:
        raise CorruptError("its zip does not end as it must", offset=end - _LOCATOR.size)
    mark, members, length, start = _END_64.unpack(reader.read(place, _END_64.size))
    if mark != b"PK\6\6":
        raise CorruptError("its zip does not end as it must", offset=place)
    return place, members, length, start


class LocalHeader(NamedTuple):
    """What is right before a member: its name with that of the archive, and where the member begins."""

    name: bytes
    end: int


def local_header(data: bytes, at: int) -> LocalHeader | None:
    """Return the header of a member at a place; None where none is."""
    if len(data) < at + LOCAL.size or data[at : at + 4] != MAGIC:
        return None
    _, named, extra = LOCAL.unpack_from(data, at)
    begin = at + LOCAL.size
    return LocalHeader(data[begin : begin + named], begin + named + extra)


def find_member(reader: RangeReader, at: int, name: bytes) -> int | None:
    """Return where a member begins whose header is one of the next ones from a byte on; None where it is not there."""
    data = reader.read(at, max(min(_SMALL_MEMBERS, reader.size_bytes - at), 0)) if at < reader.size_bytes else b""
    position = data.find(MAGIC)
    while position >= 0:
        header = local_header(data, position)
        if header is not None and header.name == name:
            return at + header.end
        position = data.find(MAGIC, position + 1)
    return None


def crc_behind(reader: RangeReader, end: int) -> int | None:
    """Return the checksum of a member that follows it, as torch writes it; None where the file ends before."""
    if end + _DESCRIPTOR.size > reader.size_bytes:
        return None
    mark, crc = _DESCRIPTOR.unpack(reader.read(end, _DESCRIPTOR.size))
    return crc if mark == b"PK\7\x08" else None


class TorchZip:
    """The zip in a file, of which the directory was read: where each member lies, by its name in the archive."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        ending, tail = read_ending(reader)
        before = ending.start - (reader.size_bytes - len(tail))
        if ending.end - ending.start > _MOST_DIRECTORY:
            raise UnsupportedError("the directory of its zip is larger than that of any checkpoint")
        size = ending.end - ending.start
        data = tail[before : before + size] if before >= 0 else reader.read(ending.start, size)
        members = list(directory_entries(data, ending.start))
        if len(members) != ending.members:
            message = f"its zip has {len(members):,} members; its end names {ending.members:,}"
            raise CorruptError(message, offset=ending.start)
        self.archive = members[0][1].archive if members else b""
        self._members = dict(members)
        if len(self._members) != len(members):
            raise CorruptError("its zip names a member twice", offset=ending.start)
        self._starts = _checked(members, ending.start)
        self._places: dict[bytes, Place] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._members and self._members[name].archive == self.archive

    @property
    def names(self) -> Sequence[bytes]:
        """Return the names of its members."""
        return [*self._members]

    def content(self, name: bytes, most: int) -> tuple[bytes, int]:
        """Return a member and where it begins; CorruptError where its checksum differs.

        Raises UnsupportedError for one of more than `most` bytes.
        """
        place = self.places([name])[name]
        if place.end - place.start > most:
            raise UnsupportedError(f"{name.decode(errors='replace')} has {place.end - place.start:,} bytes: too many")
        data = self._reader.read(place.start, place.end - place.start)
        if zlib.crc32(data) != place.crc:
            message = f"the checksum of {name.decode(errors='replace')} differs"
            raise CorruptError(message, code="checksum-mismatch", offset=place.start)
        return data, place.start

    def places(self, names: Sequence[bytes]) -> Mapping[bytes, Place]:
        """Return where some members lie, by the headers before them; CorruptError for one that is not there.

        Headers that lie close to each other are read together.
        """
        wanted: list[tuple[int, int, bytes]] = []
        for name in dict.fromkeys(names):
            member = self._members.get(name)
            if member is None:
                raise CorruptError(f"its zip has no {name.decode(errors='replace')}")
            if member.archive != self.archive:  # torch takes the name of the first member's, and misses this one
                message = f"its zip has {name.decode(errors='replace')} under another name of its archive"
                raise CorruptError(message, offset=member.header)
            if name not in self._places:
                length = LOCAL.size + len(member.archive) + 1 + len(name)
                wanted.append((member.header, member.header + length, name))
        gap = _FAR_BYTES if self._reader.block_bytes else _NEAR_BYTES
        for start, end, close in near(sorted(wanted), lambda one: one[:2], gap, _MOST_BYTES):
            if end > self._reader.size_bytes:
                raise CorruptError("its zip names bytes outside of it", offset=start)
            data = self._reader.read(start, end - start)
            for first, stop, name in close:
                self._places[name] = self._place(name, data[first - start : stop - start])
        return {name: self._places[name] for name in names}

    def _place(self, name: bytes, header: bytes) -> Place:
        """Return where a member lies by its own header, which must agree with the directory."""
        member = self._members[name]
        mark, named, extra = LOCAL.unpack_from(header)
        start = member.header + LOCAL.size + named + extra
        whole = member.archive + b"/" + name
        if mark != MAGIC or named != len(whole) or header[LOCAL.size :] != whole:
            raise CorruptError(f"its zip has another header of {name.decode(errors='replace')}", offset=member.header)
        if start + member.size_bytes > self._starts[member.header]:
            message = f"{name.decode(errors='replace')} overlaps what follows it"
            raise CorruptError(message, code="values-outside-content", offset=start)
        return Place(start, start + member.size_bytes, member.crc)


def _checked(members: Sequence[tuple[bytes, Member]], directory: int) -> Mapping[int, int]:
    """Return where what follows each member begins, by the places of their headers.

    Raises CorruptError for members that cannot lie side by side before the directory.
    """
    every = sorted((member.header, member.size_bytes, name) for name, member in members)
    after: dict[int, int] = {}
    for n, (header, length, name) in enumerate(every):
        following = every[n + 1][0] if n + 1 < len(every) else directory
        least = header + LOCAL.size + len(name) + 1 + length
        if len(name) > _LONGEST_NAME:
            raise CorruptError("its zip has a name that no checkpoint of torch has", offset=header)
        if least > directory and name.startswith(_DATA):
            raise CorruptError(ends_early(directory, least), code="values-outside-content", offset=header)
        if least > following:
            message = f"{name.decode(errors='replace')} overlaps what follows it"
            raise CorruptError(message, code="values-outside-content", offset=header)
        after[header] = following
    return after
