"""Archives whose members are read where they are: extents, against what zipfile and numpy say of them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import CorruptError, UnsupportedError
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
