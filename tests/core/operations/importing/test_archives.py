"""Archives whose members are read where they are: extents, against what zipfile and numpy say of them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import CorruptError, UnsupportedError, import_arrays
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.storage.location import Location


def test_extents(tmp_path: Path) -> None:
    """The bytes at each extent are those that numpy loads, and the checksums those that zipfile has."""
    arrays: dict[str, Any] = {"a": np.arange(7), "b/c": np.ones((3, 5), np.float32), "empty": np.zeros((0, 4))}
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    with ArraySource(Location(str(path)), shared=True) as source, zipfile.ZipFile(path) as archive:
        assert {m.name: m.crc for m in source.members} == {i.filename: i.CRC for i in archive.infolist()}
        assert len({id(array.reader) for array in source.arrays.values()}) == 1
        for name, values in arrays.items():
            found = source.arrays[name]
            assert (found.shape, found.dtype.name) == (values.shape, values.dtype.name)
            assert found.read(0, found.size_bytes).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [(10, 8, UnsupportedError), (8, 1, UnsupportedError), (20, 0xFF, CorruptError), (42, 0xFF, CorruptError)],
)
def test_damaged_entries(tmp_path: Path, at: int, value: int, error: type[Exception]) -> None:
    """An unknown method, an encrypted member, a wrong size and a wrong place are errors, not crashes."""
    path = tmp_path / "m.npz"
    np.savez(path, a=np.arange(9))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\1\2") + at] = value
    path.write_bytes(data)
    with pytest.raises(error, match=r"'a\.npy'|not a readable"), ArraySource(Location(str(path)), shared=True):
        pass


def directory_of(data: bytes, count: int, change: Callable[[int], tuple[bytes, bytes]]) -> bytes:
    """Return an archive of one member whose directory names it so often, each time changed."""
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    entries = b"".join(data[start:end].replace(*change(number)) for number in range(count))
    size, number = len(entries).to_bytes(4, "little"), count.to_bytes(2, "little")
    return data[:start] + entries + data[end : end + 8] + number * 2 + size + data[end + 16 :]


@pytest.mark.parametrize("names", ["the same", "others"])
def test_a_member_that_is_named_often(names: str, tmp_path: Path) -> None:
    """A directory that names one member fifty times unpacks nothing: members have no name and no byte in common."""
    np.savez_compressed(tmp_path / "m.npz", v00=np.zeros(1 << 20))
    data = (tmp_path / "m.npz").read_bytes()
    wrong = directory_of(data, 50, lambda n: (b"v00", b"v%02d" % (n if names == "others" else 0)))
    (tmp_path / "m.npz").write_bytes(wrong)
    with zipfile.ZipFile(tmp_path / "m.npz") as archive:
        assert len(archive.infolist()) == 50
    with pytest.raises(CorruptError, match=r"twice|in another member"):
        import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 1)
    assert not (tmp_path / "run").exists()


def test_a_member_that_says_more_than_it_can_hold(tmp_path: Path) -> None:
    """A member whose entry says more bytes than deflate makes of its own is damaged, before anything is unpacked."""
    np.savez_compressed(tmp_path / "m.npz", v=np.zeros(1 << 16))
    data = bytearray((tmp_path / "m.npz").read_bytes())
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (1 << 31).to_bytes(4, "little")
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(CorruptError, match="more bytes than its entry can hold"):
        import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 1)


def test_zeros_that_deflate_compresses_best(tmp_path: Path) -> None:
    """An array of zeros, which deflate compresses as far as it can, is imported."""
    np.savez_compressed(tmp_path / "m.npz", v=np.zeros(1 << 22, np.float32))
    assert (tmp_path / "m.npz").stat().st_size < 1 << 15
    import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 1)
