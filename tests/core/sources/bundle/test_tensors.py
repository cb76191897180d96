"""What becomes of the tensors of an index: slices that tile a shape or do not, lying sizes, and names of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle_files import HEADER, block, entry, masked, table, varint, write_bundle
from edl_ckpt.core import look_up, open_checkpoint, resolve, verify_version
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, UnsupportedError
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.sources.bundle.index import Slice, slice_key
from examples import examples


def slice_message(one: Slice) -> bytes:
    """Return the field `slices` of an entry."""
    extents = b""
    for start, size in one:
        numbers = b"\x08" + varint(start) + (b"" if size is None else b"\x10" + varint(size))
        extents += b"\x0a" + varint(len(numbers)) + numbers
    return b"\x3a" + varint(len(extents)) + extents


def save_slices(prefix: Path, values: Any, slices: Sequence[Slice], *, lost: int = 0, more: bool = False) -> None:
    """Write a variable `v` in slices, one data file, the last ones first; so many of them are not in the index.

    With `more`, there is a whole variable `w` too.
    """
    pairs, data = [(b"", HEADER)], b""
    pairs.append((b"v", entry(1, values.shape, 0, 0, more=b"".join(map(slice_message, slices)))))
    for one in reversed(slices):
        part = values[tuple(slice(start, None if size is None else start + size) for start, size in one)]
        octets = np.ascontiguousarray(part).tobytes()
        message = entry(1, part.shape, len(data), len(octets), crc=masked(octets))
        pairs.append((slice_key(b"v", one), message))
        data += octets
    if more:
        octets = np.array([1, 2], np.float32).tobytes()
        pairs.append((b"w", entry(1, [2], len(data), len(octets), crc=masked(octets))))
        data += octets
    pairs = [*sorted({key: value for key, value in pairs if key}.items())]
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    index = block([(b"", HEADER), *pairs[: len(pairs) - 1 - lost], pairs[-1]])
    prefix.with_name(f"{prefix.name}.index").write_bytes(table([index]))


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    """Return where a dimension is cut."""
    return st.lists(st.integers(1, size - 1), unique=True, max_size=3).map(lambda inner: [0, *sorted(inner), size])


@st.composite
def sliced(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Slice]]:
    """Return a shape, and slices that tile it: a grid of any number of dimensions."""
    shape = tuple(draw(st.lists(st.integers(2, 6), min_size=1, max_size=4)))
    axes = [[(a, b - a) for a, b in pairwise(draw(cuts(size)))] for size in shape]
    whole = [[(0, None)] if len(axis) == 1 else axis for axis in axes]
    return shape, draw(st.permutations([tuple(one) for one in product(*whole)]))


@examples(20)
@given(sliced())
def test_slices_in_any_grid(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[tuple[int, ...], list[Slice]]
) -> None:
    """A variable that is cut along any of its dimensions is read whole, and any part of it as the part that it is."""
    shape, slices = case
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    folder = tmp_path_factory.mktemp("sliced")
    save_slices(folder / "m", values, slices)
    with open_checkpoint(str(folder / "m")) as checkpoint:
        np.testing.assert_array_equal(checkpoint["v"], values)
        shard, found = checkpoint.find_variable("v")
        reader = checkpoint.reader(shard, found.values)
        start = found.values.start
        for first in range(0, values.nbytes, 7):
            assert reader.read(start + first, min(9, values.nbytes - first)) == values.tobytes()[first : first + 9]


def test_slices_in_order_are_one_extent(tmp_path: Path) -> None:
    """Slices that lie in one file in the order of their rows need no gather."""
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    save_slices(tmp_path / "m", values, [((4, 2), (0, None)), ((2, 2), (0, None)), ((0, 2), (0, None))])
    with open_checkpoint(str(tmp_path / "m")) as checkpoint:
        np.testing.assert_array_equal(checkpoint["v"], values)
        assert not checkpoint.shards[0].gathered


@pytest.mark.parametrize(
    ("slices", "lost", "words"),
    [
        ([((0, 2), (0, None)), ((4, 2), (0, None))], 0, "do not tile"),
        ([((0, 4), (0, None)), ((2, 4), (0, None))], 0, "do not tile"),
        ([((0, 3), (0, 2)), ((0, 3), (2, 2)), ((3, 3), (0, 2)), ((2, 3), (2, 2))], 0, "do not tile"),
        ([((0, 3), (0, None)), ((3, 3), (0, None))], 1, "lacks its slice"),
        ([((0, 3), (0, None)), ((3, 4), (0, None))], 0, "lacks its slice"),
        ([((0, 3),), ((3, 3),)], 0, "lacks its slice"),
    ],
)
def test_slices_that_do_not_fit(tmp_path: Path, slices: list[Slice], lost: int, words: str) -> None:
    """Slices with a gap or an overlap, beyond the shape or not in the index are damage, with the name of the index."""
    save_slices(tmp_path / "m", np.zeros((6, 4), np.float32), slices, lost=lost)
    with pytest.raises(CorruptError, match=words) as caught, open_checkpoint(str(tmp_path / "m")):
        pass
    assert "m.index: damaged index" in str(caught.value)


def test_a_variable_without_all_slices_leaves_the_rest(tmp_path: Path) -> None:
    """A variable whose slices leave a gap is a finding with its name; the others are read, as TensorFlow reads them."""
    slices: list[Slice] = [((0, 2), (0, None)), ((4, 2), (0, None))]
    save_slices(tmp_path / "m", np.zeros((6, 4), np.float32), slices, more=True)
    findings = verify_version(resolve(str(tmp_path / "m")), level="deep").findings
    assert [(finding.severity, finding.subject) for finding in findings] == [("error", "v")]
    with open_checkpoint(str(tmp_path / "m"), partial=True) as checkpoint:
        assert checkpoint["w"].tolist() == [1, 2]
        assert not checkpoint.lost


def test_more_pieces_than_memory_has_room_for(tmp_path: Path) -> None:
    """Slices that could only be gathered from 131,072 boxes each are unsupported, and take no time."""
    size = 1 << 17
    slices = [((0, None), (a, 1), (0, None), (b, 1)) for a in (0, 1) for b in (0, 1)]
    pairs = [(slice_key(b"v", one), entry(1, (size, 1, 3, 1), 0, 12 * size)) for one in slices]
    whole = entry(1, (size, 2, 3, 2), 0, 0, more=b"".join(map(slice_message, slices)))
    (tmp_path / "m.index").write_bytes(table([block([(b"", HEADER), *sorted(pairs), (b"v", whole)])]))
    with (tmp_path / "m.data-00000-of-00001").open("wb") as file:
        file.truncate(12 * size)
    with pytest.raises(UnsupportedError, match="too many pieces"), open_checkpoint(str(tmp_path / "m")):
        pass


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (entry(1, [4], 0, 12), "has 12 bytes; expected float32"),
        (entry(1, [1 << 62, 1 << 62], 0, 12), "has 12 bytes; expected float32"),
        (entry(1, [], 0, 0), "has 0 bytes; expected float32"),
    ],
)
def test_a_size_that_is_not_that_of_the_shape(tmp_path: Path, message: bytes, words: str) -> None:
    """A tensor whose bytes are not those of its dtype and shape is damage, with its data file and offset."""
    (tmp_path / "m.index").write_bytes(table([block([(b"", HEADER), (b"v", message)])]))
    data = tmp_path / "m.data-00000-of-00001"
    data.write_bytes(bytes(64))
    with pytest.raises(CorruptError, match=words) as caught, open_checkpoint(str(tmp_path / "m")):
        pass
    assert (caught.value.path, caught.value.offset) == (str(data), 0)


def test_a_tensor_beyond_its_file(tmp_path: Path) -> None:
    """A data file that ends before a tensor does makes the bundle incomplete; read in part, the shard is left out."""
    write_bundle(tmp_path / "m", {"a": np.ones(10), "b": np.ones(10)})
    with (tmp_path / "m.data-00000-of-00001").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(IncompleteError), open_checkpoint(str(tmp_path / "m")):
        pass
    with open_checkpoint(str(tmp_path / "m"), partial=True) as checkpoint:
        ((message, offset),) = ((lost.message, lost.offset) for lost in checkpoint.lost)
    assert "'b' ends after the end" in message
    assert (offset, checkpoint.shards) == (80, ())


KEYS = np.array([9, -4, 7])
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def index_of(folder: Path, arrays: Mapping[str, Any]) -> ShardIndex:
    write_bundle(folder / "m", arrays)
    with open_checkpoint(str(folder / "m")) as checkpoint:
        return checkpoint.shards[0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"t-keys": KEYS},
        {"t-keys": KEYS, "t-values": ROWS[:2]},
        {"t-keys": KEYS, "t-values": ROWS[:, 0]},
        {"t-keys": KEYS, "t-values": ROWS[:, :0]},
        {"t-keys": KEYS.reshape(3, 1), "t-values": ROWS},
        {"t-keys": KEYS.astype(np.float32), "t-values": ROWS},
        {"t-keys": KEYS.astype(np.int16), "t-values": ROWS},
        {"t.keys": KEYS, "t.values": ROWS},
    ],
)
def test_what_is_no_table(tmp_path: Path, arrays: dict[str, Any]) -> None:
    """Keys without as many rows, of more dimensions or of another dtype than ids have stay variables."""
    shard = index_of(tmp_path, arrays)
    assert [entry.name for entry in shard.variables] == sorted(arrays)
    assert shard.tables == ()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32])
def test_ids_of_each_dtype(tmp_path: Path, dtype: Any) -> None:
    """Keys of each dtype that ids have are found; an uint64 is the int64 of the same bits."""
    write_bundle(tmp_path / "m", {"VAR:0-keys": KEYS.astype(dtype), "VAR:0-values": ROWS})
    found = look_up(str(tmp_path / "m"), "VAR:0", [-4, 9])
    np.testing.assert_array_equal(found.vectors, ROWS[[1, 0]])


def test_parts_and_companions(tmp_path: Path) -> None:
    """Parts are one table; what only one part has, or has in another length, is no companion; other keys, no slot."""
    arrays = {
        "a_mht_1of2-keys": KEYS,
        "a_mht_1of2-values": ROWS,
        "a_mht_2of2-keys": KEYS + 100,
        "a_mht_2of2-values": ROWS + 1,
        "b/part_0-keys": KEYS,
        "b/part_0-values": ROWS,
        "b/part_0-freqs": np.arange(3),
        "b/part_0-versions": np.arange(4),
        "b/part_0/m/v-keys": KEYS,
        "b/part_0/m/v-values": ROWS,
        "b/part_0/w-keys": KEYS + 1,
        "b/part_0/w-values": ROWS,
        "c/part_0-keys": KEYS,
        "c/part_0-values": ROWS,
        "c/part_1-keys": KEYS,
        "c/part_1-values": ROWS.astype(np.float64),
    }
    shard = index_of(tmp_path, arrays)
    infos = {info.name: (info.companion_of, info.slot) for info in shard.infos}
    assert infos == {
        "a": ("", ""),
        "b": ("", ""),
        "b-freqs": ("b", "freqs"),
        "b/m/v": ("b", "m/v"),
        "b/w": ("", ""),
        "c/part_0": ("", ""),
        "c/part_1": ("", ""),
    }
    assert [entry.name for entry in shard.variables] == ["b/part_0-versions"]
    rows = look_up(str(tmp_path / "m"), "a", [7, 107])
    np.testing.assert_array_equal(rows.vectors, [ROWS[2], ROWS[2] + 1])
