"""Archives that are laid out: byte for byte those of zipfile and of torch, readable at every size."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from edl_ckpt.core.sources.zip_layout import (
    NumpyZip,
    TorchZip,
    ZipDialect,
    ZipFileLayout,
    ZipMember,
    lay_out_zip,
)

DIALECTS = [TorchZip(), NumpyZip()]
WIDE = (1 << 31) + 5, (1 << 32) - 2, (1 << 32) - 1, (1 << 32) + 3


def written(members: Sequence[ZipMember], values: Mapping[str, bytes], dialect: ZipDialect) -> bytes:
    """Return an archive with its values."""
    plan = lay_out_zip(members, dialect)
    data = bytearray(b"?" * plan.size)
    for name, value in values.items():
        data[plan.places[name] : plan.places[name] + len(value)] = value
    for offset, part in plan.parts(0, {name: zlib.crc32(value) for name, value in values.items()}):
        data[offset : offset + len(part)] = part
    return bytes(data)


@pytest.mark.parametrize("names", [["a", "b/c"], ["tür", "表"], []])
def test_an_archive_of_numpy_is_what_zipfile_writes(names: list[str]) -> None:
    """An archive of numpy is what zipfile writes, whose local headers of values have 64 bits."""
    values = {name: name.encode() * 9 for name in names}
    members = [ZipMember(name, len(value) + 4, head=b"head") for name, value in values.items()]
    sink = io.BytesIO()
    infos = [zipfile.ZipInfo(name) for name in names]
    for info in infos:
        data = b"head" + values[info.filename]
        info.header_offset, info.CRC = sink.tell(), zlib.crc32(data)
        info.file_size = info.compress_size = len(data)
        sink.write(info.FileHeader(zip64=True) + data)
    with zipfile.ZipFile(sink, "w") as archive:
        archive.filelist.extend(infos)
        archive.writestr(zipfile.ZipInfo("notes"), b"{}")
    assert written([*members, ZipMember("notes", 2, b"{}")], values, NumpyZip()) == sink.getvalue()


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_zipfile_reads_members_with_and_without_their_bytes(dialect: ZipDialect) -> None:
    """Python's zipfile reads members with and without their bytes, and finds their checksums right."""
    members = [ZipMember("a", 5, b"first"), ZipMember("b", 8, head=b"12"), ZipMember("c", 0), ZipMember("d", 3)]
    data = written(members, {"b": b"345678", "c": b"", "d": b"xyz"}, dialect)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert [archive.read(name) for name in archive.namelist()] == [b"first", b"12345678", b"", b"xyz"]


def test_members_of_torch_begin_at_multiples_of_64() -> None:
    """The bytes of each member of torch begin at a multiple of 64, under the name of its archive."""
    members = [ZipMember(f"data/{'9' * number}", number) for number in range(1, 70)]
    plan = lay_out_zip(members, TorchZip("model"))
    assert {place % 64 for place in plan.places.values()} == {0}
    values = {member.name: b"v" * member.size for member in members}
    with zipfile.ZipFile(io.BytesIO(written(members, values, TorchZip("model")))) as archive:
        assert archive.namelist() == [f"model/{member.name}" for member in members]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
@pytest.mark.parametrize("size", WIDE)
def test_sizes_and_offsets_of_more_than_32_bits_are_read_back(tmp_path: Path, dialect: ZipDialect, size: int) -> None:
    """Sizes and offsets at and over the limits of 31 and 32 bits are read back."""
    members = [ZipMember("large", size), ZipMember("behind", 5, b"bytes"), ZipMember("values", 3)]
    plan = lay_out_zip(members, dialect)
    path = tmp_path / "archive"
    with path.open("wb") as file:  # sparse: nobody reads the values of the large member
        file.truncate(plan.size)
        for offset, data in plan.parts(0, {"large": 0, "values": zlib.crc32(b"xyz")}):
            file.seek(offset)
            file.write(data)
        file.seek(plan.places["values"])
        file.write(b"xyz")
    with zipfile.ZipFile(path) as archive:
        assert [info.file_size for info in archive.infolist()] == [size, 5, 3]
        assert [archive.read(info) for info in archive.infolist()[1:]] == [b"bytes", b"xyz"]
        with archive.open(archive.infolist()[0]) as member:
            assert member.read(3) == bytes(3)


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_an_archive_has_more_members_than_16_bits_count(dialect: ZipDialect) -> None:
    """An archive has more members than 16 bits count."""
    members = [ZipMember(f"{number}", 1, b"x") for number in range(70_000)]
    with zipfile.ZipFile(io.BytesIO(written(members, {}, dialect))) as archive:
        assert len(archive.namelist()) == 70_000
        assert archive.read(archive.infolist()[-1]) == b"x"


def test_a_layout_of_one_file_places_arrays_by_their_keys() -> None:
    """A layout of one file places arrays by their keys, and gives each the checksum of its own values."""
    plan = lay_out_zip([ZipMember("m0", 2), ZipMember("m1", 3)], NumpyZip())
    layout = ZipFileLayout(plan, {"first": "m0", "second": "m1"})
    data = bytearray(layout.files[""])
    for key, value in {"first": b"ab", "second": b"cde"}.items():
        file, at = layout.at(key, 0)
        assert file == ""
        data[at : at + len(value)] = value
    sums = {("first", 0): zlib.crc32(b"ab"), ("second", 0): zlib.crc32(b"cde")}
    for _, offset, part in layout.literals(sums):
        data[offset : offset + len(part)] = part
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None


def test_nothing_stands_behind_a_member_of_torch_without_bytes() -> None:
    """The next header follows at once, and the flags say so: torch computes the places of later storages by that."""
    data = written([ZipMember("data/0", 0), ZipMember("data/1", 2)], {"data/0": b"", "data/1": b"\1\0"}, TorchZip())
    named, extra = int.from_bytes(data[26:28], "little"), int.from_bytes(data[28:30], "little")
    second = 30 + named + extra
    assert data[:10] == b"PK\3\4\0\0\0\0\0\x08"  # as torch 2.13 writes it
    assert data[second : second + 4] == b"PK\3\4"
    assert data[:second].count(b"PK\7\x08") == 0
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert [archive.read(f"archive/data/{n}") for n in range(2)] == [b"", b"\1\0"]
