"""The inner loops: numpy is the reference, the compiled kernel gives the same bytes on any input."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import EDGE_IDS
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.sources.elasticdl import placement
from oracle import variable_owner as slow_owner
from slow_fingerprint import slow_sketch

ID_LISTS = st.lists(st.one_of(st.sampled_from(EDGE_IDS), st.integers(-(2**63), 2**63 - 1)), max_size=80)


@given(ID_LISTS)
def test_varints_round_trip(either_kernel: str, ids: list[int]) -> None:
    """Ids of every length decode to themselves, with the lengths that protobuf gives them."""
    data = b"".join(varint(i) for i in ids)
    values, lengths = bulk.decode_varints(np.frombuffer(data, np.uint8))
    assert values.tolist() == ids
    assert lengths.tolist() == [len(varint(i)) for i in ids]
    assert bulk.encode_varints(np.array(ids, np.int64)).tobytes() == data
    assert bulk.count_varints(np.frombuffer(data, np.uint8)) == len(ids)


@given(ID_LISTS, st.integers(1, 70_000), st.integers(-(2**63), 2**63 - 1))
def test_one_owner(either_kernel: str, ids: list[int], ps_num: int, owned: int) -> None:
    """Ids have one owner exactly when Python's modulo says so for each: near both ends of int64, too."""
    ps_id = owned % ps_num
    own = [i - i % ps_num + ps_id for i in ids]
    right = [owned, *(i for i in own if -(2**63) <= i < 2**63)]
    assert bulk.have_owner(np.array(right, np.int64), ps_num, ps_id)
    for i in ids:
        assert bulk.have_owner(np.array([*right, i], np.int64), ps_num, ps_id) == (i % ps_num == ps_id)


@given(ID_LISTS, st.integers(0, 40), st.integers(0, 12))
def test_where_a_long_varint_begins(either_kernel: str, ids: list[int], more: int, before: int) -> None:
    """The whole varints of some bytes are those before the last, unfinished one; of a long one, its first is named.

    A bad one before it is named instead: it is the first.
    """
    whole = b"".join(varint(i) for i in ids)
    data = np.frombuffer(whole + b"\x80" * more, np.uint8)
    if more < bulk.MAX_VARINT_BYTES:
        assert bulk.complete_prefix(data) == len(whole)
        return
    with pytest.raises(bulk.VarintError, match="longer than 10 bytes") as caught:
        bulk.complete_prefix(data)
    assert caught.value.position == len(whole)
    bad = whole + b"\x80" * (11 + before) + b"\x01\x05" + b"\x80" * more
    with pytest.raises(bulk.VarintError) as caught:
        bulk.complete_prefix(np.frombuffer(bad, np.uint8))
    assert caught.value.position == len(whole)


@given(ID_LISTS, st.integers(1, 400))
def test_grouping(either_kernel: str, ids: list[int], ps_num: int) -> None:
    """Rows and id bytes come out by owner, in their old order within one; owners are Python's modulo."""
    array = np.array(ids, np.int64)
    owner = placement.row_owners(array, ps_num)
    assert owner.tolist() == [i % ps_num for i in ids]
    data = bulk.encode_varints(array)
    rows, id_bytes = bulk.tally(owner, bulk.varint_lengths(array), ps_num)
    order = sorted(range(len(ids)), key=lambda k: ids[k] % ps_num)
    grouped = bulk.group_varints(data, bulk.varint_lengths(array), owner, id_bytes)
    assert grouped.tobytes() == b"".join(varint(ids[k]) for k in order)
    values = np.arange(len(ids) * 3, dtype=np.int64).astype(np.uint8).reshape(-1, 3)
    out = np.empty_like(values)
    bulk.group_rows(values, owner, rows, out)
    assert out.tolist() == values[order].tolist()


@given(ID_LISTS, st.integers(1, 130))
def test_order(either_kernel: str, ids: list[int], width: int) -> None:
    """Ids are sorted as numbers with a sign, equal ones in their old order, and rows follow them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "LEAST_RADIX", 0)
        patch.setattr(bulk, "NUMPY_SORTS_VECTORS", len(ids) % 2 == 0)
        array, again = np.array(ids, np.int64), np.array(ids, np.int64)
        order = bulk.order_ids(array)
        bulk.sort_ids(again)
    assert order.tolist() == sorted(range(len(ids)), key=ids.__getitem__)
    assert array.tolist() == again.tolist() == sorted(ids)
    rows = np.random.default_rng(width).integers(0, 256, (len(ids), width), np.uint8)
    assert np.array_equal(bulk.take_rows(rows, order), rows[order])


@given(ID_LISTS, ID_LISTS)
def test_ranges(either_kernel: str, ids: list[int], cuts: list[int]) -> None:
    """An id belongs to the range after the last cut that is not above it."""
    found = bulk.ranges_of(np.array(ids, np.int64), np.array(sorted(cuts), np.int64))
    assert found.tolist() == [sum(cut <= each for cut in cuts) for each in ids]


def test_many_ranges(either_kernel: str) -> None:
    """So do many ids among thousands of cuts: spread, crowded around one number, equal, and at both ends of int64."""
    random = np.random.default_rng(7)
    low, high = -(1 << 63), (1 << 63) - 1
    crowded = (random.standard_cauchy(6000) * 1000).astype(np.int64)
    for some in (random.integers(low, high, 6000), crowded, np.array([low, high, *crowded[:99]]), np.full(300, 5)):
        cuts = np.sort(some)
        ids = np.concatenate([random.integers(low, high, 5000), cuts, cuts[1:] - 1, crowded + 1])
        assert np.array_equal(bulk.ranges_of(ids, cuts), np.searchsorted(cuts, ids, "right"))


def test_order_of_many(either_kernel: str) -> None:
    """So do a hundred thousand ids, whose low, high or middle bits are all that differs."""
    random = np.random.default_rng(5)
    for low, high, step in ((0, 1 << 17, 1), (-(1 << 62), 1 << 62, 1), (-5, 5, 1 << 40), (0, 1 << 20, 1 << 30)):
        ids = random.integers(low, high, 100_000) * step
        array, again = ids.copy(), ids.copy()
        order = bulk.order_ids(array)
        bulk.sort_ids(again)
        assert np.array_equal(order, np.argsort(ids, kind="stable"))
        assert np.array_equal(array, np.sort(ids))
        assert np.array_equal(again, array)


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 31, 32, 33, 64, 100, 4095, 4096, 4097, 8200])
def test_sketch_is_its_definition(either_kernel: str, width: int) -> None:
    """The fast sketch equals the definition on docs/fingerprint.md, for every kind of row width."""
    random = np.random.default_rng(width)
    ids = np.array([0, -1, 2**63 - 1, *random.integers(-(2**63), 2**63 - 1, 4)], np.int64)
    values = random.integers(0, 256, (len(ids), width)).astype(np.uint8)
    sketch = bulk.new_sketch(width)
    bulk.sketch_rows(sketch, ids, values)
    assert sketch.tolist() == slow_sketch({int(i): v.tobytes() for i, v in zip(ids, values, strict=True)}, width)


@pytest.mark.parametrize("width", [0, 1, 2, 5, 64, 4095, 4096])
def test_sketch_of_rows_alone(width: int) -> None:
    """Each row by itself has the sketch that the definition gives it under the id 0, and no row of another."""
    values = np.random.default_rng(width).integers(0, 256, (3, width)).astype(np.uint8)
    alone = bulk.sketch_alone(values)
    assert [each.tolist() for each in alone] == [slow_sketch({0: row.tobytes()}, width) for row in values]
    assert bulk.sketch_alone(values[:0]).shape == (0, *bulk.new_sketch(width).shape)


@pytest.fixture(params=[2, 1, 0])
def simd_level(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with all instructions that the kernel knows, up to AVX2, and with plain C."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    bulk.kernel.set_simd_level(request.param)
    yield
    bulk.kernel.set_simd_level(2)


@pytest.mark.parametrize("rows", [1, 7, 8, 255, 256, 257, 1000])
def test_kernel_equals_numpy(simd_level: None, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Whatever instructions it uses, the kernel gives what numpy gives: varints of all lengths, owners, sketches."""
    random = np.random.default_rng(rows)
    ids = random.integers(-(2**63), 2**63 - 1, rows) >> random.integers(0, 63, rows)
    data = bulk.encode_varints(ids)
    widths = (1, 2, 16, 20, 31, 32, 33, 40, 63, 64, 65, 100, 128, 4100)
    values = {width: random.integers(0, 256, (rows, width)).astype(np.uint8) for width in widths}

    def everything() -> list[list[int]]:
        found: list[npt.NDArray[Any]] = [*bulk.decode_varints(data), bulk.varint_lengths(ids), bulk.encode_varints(ids)]
        found += [bulk.owners(ids, n) for n in (1, 3, 7, 8, 1000, 65536)]
        for n in (1, 3, 8, 12, 65535):
            own = [ids[ids % n == some % n] for some in ids[:2].tolist()]
            found.append(np.array([bulk.have_owner(some, n, k) for some in (*own, ids) for k in range(min(n, 12))]))
        for width, rows_of_width in values.items():
            sketch = bulk.new_sketch(width)
            bulk.sketch_rows(sketch, ids, rows_of_width)
            found.append(sketch.ravel())
        return [array.tolist() for array in found]

    compiled = everything()
    monkeypatch.setattr(bulk, "kernel", None)
    assert compiled == everything()


@pytest.mark.parametrize("bad", [b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 30, b"\x80"])
@pytest.mark.parametrize("before", [0, 1, 63, 64, 70, 200])
def test_kernel_finds_bad_varints(simd_level: None, bad: bytes, before: int) -> None:
    """Deep in many good varints a bad one is found where it begins."""
    after = b"" if bad == b"\x80" else b"\x05" * 100
    with pytest.raises(bulk.VarintError) as caught:
        bulk.decode_varints(np.frombuffer(b"\x05" * before + bad + after, np.uint8))
    assert caught.value.position == before


@given(st.text(max_size=40), st.integers(1, 100))
def test_variable_owner(name: str, ps_num: int) -> None:
    """A variable's owner is the hexadecimal digest read in base 32, whatever the name."""
    if any(0xD800 <= ord(c) < 0xE000 for c in name):
        return
    assert placement.variable_owner(name, ps_num) == slow_owner(name, ps_num)
    digits = hashlib.sha256(name.encode()).hexdigest()
    assert placement.variable_owner(name, ps_num) == int(digits, 32) % ps_num


@pytest.mark.parametrize("ps_num", [32, 64, 96])
def test_crowded_shards(ps_num: int) -> None:
    """With a multiple of 32, thousands of names reach exactly as many shards as `crowded_shards` returns."""
    owners = {placement.variable_owner(f"v{i}", ps_num) for i in range(4000)}
    assert len(owners) == placement.crowded_shards(ps_num)


@pytest.mark.parametrize("abi", [None, bulk.KERNEL_ABI + 1])
def test_a_kernel_for_other_code_is_not_used(abi: int | None) -> None:
    """A module that was built in place by another version stays unused; numpy does the same work."""
    other = "" if abi is None else f"; module.ABI = {abi}"
    code = (
        "import sys, types; module = types.ModuleType('k')"
        f"{other}; sys.modules['edl_ckpt.core.kernel._kernel'] = module\n"
        "import edl_ckpt.core.kernel as package; package._kernel = module\n"
        "from edl_ckpt.core.kernel import bulk; print(bulk.kernel)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None\n"
