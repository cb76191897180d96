"""The index of a bundle: tables of LevelDB, messages of entries, keys of slices, and what is wrong with them."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle_files import HEADER, block, entry, table, varint
from edl_ckpt.core import list_versions, open_checkpoint
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.sources.bundle import format as bundle
from edl_ckpt.core.sources.bundle.index import read_index
from edl_ckpt.core.sources.bundle.snappy import decompressed
from edl_ckpt.core.sources.bundle.table import FOOTER_BYTES, entries
from edl_ckpt.core.storage.interface import BytesReader
from examples import examples
from places import DATA

INDEX = (DATA / "systems/bundle/sharded/model.ckpt-40.index").read_bytes()
PAIRS = [(b"", HEADER), (b"a", entry(1, [2, 3], 0, 24)), (b"ab", entry(9, [], 24, 8, crc=b"\1\2\3\4"))]


def index_of(*pairs: tuple[bytes, bytes]) -> bytes:
    return table([block([(b"", HEADER), *pairs])])


@given(st.dictionaries(st.binary(min_size=1, max_size=300), st.binary(max_size=300), max_size=40), st.integers(1, 9))
def test_entries_of_a_table(pairs: dict[bytes, bytes], size: int) -> None:
    """Each key and each value of a table is read, whatever they are and however many a block has."""
    ordered = sorted(pairs.items())
    blocks = [block(ordered[start : start + size]) for start in range(0, len(ordered), size)]
    assert [(key, value) for key, value, _ in entries(table(blocks))] == ordered


def test_what_an_index_says() -> None:
    """An index gives the dtype, the shape and the bytes of each tensor, and the ends of the data files."""
    index = read_index(table([block(PAIRS[:2]), block(PAIRS[2:])]))
    assert index.shards == 1
    assert index.tensors["a"] == (1, (2, 3), 0, 0, 24, 0, ())
    assert index.tensors["ab"] == (9, (), 0, 24, 32, 0x04030201, ())
    assert index.ends() == {0: 32}
    assert bundle.digest(BytesReader(table([block(PAIRS)]), "m.index")) == {"shards": 1, "ends": {"0": 32}}


def test_fields_of_newer_versions_are_passed_over() -> None:
    """Fields that this reader does not know, of any wire type, change nothing."""
    more = b"\x40\x96\x01" + b"\x4a\x03abc" + b"\x51" + bytes(8) + b"\x5d" + bytes(4) + b"\xa2\x06\x01x"
    index = read_index(index_of((b"a", entry(1, [2], 0, 8, more=more))))
    assert index.tensors["a"] == (1, (2,), 0, 0, 8, 0, ())


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\x08\x01\x10\x01", "big-endian"),
        (b"\x08\x01\x1a\x04\x08\x09\x10\x02", "must know version 2"),
    ],
)
def test_what_is_not_supported(header: bytes, words: str) -> None:
    """A big-endian bundle, and one for newer readers only, are unsupported and not damaged."""
    with pytest.raises(UnsupportedError, match=words):
        read_index(table([block([(b"", header)])]))


LIES = {
    "no header": table([block([(b"a", entry(1, [], 0, 4))])]),
    "no entries": table([]),
    "no data file": table([block([(b"", b"")])]),
    "keys do not ascend": table([block(PAIRS), block(PAIRS[1:])]),
    "the same key": table([block([*PAIRS, PAIRS[-1]])]),
    "overlapping blocks": table([block(PAIRS)], handles=[(0, len(block(PAIRS)))] * 2),
    "a block after the end": table([block(PAIRS)], handles=[(0, 1 << 40)]),
    "a block of 2^63 bytes": table([block(PAIRS)], handles=[(1 << 63, 1 << 63)]),
    "a block of no size": table([b""]),
    "restarts beyond a block": table([(1 << 31).to_bytes(4, "little")]),
    "an entry beyond its block": table([b"\0\x7f\x01a" + bytes(4) + b"\1\0\0\0"]),
    "a key that goes on nothing": table([b"\5\1\1ab" + bytes(4) + b"\1\0\0\0"]),
    "a field cut short": index_of((b"a", b"\x08")),
    "a number cut short": index_of((b"a", b"\x08\xff")),
    "a number of 70 bits": index_of((b"a", b"\x08" + b"\xff" * 9 + b"\x7f")),
    "a number of 11 bytes": index_of((b"a", b"\x08" + b"\xff" * 10 + b"\x01")),
    "a shape cut short": index_of((b"a", b"\x12\x05\x12")),
    "a checksum cut short": index_of((b"a", b"\x35\x01")),
    "a slice cut short": index_of((b"a", b"\x3a\x7f\x0a")),
    "a slice in bad bytes": index_of((b"a", b"\x3a\x02\x0a\x7f")),
    "an unknown wire type": index_of((b"a", b"\x0f\x01")),
    "a group": index_of((b"a", b"\x0b\x0c")),
    "another data file": index_of((b"a", entry(1, [], 0, 4, shard=1))),
    "a negative shard": index_of((b"a", entry(1, [], 0, 4, shard=-1))),
    "a negative offset": index_of((b"a", entry(1, [], -8, 4))),
    "a negative size": index_of((b"a", entry(1, [], 0, -4))),
    "a negative dimension": index_of((b"a", entry(1, [-2], 0, 4))),
    "too many dimensions": index_of((b"a", entry(1, [1] * 255, 0, 4))),
    "an unknown shape": index_of((b"a", b"\x08\x01\x12\x02\x18\x01")),
    "an unknown compression in a compressed block": table([b"\x08\x0c"], compression=1),
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES)
def test_lies_with_right_checksums(data: bytes) -> None:
    """An index that cannot be is damaged, although each checksum is right; the error names the place."""
    with pytest.raises(CorruptError) as caught:
        read_index(data, "m.index")
    assert caught.value.path == "m.index"
    assert caught.value.offset is not None


def test_unknown_compression() -> None:
    """A block with a compression that no LevelDB has is unsupported."""
    with pytest.raises(UnsupportedError, match="unknown compression 2"):
        read_index(table([block(PAIRS)], compression=2))


def test_keys_that_grow_without_end() -> None:
    """Keys that each go on from the one before it, which no writer makes so long, take no memory to speak of."""
    size = 60_000
    data = b"\0\1\0a" + b"".join(varint(k) + b"\1\0a" for k in range(1, size)) + bytes(4) + (1).to_bytes(4, "little")
    with pytest.raises(CorruptError, match="keys are longer"):
        list(entries(table([data])))


def test_every_end_and_every_flip() -> None:
    """An index that ends early, or has a wrong bit, is never read as another one."""
    right = read_index(INDEX)
    for end in range(len(INDEX)):
        with pytest.raises(CorruptError):
            read_index(INDEX[:end])
    start, position = varint_at(INDEX, len(INDEX) - 48, len(INDEX))
    size, position = varint_at(INDEX, position, len(INDEX))
    free = {*range(start, start + size + 5), *range(len(INDEX) - 48, len(INDEX) - 8)}
    for position in range(len(INDEX)):
        data = bytearray(INDEX)
        data[position] ^= 1 << position % 8
        try:
            assert read_index(bytes(data)) == right
            assert position in free  # a block that nothing needs, its handle, and the padding of the footer
        except CorruptError:
            continue


def mutant(rng: random.Random) -> bytes:
    """Return an index with some bytes changed in one message, or anywhere in its block; checksums are right again."""
    pairs = [(key, value) for key, value, _ in entries(INDEX)]
    if rng.randrange(2):
        number = rng.randrange(len(pairs))
        value = bytearray(pairs[number][1])
        value[rng.randrange(len(value))] = rng.choice([0, 1, 2, 7, 9, 127, 128, 255, rng.randrange(256)])
        pairs[number] = pairs[number][0], bytes(value)
        return table([block(pairs)])
    data = bytearray(block(pairs))
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[position] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[position : position + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
        elif kind == 2:
            data[position : position + 1] = rng.choice([b"\xff" * 9 + b"\x01", b"\x7f", b"\0", b"\xff\xff\xff\xff\x0f"])
        else:
            del data[position : position + rng.randrange(1, 40)]
    return table([bytes(data)], compression=rng.randrange(2) if rng.randrange(20) == 0 else 0)


def look(seed: int) -> None:
    """Read a mutant: only errors of ours come out, and what comes out is no larger than what went in."""
    data = mutant(random.Random(seed))
    try:
        bundle.digest(BytesReader(data, "m.index"))
        index = read_index(data)
    except EdlCkptError:
        return
    assert sum(map(len, index.tensors)) <= 17 * len(data)


def test_mutants() -> None:
    """Mutants with right checksums give an index or a typed error."""
    for seed in range(500):
        look(seed)


@pytest.mark.hours
def test_many_mutants() -> None:
    """The same, a hundred thousand times."""
    for seed in range(100_000):
        look(seed)


def read_all(folder: Path, seed: int) -> None:
    """Read all that a mutant has beside real data files: only errors of ours come out."""
    (folder / "model.ckpt-40.index").write_bytes(mutant(random.Random(seed)))
    with suppress(EdlCkptError), open_checkpoint(str(folder / "model.ckpt-40"), partial=True) as checkpoint:
        for name in checkpoint.variable_names:
            checkpoint.variable(name)
        for name in checkpoint.table_names:
            checkpoint.table(name).to_numpy()


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.hours)])
def test_mutants_are_read(tmp_path: Path, count: int) -> None:
    """Variables, slices and tables of mutants are values, or typed errors."""
    shutil.copytree(DATA / "systems/bundle/sharded", tmp_path / "tf")
    for seed in range(count):
        read_all(tmp_path / "tf", seed)


def compressed(pieces: Sequence[tuple[int, bytes | int]]) -> tuple[bytes, bytes]:
    """Return what snappy could make of some pieces, and what that stands for: bytes, or (length, distance) copies."""
    stream, plain = b"", bytearray()
    for length, piece in pieces:
        if isinstance(piece, bytes):
            if not piece:
                continue
            count = len(piece) - 1
            stream += bytes([count << 2]) if count < 60 else b"\xf4" + count.to_bytes(2, "little")
            stream += piece
            plain += piece
        elif plain:
            distance = piece % len(plain) + 1
            if 4 <= length <= 11 and distance < 2048:
                stream += bytes([1 | (length - 4) << 2 | distance >> 8 << 5, distance & 255])
            elif distance < 1 << 16:
                stream += bytes([2 | (length - 1) << 2]) + distance.to_bytes(2, "little")
            else:
                stream += bytes([3 | (length - 1) << 2]) + distance.to_bytes(4, "little")
            for _ in range(length):
                plain.append(plain[-distance])
    return varint(len(plain)) + stream, bytes(plain)


@examples(25)
@given(st.lists(st.tuples(st.integers(1, 64), st.binary(max_size=200) | st.integers(0, 70_000)), max_size=30))
def test_snappy(pieces: list[tuple[int, bytes | int]]) -> None:
    """Bytes as they are and copies of all three lengths of offsets are expanded, those that overlap too."""
    stream, plain = compressed([(64, b"x" * 60_000), (64, bytes(range(256)) * 40), *pieces])
    assert decompressed(stream) == plain


@given(st.binary(max_size=60))
def test_snappy_of_any_bytes(data: bytes) -> None:
    """Any bytes are expanded to at most 32 times their size, or refused."""
    with suppress(MalformedError):
        assert len(decompressed(data)) <= 32 * len(data)


def test_a_compressed_index() -> None:
    """An index with compressed blocks, as TensorFlow 1.1 wrote them, is the same index."""
    plain = block(PAIRS)
    stream = varint(len(plain)) + b"".join(
        bytes([len(plain[k : k + 60]) - 1 << 2]) + plain[k : k + 60] for k in range(0, len(plain), 60)
    )
    assert read_index(table([stream], compression=1)) == read_index(table([plain]))


@pytest.mark.parametrize("size", [9 << 20, 300 << 20, 1 << 40])
def test_a_table_is_bounded_by_its_footer(size: int, tmp_path: Path) -> None:
    """A sparse file that ends with the footer of a small table is damaged or too large, and takes no memory."""
    data = table([block(PAIRS)])
    path = tmp_path / "m-1.index"
    with path.open("wb") as file:
        file.write(data[:-FOOTER_BYTES])
        file.seek(size - FOOTER_BYTES)
        file.write(data[-FOOTER_BYTES:])
    (tmp_path / "m-1.data-00000-of-00001").write_bytes(bytes(32))
    tracemalloc.start()
    try:
        with pytest.raises((CorruptError, UnsupportedError)):
            open_checkpoint(str(tmp_path / "m-1"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_large_index_is_read(tmp_path: Path) -> None:
    """An index of more bytes than a listing parses is a bundle by its footer, and is read when it is opened."""
    names = [f"{n:06}/" + "x" * 9000 for n in range(1000)]
    pairs = [(b"", HEADER), *((name.encode(), entry(1, [1], 4 * n, 4)) for n, name in enumerate(names))]
    blocks = [block(pairs[n : n + 1]) for n in range(len(pairs))]
    (tmp_path / "m-1.index").write_bytes(table(blocks))
    (tmp_path / "m-1.data-00000-of-00001").write_bytes(bytes(4000))
    assert (tmp_path / "m-1.index").stat().st_size > 8 << 20
    assert list_versions(str(tmp_path)).versions[0].state is State.COMPLETE
    with open_checkpoint(f"{tmp_path}@1") as checkpoint:
        assert len(checkpoint.variable_names) == 1000
