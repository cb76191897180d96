"""CRC-32C by the processor's instructions, by tables in C and by numpy is the same, and is that of the standard."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl_ckpt.core.kernel import bulk, checksums
from edl_ckpt.core.kernel.checksums import crc32c, unmasked


@pytest.fixture(params=["instructions", "tables", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Compute checksums in one way."""
    if request.param == "numpy":
        monkeypatch.setattr(checksums, "compiled", None)
        yield request.param
        return
    if bulk.kernel is None:
        pytest.skip("the kernel is not compiled")
    bulk.kernel.set_simd_level(2 if request.param == "instructions" else 0)
    yield request.param
    bulk.kernel.set_simd_level(2)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_values(way: str, data: bytes, value: int) -> None:
    """The checksums of RFC 3720, appendix B.4."""
    assert crc32c(data) == value
    assert crc32c(np.frombuffer(data, np.uint8)) == value
    assert crc32c(memoryview(data)) == value


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 4095, 4096, 4097, 12_289, 100_003])
def test_parts_follow_each_other(way: str, size: int) -> None:
    """The checksum of some bytes goes on from that of the bytes before them, wherever they are cut."""
    data = random.Random(size).randbytes(size)
    whole = crc32c(data)
    for cut in {0, 1, size // 3, size - 1, size}:
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole
    assert crc32c(memoryview(data)[1:]) == crc32c(data[1:])  # bytes that begin anywhere


@given(st.binary(max_size=20_000), st.integers(0, 0xFFFFFFFF))
@example(bytes(8192), 0xFFFFFFFF)
def test_c_is_numpy(data: bytes, value: int) -> None:
    """C and numpy agree on all bytes, after all others."""
    if checksums.compiled is None:
        pytest.skip("the kernel is not compiled")
    assert checksums.compiled(data, value) == checksums._by_numpy(data, value)


@given(st.integers(0, 0xFFFFFFFF))
def test_a_mask_is_taken_off(value: int) -> None:
    """A checksum that is masked as LevelDB does, rotated and with a number added, is found again."""
    masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert unmasked(masked) == value
