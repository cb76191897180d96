"""Boxes and items that no job of this suite saves: cut in any way, strided, unlike their index, or very large."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.model.tables import Problem
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.dcp.metadata import SavedBox
from edl_ckpt.core.sources.dcp.tiling import untiled
from torch_items import Saved, boxes, tensor_pickle, write_step

USER = "model.ebc.embedding_bags.user.weight"
MOMENTUM = "optim.state.ebc.embedding_bags.user.weight.user.momentum1"
MODULE = "model.mc._managed_collision_modules.user."


def opened(folder: Path, parts: Sequence[Saved], *, partial: bool = False) -> Checkpoint:
    """Write a step, and open it."""
    write_step(folder / "step_1", parts)
    return open_checkpoint(f"{folder}@1", partial=partial)


def problems(folder: Path, parts: Sequence[Saved]) -> list[Problem]:
    """Write a step, and return what is wrong with it."""
    with opened(folder, parts, partial=True) as checkpoint:
        return [problem for shard in checkpoint.shards for problem in shard.problems]


def numbers(*shape: int, dtype: str = "float32") -> npt.NDArray[Any]:
    """Return an array of different numbers."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ((7,), [[3]]),
        ((40_000,), [[1000, 20_000]]),
        ((5, 6), [[2], []]),
        ((5, 6), [[], [1, 4]]),
        ((5, 6), [[1, 3], [2]]),
        ((4, 3, 5), [[1], [], [2]]),
        ((4, 3, 5), [[], [1], [2, 3]]),
        ((2, 3, 4, 5), [[1], [2], [1], [3]]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["dense", USER])
def test_boxes_are_put_together(tmp_path: Path, name: str, shape: tuple[int, ...], cuts: list[list[int]]) -> None:
    """A variable, and a table, that were saved in boxes over three ranks are what they were before."""
    array = numbers(*shape)
    with opened(tmp_path, boxes(name, array, cuts, ranks=3)) as checkpoint:
        if name == USER and len(shape) == 2:
            ids, values = checkpoint.table(name).to_numpy()
            assert np.array_equal(ids, np.arange(len(array)))
            assert np.array_equal(checkpoint.table(name).to_numpy([3, 1]).vectors, array[[3, 1]])
        else:
            values = checkpoint[name]
        assert np.array_equal(values, array)


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0)], ids=str)
def test_strides_are_obeyed(tmp_path: Path, order: tuple[int, ...]) -> None:
    """A tensor whose storage has its dimensions in another order is read in C order."""
    stored = numbers(*(3, 4, 5)[: len(order)])
    view = stored.transpose(order)
    strides = tuple(stride // 4 for stride in view.strides)
    zeros = (0,) * len(order)
    with opened(tmp_path, [Saved("dense", view.shape, zeros, view.shape, stored, strides=strides)]) as checkpoint:
        assert np.array_equal(checkpoint["dense"], view)


def test_a_transposed_table_has_its_rows(tmp_path: Path) -> None:
    """The rows of a transposed table, in boxes of columns, are those of the table."""
    array = numbers(6, 8)
    parts = boxes(USER, array, [[], [3]])
    for part in parts:
        rows, columns = part.sizes
        part.values, part.strides = array[:, part.offsets[1] :][:, :columns].T, (1, rows)
    with opened(tmp_path, parts) as checkpoint:
        assert np.array_equal(checkpoint.table(USER).to_numpy([5, 0]).vectors, array[[5, 0]])


def test_an_offset_in_the_storage_is_obeyed(tmp_path: Path) -> None:
    """A tensor that begins inside of its storage is read from there."""
    part = Saved(
        "dense",
        (2, 3),
        (0, 0),
        (2, 3),
        numbers(10),
        pickled=tensor_pickle("float32", (2, 3), (3, 1), first=4, length=10),
    )
    with opened(tmp_path, [part]) as checkpoint:
        assert checkpoint["dense"].tolist() == [[4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [((3, 0), (3, 4)), ((1, 0), (4, 4)), ((2, 1), (3, 3)), ((2, 0), (3, 3)), ((6, 0), (3, 4))],
    ids=str,
)
def test_boxes_must_tile_the_shape(tmp_path: Path, offsets: tuple[int, int], sizes: tuple[int, int]) -> None:
    """A gap, an overlap or a box outside of the shape is a problem that names the tensor."""
    parts = [Saved(name, (5, 4), o, s, numbers(*s)) for name, o, s in [("x", (0, 0), (2, 4)), ("x", offsets, sizes)]]
    (problem,) = problems(tmp_path, parts)
    assert (problem.subject, problem.code, problem.warning) == ("x", "malformed", False)
    assert "overlap, or leave a gap" in problem.message
    with pytest.raises(ValueError, match="overlap, or leave a gap"):
        open_checkpoint(f"{tmp_path}@1")


@given(st.data())
def test_each_element_must_be_in_one_box(data: st.DataObject) -> None:
    """The sums of corners say exactly whether boxes tile a shape, as counting each element does."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    low = st.tuples(*(st.integers(0, n) for n in shape))
    size = st.tuples(*(st.integers(0, n) for n in shape))
    pieces = [SavedBox(*box) for box in data.draw(st.lists(st.tuples(low, size), max_size=4))]
    count = np.zeros([2 * n for n in shape], np.int64)
    for piece in pieces:
        count[tuple(slice(o, o + s) for o, s in zip(piece.offsets, piece.sizes, strict=True))] += 1
    wanted = np.zeros_like(count)
    wanted[tuple(map(slice, shape))] = 1
    assert (untiled(shape, pieces) == "") == np.array_equal(count, wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pickled": tensor_pickle("float32", (4, 2), (2, 1))}, "the index has [2, 4] of float32"),
        ({"pickled": tensor_pickle("int32", (2, 4), (4, 1))}, "has [2, 4] of int32"),
        ({"pickled": tensor_pickle("float32", (2, 4), (4, 1), first=1)}, "does not fit"),
        ({"pickled": tensor_pickle("float32", (2, 4), (4, 1), length=9)}, "does not fit"),
        ({"pickled": tensor_pickle("float32", (2, 4), (8, 1))}, "does not fit"),
        ({"pickled": tensor_pickle("float32", (2, 4), (0, 0), length=1)}, "does not fit"),
        ({"pickled": tensor_pickle("float32", (2, 4), (1,))}, "strides for other dimensions"),
        ({"pickled": b"\x80\x02K\x01."}, "no tensor"),
        ({"pickled": b"\x80\x02cos\nsystem\n."}, "os.system"),
        ({"order": b"big"}, "big-endian"),
    ],
    ids=lambda change: str(change)[:40],
)
def test_items_must_agree_with_the_index(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """An item of another shape, dtype or size, or with another pickle, is a problem of its tensor and rank."""
    part = Saved("x", (2, 4), (0, 0), (2, 4), numbers(2, 4), rank=3)
    vars(part).update(change)
    (problem,) = problems(tmp_path, [part, Saved("y", (2,), (0,), (2,), numbers(2))])
    assert problem.subject == "x"
    assert words in problem.message


def test_items_that_overlap_are_a_problem(tmp_path: Path) -> None:
    """Two items of the same bytes are damage: no job writes them."""
    write_step(tmp_path / "step_1", [Saved(n, (2,), (0,), (2,), numbers(2)) for n in "xy"])
    path = tmp_path / "step_1/.metadata"
    length = (tmp_path / "step_1/__0_0.distcp").stat().st_size // 2
    stored = b"M" + length.to_bytes(2, "little")  # the length of the first, the offset and the length of the second
    before, *after = path.read_bytes().split(stored)
    path.write_bytes(stored.join([before, b"M\1\0".join(after[:2]), *after[2:]]))
    with open_checkpoint(f"{tmp_path}@1", partial=True) as checkpoint:
        (problem,) = checkpoint.shards[0].problems
        assert problem.code == "values-outside-content"


def test_quantised_tensors_are_items(tmp_path: Path) -> None:
    """A tensor whose values are not read is an item with its dtype: the bytes of its zip, in the shard of its rank."""
    parts = [
        Saved("x", (2,), (0,), (2,), numbers(2), rank=1, dtype="float32"),
        Saved("y", (2,), (0,), (2,), numbers(2)),
    ]
    parts[0].pickled = tensor_pickle("float32", (2,), (1,))
    parts[0].dtype = "qint8"
    with opened(tmp_path, parts) as checkpoint:
        (item,) = checkpoint.shards[1].items
        assert (item.name, item.dtype.name, item.shape) == ("x", "qint8", (2,))
        assert item.size_bytes == (tmp_path / "step_1/__1_0.distcp").stat().st_size
        assert list(checkpoint) == ["y"]


def test_ranks_that_are_there_are_read(tmp_path: Path) -> None:
    """Where a rank is missing, the rows of the others are read, and no variable that has a box there."""
    table, dense = numbers(9, 4), numbers(6, 2)
    parts = [*boxes(USER, table, [[3, 6], []], ranks=3), *boxes("dense", dense, [[2, 4], []], ranks=3)]
    write_step(tmp_path / "step_1", parts)
    (tmp_path / "step_1/__1_0.distcp").unlink()
    with open_checkpoint(f"{tmp_path}@1", partial=True) as checkpoint:
        assert checkpoint.table(USER).to_numpy().ids.tolist() == [0, 1, 2, 6, 7, 8]
        assert list(checkpoint) == []
        problems = [problem for shard in checkpoint.shards for problem in shard.problems]
        assert {(problem.subject, problem.code) for problem in problems} >= {("dense", "missing-file")}
        assert all(problem.warning for problem in problems)


def test_companions_have_the_rows_of_their_table(tmp_path: Path) -> None:
    """State of an optimizer with one number or several a row is a companion; state of another size is a variable."""
    parts = [*boxes(USER, numbers(6, 4), [[3], []], ranks=2), *boxes(MOMENTUM, numbers(6), [[3]], ranks=2)]
    parts += boxes(MOMENTUM.replace("momentum1", "exp_avg"), numbers(6, 4), [[], [2]], ranks=2)
    parts += boxes(MOMENTUM.replace("momentum1", "step"), numbers(1), [[]])
    with opened(tmp_path, parts) as checkpoint:
        slots = {info.slot: (info.companion_of, info.dim) for info in checkpoint.infos.values()}
        assert slots == {"": ("", 4), "momentum1": (USER, 1), "exp_avg": (USER, 4)}
        assert checkpoint.table(MOMENTUM).to_numpy([4]).vectors.tolist() == [[4]]
        assert list(checkpoint) == [MOMENTUM.replace("momentum1", "step")]


@pytest.mark.parametrize("live", [0, 1, 7, 4095, 4096, 4097, 9999, 10_000])
def test_the_end_of_live_ids_is_found(tmp_path: Path, live: int) -> None:
    """Of 10,000 sorted raw ids, those before the padding are the ids of the table."""
    padding = np.iinfo(np.int64).max
    ids = np.where(np.arange(10_000) < live, np.arange(10_000) * 5 - 7, padding)
    mapping = np.random.default_rng(live).permutation(10_000)
    parts = boxes(USER, numbers(10_000, 2), [[], []])
    parts += boxes(MODULE + "_mch_sorted_raw_ids", ids, [[]])
    parts += boxes(MODULE + "_mch_remapped_ids_mapping", mapping, [[]])
    with opened(tmp_path, parts) as checkpoint:
        found, vectors = checkpoint.table(USER).to_numpy()
        assert np.array_equal(found, ids[:live])
        assert np.array_equal(vectors, numbers(10_000, 2)[mapping[:live]])


def test_a_mapping_to_rows_that_are_not_there_is_damage(tmp_path: Path) -> None:
    """A raw id whose row lies outside of the table is a CorruptError that says where the mapping is."""
    parts = boxes(USER, numbers(4, 2), [[], []])
    parts += boxes(MODULE + "_mch_sorted_raw_ids", np.arange(4), [[]])
    parts += boxes(MODULE + "_mch_remapped_ids_mapping", np.array([0, 1, 2, 4]), [[]])
    with opened(tmp_path, parts) as checkpoint, pytest.raises(ValueError, match="row 3 is row 4 of 4"):
        checkpoint.table(USER).to_numpy()


def test_tables_of_virtual_size_have_their_own_ids(tmp_path: Path) -> None:
    """A table with `weight_id` beside it (KV ZCH) has these ids; its metadata is a companion."""
    ids = np.array([70, 5, 900, -3, 11], np.int64)
    parts = boxes(USER, numbers(5, 4), [[3], []], ranks=2) + boxes(USER + "_id", ids.reshape(5, 1), [[3], []], ranks=2)
    parts += boxes(USER.replace("weight", "metadata"), numbers(5, 1, dtype="int64"), [[3], []], ranks=2)
    parts += boxes(USER.replace("weight", "bucket"), numbers(2, dtype="int64"), [[1]], ranks=2)
    with opened(tmp_path, parts) as checkpoint:
        assert checkpoint.table(USER).to_numpy([900, 70]).vectors.tolist() == numbers(5, 4)[[2, 0]].tolist()
        assert checkpoint.table(USER.replace("weight", "metadata")).to_numpy([-3]).vectors.tolist() == [[3]]


def test_a_hash_of_ids_is_a_companion(tmp_path: Path) -> None:
    """What hash ZCH keeps for each row is a companion by row numbers."""
    parts = boxes(USER, numbers(4, 2), [[2], []], ranks=2)
    parts += boxes(MODULE + "_hash_zch_identities", numbers(4, 1, dtype="int64"), [[2], []], ranks=2)
    with opened(tmp_path, parts) as checkpoint:
        info = checkpoint.infos[MODULE + "_hash_zch_identities"]
        assert (info.companion_of, info.slot) == (USER, "identities")


def test_a_few_rows_of_20_gib_take_a_few_reads(tmp_path: Path) -> None:
    """Rows of a table whose values are a hole of 20 GiB are read without the others."""
    rows = (20 << 30) // 256
    try:
        checkpoint = opened(tmp_path, [Saved(USER, (rows, 64), (0, 0), (rows, 64), crc=0)])
    except OSError:
        pytest.skip("this file system has no files with holes of 20 GiB")
    with checkpoint:
        assert os.stat(tmp_path / "step_1/__0_0.distcp").st_size > 20 << 30
        assert not checkpoint.table(USER).to_numpy([0, 1, 40_000_000, rows - 1, 77]).vectors.any()
        assert checkpoint.bytes_read < 64 << 10


def test_two_small_reads_open_an_item(tmp_path: Path) -> None:
    """Opening reads the begin and the end of each large item, and what lies between neighbours with them."""
    parts = [Saved(f"t{n}", (1000, 100), (0, 0), (1000, 100)) for n in range(20)]
    with opened(tmp_path, parts) as checkpoint:
        assert checkpoint.bytes_read < 20 * 4096 + (tmp_path / "step_1/.metadata").stat().st_size
