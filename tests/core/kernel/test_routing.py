"""Moving rows: the kernel does what numpy does, and both what a dictionary of rows does."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import EDGE_IDS
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.kernel.routing import PART_NUMBERS, Part
from edl_ckpt.core.sources.elasticdl.shard_layout import write_groups
from edl_ckpt.core.storage.files import PreallocatedFile
from examples import examples

TABLES = st.lists(
    st.tuples(st.sampled_from([0, 1, 3, 16, 64, 4097]), st.lists(st.sampled_from(EDGE_IDS), max_size=9, unique=True)),
    max_size=6,
)


class Bundle:
    """Small tables, in two parts each: their buffers, and where everything must go."""

    def __init__(self, tables: list[tuple[int, list[int]]], ps_num: int) -> None:
        self.tables, self.ps_num = tables, ps_num
        self.random = np.random.default_rng(len(tables))
        data, values, parts, sums = b"", b"", [], 0
        self.rows: list[dict[int, bytes]] = []
        for number, (width, ids) in enumerate(tables):
            rows = {i: self.random.bytes(width) for i in ids}
            self.rows.append(rows)
            for some in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
                varints = b"".join(map(varint, some))
                parts.append([len(data), len(varints), len(some), number, len(values), width, sums])
                data += varints
                values += b"".join(rows[i] for i in some)
            sums += routing.sketch_size(width)
        self.data, self.values = np.frombuffer(data, np.uint8), np.frombuffer(values, np.uint8)
        self.parts = np.array(parts, np.int64).reshape(-1, PART_NUMBERS)
        self.sums = np.zeros(sums, np.uint32)

    def counts(self) -> tuple[bulk.I64, bulk.I64, bulk.I64]:
        """Return what `tally_parts` finds."""
        rows, id_bytes = (np.zeros((len(self.tables), self.ps_num), np.int64) for _ in range(2))
        ids = np.zeros(int(self.parts[:, Part.ROWS].sum()), np.int64)
        assert routing.tally_parts(self.data, self.parts, self.ps_num, rows, id_bytes, ids) == -1
        return rows, id_bytes, ids


@examples(25)
@given(TABLES, st.integers(1, 9))
def test_parts(either_kernel: str, tables: list[tuple[int, list[int]]], ps_num: int) -> None:
    """Each row and id lands behind those before it of its table and target; the sketches are those of whole tables."""
    bundle = Bundle(tables, ps_num)
    rows, id_bytes, ids = bundle.counts()
    assert ids.tolist() == [i for _, some in tables for i in some]
    sizes = np.stack([rows * np.array([[w] for w, _ in tables], np.int64).reshape(-1, 1), id_bytes], 1)
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    places = ends - sizes
    values_at, ids_at = (np.ascontiguousarray(places[:, k]) for k in (0, 1))
    out = np.zeros(int(sizes.sum()), np.uint8)
    done = routing.move_parts(bundle.sums, bundle.data, bundle.values, bundle.parts, values_at, ids_at, out)
    assert done == -1
    assert np.array_equal(values_at, ends[:, 0])
    assert np.array_equal(ids_at, ends[:, 1])
    expected = b""
    for (_, some), own in zip(tables, bundle.rows, strict=True):
        expected += b"".join(own[i] for t in range(ps_num) for i in some if i % ps_num == t)
        expected += b"".join(varint(i) for t in range(ps_num) for i in some if i % ps_num == t)
    assert out.tobytes() == expected
    both = np.concatenate([bundle.values, bundle.data])
    apart = bundle.parts.copy()
    apart[:, Part.IDS] += len(bundle.values)
    again = np.zeros_like(bundle.sums)
    assert routing.sketch_parts(again, both, apart) == -1
    assert np.array_equal(again, bundle.sums)
    for (width, some), own, view in zip(
        tables, bundle.rows, list(routing.sketches(bundle.sums, bundle.parts))[::2], strict=True
    ):
        sketch = bulk.new_sketch(width)
        joined = np.frombuffer(b"".join(own[i] for i in some), np.uint8).reshape(len(some), width)
        if some:
            bulk.sketch_rows(sketch, np.array(some, np.int64), joined)
        assert np.array_equal(sketch, view)


def test_misfits(either_kernel: str) -> None:
    """A part with other ids than rows is returned, one with impossible numbers is a ValueError; nothing is moved."""
    bundle = Bundle([(4, [1, 2, 300]), (2, [7])], 2)
    rows = np.zeros((2, 2), np.int64)
    ids = np.zeros(5, np.int64)
    wrong = bundle.parts.copy()
    wrong[1, Part.ROWS] += 1
    assert routing.tally_parts(bundle.data, wrong, 2, rows, rows.copy(), ids) == 1
    places, out = np.zeros((2, 2), np.int64), np.zeros(3, np.uint8)
    moved = (bundle.sums, bundle.data, bundle.values, bundle.parts, places, places.copy(), out)
    assert routing.move_parts(*moved) == 0
    out[:] = 0
    for column, value in (
        (Part.IDS, -1),
        (Part.ID_BYTES, 1 << 40),
        (Part.ROWS, 1 << 62),
        (Part.TABLE, 2),
        (Part.VALUES, 1 << 62),
        (Part.ROW_BYTES, 1 << 62),
        (Part.SUMS, 1 << 62),
        (Part.SUMS, -(1 << 62)),
    ):
        wrong = bundle.parts.copy()
        wrong[2, column] = value
        with pytest.raises(ValueError, match="move_parts: part 2 is not inside of the data, the tables or the sketch"):
            routing.move_parts(bundle.sums, bundle.data, bundle.values, wrong, places, places.copy(), out)
    assert not out.any()


def test_parts_of_one_owner(either_kernel: str) -> None:
    """Where an owner is given, the first part with an id of another one is returned; each part has two halves."""
    bundle = Bundle([(4, [1, 4, -2, 301]), (0, [7, 9])], 3)
    both = np.concatenate([bundle.values, bundle.data])
    bundle.parts[:, Part.IDS] += len(bundle.values)
    for owner, bad in (((3, 1), 3), ((3, 0), 0), ((1, 0), -1)):
        assert routing.sketch_parts(np.zeros_like(bundle.sums), both, bundle.parts, *owner) == bad
    with pytest.raises(ValueError, match="ps_id must be below ps_num, got 1 of 1"):
        routing.sketch_parts(bundle.sums, both, bundle.parts, 1, 1)


@pytest.mark.parametrize("width", [1, 16, 64, 5000])
def test_rows(either_kernel: str, width: int) -> None:
    """Rows of one table go behind each other by owner, in their order, and into the sketch."""
    random = np.random.default_rng(width)
    ids = random.integers(-(1 << 40), 1 << 40, 700)
    values = random.integers(0, 256, (700, width), np.uint8)
    owner = bulk.owners(ids, 7)
    rows, _ = bulk.tally(owner, np.ones(700, np.uint8), 7)
    places = (np.cumsum(rows) - rows) * width
    out, sums, sketch = np.zeros(values.size, np.uint8), bulk.new_sketch(width), bulk.new_sketch(width)
    routing.move_rows(sums, ids, owner, values, places, out)
    bulk.sketch_rows(sketch, ids, values)
    assert np.array_equal(sums, sketch)
    assert np.array_equal(out.reshape(-1, width), values[np.argsort(owner, kind="stable")])
    assert places.tolist() == (np.cumsum(rows) * width).tolist()
    misfit: Any
    for misfit in (places + values.size, places - values.size - 1):
        with pytest.raises(ValueError, match=f"outside of the {values.size} bytes"):
            routing.move_rows(sums, ids, owner, values, misfit, out)
    with pytest.raises(ValueError, match="is out of range for 6 targets"):
        routing.move_rows(sums, ids, owner, values, np.zeros(6, np.int64), out)


@pytest.mark.parametrize("width", [1, 16, 64, 5000])
@pytest.mark.parametrize(("look", "gathered"), [(1, 1), (3, 700), (40, 90), (700, 2000)])
def test_rows_of_a_file(tmp_path: Path, width: int, look: int, gathered: int) -> None:
    """Rows go from file to file behind each other by owner, in their order, in steps of any sizes."""
    if not routing.can_move_file_rows():
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    random = np.random.default_rng(width)
    ids = random.integers(-(1 << 40), 1 << 40, 700)
    values = random.integers(0, 256, (700, width), np.uint8)
    for ps_num in (1, 7):
        owner = bulk.owners(ids, ps_num)
        (tmp_path / "source").write_bytes(b"head" + values.tobytes())
        source, *targets = opened = list(map(os.open, *zip(*places_of(tmp_path, ps_num), strict=True)))
        try:
            sums, sketch, at = bulk.new_sketch(width), bulk.new_sketch(width), np.full(ps_num, 3, np.int64)
            buffers = np.empty(look * width, np.uint8), np.empty(gathered * width, np.uint8)
            numbers = np.array(targets, np.int32)
            assert routing.move_file_rows(sums, ids, owner, (source, 4, width), numbers, at, buffers) is None
            again, rows = bulk.new_sketch(width), np.empty_like(values)
            assert routing.sketch_file_rows(again, ids, (source, 4), look * width, rows) == 0
        finally:
            for file in opened:
                os.close(file)
        bulk.sketch_rows(sketch, ids, values)
        assert np.array_equal(sums, sketch)
        assert np.array_equal(again, sketch)
        assert np.array_equal(rows, values)
        for number in range(ps_num):
            own = values[owner == number].tobytes()
            assert (tmp_path / f"target-{number}").read_bytes()[3:] == own
            assert at[number] == 3 + len(own)
            (tmp_path / f"target-{number}").unlink()


def places_of(folder: Path, ps_num: int) -> list[tuple[Path, int]]:
    """Return the source and the targets of a test, and how they are opened."""
    return [(folder / "source", os.O_RDONLY)] + [
        (folder / f"target-{n}", os.O_RDWR | os.O_CREAT) for n in range(ps_num)
    ]


@pytest.mark.usefixtures("either_kernel")
def test_groups_to_many_files(tmp_path: Path) -> None:
    """Each file gets its stretch at its offset, whoever writes; one that fails is named, and misfits are refused."""
    sizes = np.arange(40) % 5
    data, offsets = np.arange(sizes.sum(), dtype=np.uint8), np.arange(40)[::-1].copy()
    files = [PreallocatedFile(str(tmp_path / str(number)), 64) for number in range(40)]
    write_groups(files, data, sizes, offsets)
    for number, (file, own) in enumerate(zip(files, np.split(data, np.cumsum(sizes)[:-1]), strict=True)):
        assert (tmp_path / str(number)).read_bytes() == (bytes(39 - number) + own.tobytes()).ljust(64, b"\0")
        assert file.bytes_written == len(own)
    offsets[7] = -1
    with pytest.raises(EdlCkptError) as caught:
        write_groups(files, data, sizes, offsets)
    assert caught.value.path == files[7].path
    for file in files:
        file.close()
    kernel: Any = bulk.kernel
    if hasattr(kernel, "write_groups"):
        targets = np.full(40, -1, np.int32)
        for wrong in ((targets[1:], data, sizes, offsets), (targets, data, sizes, offsets[1:])):
            with pytest.raises(ValueError, match=r"(targets|offsets) has"):
                kernel.write_groups(*wrong)
        for many in (sizes + 1, -sizes, np.full(40, np.iinfo(np.int64).max)):
            with pytest.raises(ValueError, match="bytes, there are"):
                kernel.write_groups(targets, data, many, offsets)
        assert kernel.write_groups(targets, data, sizes, offsets) == (1, errno.EBADF)


def test_rows_of_a_file_that_fails(tmp_path: Path) -> None:
    """A read or a write that fails says which file it was and why; misfits are a ValueError before any of them."""
    if not routing.can_move_file_rows():
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    kernel: Any = bulk.kernel
    path = tmp_path / "file"
    path.write_bytes(bytes(99 * 8))
    good, read_only = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    ids, owner = np.arange(100), np.arange(100, dtype=np.uint16) % 2
    at, sums, buffers = np.zeros(2, np.int64), bulk.new_sketch(8), (np.empty(80, np.uint8), np.empty(80, np.uint8))

    def move(source: int, *targets: int, **others: Any) -> routing.FailedCall | None:
        numbers = np.array(targets, np.int32)
        given = {"ids": ids, "owner": owner, "at": at.copy(), "sums": sums, "buffers": buffers, **others}
        return routing.move_file_rows(
            given["sums"], given["ids"], given["owner"], (source, 0, 8), numbers, given["at"], given["buffers"]
        )

    try:
        assert move(good, good, read_only) == (1, errno.EBADF)
        far = np.full(2, np.iinfo(np.int64).max)
        failed = move(good, good, good, at=far)
        assert failed is not None
        assert failed.target == 0
        assert (far == np.iinfo(np.int64).max).all()  # a write that fails moves nothing on
        assert move(-1, good, good) == (-1, errno.EBADF)
        assert move(good, good, good) == (-1, -1)  # its last row is not there
        rows = np.empty((100, 8), np.uint8)
        assert routing.sketch_file_rows(sums, ids, (good, 0), 80, rows) == -1
        assert routing.sketch_file_rows(sums, ids, (-1, 0), 80, rows) == errno.EBADF
        with pytest.raises(ValueError, match="data has 792 bytes"):
            routing.sketch_file_rows(sums, ids, (good, 0), 80, rows[1:])
        with pytest.raises(ValueError, match="data has 800 bytes"):  # and no product of sizes overflows
            kernel.sketch_file_rows(sums, ids, good, 0, (1 << 63) - 1, 10, rows)
        starts = np.array([0, 16, 1 << 40], np.int64)
        assert kernel.read_runs(good, starts[:2], 8, rows[:2]) is None
        assert kernel.read_runs(good, starts, 8, rows[:3]) == (2, -1)
        assert kernel.read_runs(-1, starts, 8, rows[:3]) == (0, errno.EBADF)
        for run_bytes, message in ((0, "run_bytes must"), (9, "out has"), ((1 << 63) - 1, "out has")):
            with pytest.raises(ValueError, match=message):
                kernel.read_runs(good, starts, run_bytes, rows[:3])
        with pytest.raises(ValueError, match="sketch has"):
            routing.sketch_file_rows(sums[:, 1:].copy(), ids, (good, 0), 80, rows)
        path.write_bytes(bytes(100 * 8))
        assert move(good, good, good) is None
        before = path.read_bytes()
        misfit: Any
        for misfit, message in (
            ({"owner": owner[1:]}, "owner has 198 bytes"),
            ({"owner": owner + 1}, "owner 2 of row 1 is out of range for 2 targets"),
            ({"at": np.zeros(3, np.int64)}, "targets has 8 bytes"),
            ({"sums": sums[:, 1:].copy()}, "sketch has"),
            ({"buffers": (np.empty(7, np.uint8), buffers[1])}, "too small"),
            ({"buffers": (buffers[0], np.empty(7, np.uint8))}, "too small"),
        ):
            with pytest.raises(ValueError, match=message):
                move(good, read_only, read_only, **misfit)
        assert path.read_bytes() == before
    finally:
        os.close(good)
        os.close(read_only)
