"""CRC-32C by the processor's instructions, by tables in C and by numpy is the same, and so is CRC-32 that of zlib."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl_ckpt.core.kernel import bulk, checksums
from edl_ckpt.core.kernel.checksums import Crc32, combined_crc32, crc32c, masked, unmasked


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


@pytest.mark.parametrize("level", [0, 1, 2])
def test_crc32_is_that_of_zlib(level: int) -> None:
    """The kernel has the CRC-32 of zlib for bytes of any number that begin anywhere, after any others."""
    if bulk.kernel is None:
        pytest.skip("the kernel is not compiled")
    chance = random.Random(level)
    data = memoryview(chance.randbytes(20_000))
    bulk.kernel.set_simd_level(level)
    try:
        for size in [*range(300), 4095, 4096, 19_990]:
            begin, value = chance.randrange(10), chance.getrandbits(32)
            part = data[begin : begin + size]
            assert bulk.kernel.crc32(part, value) == zlib.crc32(part, value), (begin, size)
    finally:
        bulk.kernel.set_simd_level(2)


@given(st.integers(0, 0xFFFFFFFF))
def test_a_mask_is_taken_off(value: int) -> None:
    """A checksum that is masked as LevelDB does, rotated and with a number added, is found again."""
    assert masked(value) == ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert unmasked(masked(value)) == value


@pytest.mark.parametrize(("kind", "of"), [("crc32", zlib.crc32), ("crc32c", crc32c)])
@given(pieces=st.lists(st.binary(max_size=3000), max_size=9), chance=st.randoms(use_true_random=False))
def test_pieces_in_any_order(kind: str, of: Callable[..., int], pieces: list[bytes], chance: random.Random) -> None:
    """The sum of pieces that come in any order is that of all bytes."""
    total, offsets = Crc32(kind), [sum(map(len, pieces[:number])) for number in range(len(pieces))]
    placed = [(offset, piece) for offset, piece in zip(offsets, pieces, strict=True) if piece]
    for offset, piece in chance.sample(placed, len(placed)):
        total.add(offset, piece)
    assert total.value() == of(b"".join(pieces))


@pytest.mark.parametrize(("kind", "of"), [("crc32", zlib.crc32), ("crc32c", crc32c)])
def test_large_pieces(kind: str, of: Callable[..., int]) -> None:
    """Sums of pieces of a gigabyte are combined: the powers of Castagnoli's polynomial repeat after 31, not 32."""
    if bulk.kernel is None:
        pytest.skip("numpy takes too long for a gigabyte")
    data, first = random.Random(1).randbytes(1 << 24), of(b"begin")
    second, whole = 0, first
    for _ in range(65):
        second, whole = of(data, second), of(data, whole)
    assert combined_crc32(first, second, 65 << 24, kind) == whole
