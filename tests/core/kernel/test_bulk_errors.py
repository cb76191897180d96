"""The inner loops refuse arrays that do not fit each other: the kernel and numpy with the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.kernel import bulk

U8, U16, U32, I64 = np.uint8, np.uint16, np.uint32, np.int64


def array(dtype: Any, *values: int) -> Any:
    """An array of one dimension."""
    return np.array(values, dtype)


def zeros(dtype: Any, *shape: int) -> Any:
    """An array of zeros."""
    return np.zeros(shape, dtype)


def group_rows(rows: Any, owner: Any, rows_per_owner: Any) -> Any:
    """The rows ordered by owner."""
    out = np.full_like(rows, 77)
    bulk.group_rows(rows, owner, rows_per_owner, out)
    return out


MISFITS: list[tuple[Callable[[], Any], str]] = [
    (lambda: bulk.owners(array(I64, 1), 0), "owners: ps_num must be 1 to 65536, got 0"),
    (lambda: bulk.owners(array(I64, 1), 65537), "owners: ps_num must be 1 to 65536, got 65537"),
    (lambda: bulk.have_owner(array(I64, 1), 3, 3), "have_owner: ps_id must be below ps_num, got 3 of 3"),
    (lambda: bulk.have_owner(array(I64, 1), 0, 0), "have_owner: ps_id must be below ps_num, got 0 of 0"),
    (lambda: bulk.tally(zeros(U16, 2), zeros(U8, 3), 4), "tally: owner has 4 bytes, the 3 rows need 6"),
    (lambda: bulk.tally(zeros(U16, 3), zeros(U8, 1), 4), "tally: owner has 6 bytes, the 1 row needs 2"),
    (
        lambda: bulk.tally(array(U16, 1, 0, 9, 8), array(U8, 1, 1, 1, 1), 8),
        "tally: owner 9 of row 2 is out of range for 8 targets",
    ),
    (
        lambda: bulk.tally(array(U16, 1), array(U8, 1), 1),
        "tally: owner 1 of row 0 is out of range for 1 target",
    ),
    (
        lambda: group_rows(zeros(U8, 4, 0), zeros(U16, 4), array(I64, 4)),
        "group_rows: row_bytes must be at least 1, got 0",
    ),
    (
        lambda: group_rows(zeros(U8, 4, 8), zeros(U16, 3), array(I64, 4)),
        "group_rows: owner has 6 bytes, the 4 rows need 8",
    ),
    (
        lambda: bulk.group_rows(zeros(U8, 4, 32), zeros(U16, 4), array(I64, 4), zeros(U8, 3, 32)),
        "group_rows: out has 96 bytes, the 4 rows need 128",
    ),
    (
        lambda: group_rows(zeros(U8, 18, 2), np.arange(18).astype(U16) // 17 * 9, array(I64, 17, 1, 0, 0, 0, 0, 0, 0)),
        "group_rows: owner 9 of row 17 is out of range for 8 targets",
    ),
    (
        lambda: group_rows(zeros(U8, 1, 2), zeros(U16, 1), zeros(I64, 0)),
        "group_rows: owner 0 of row 0 is out of range for 0 targets",
    ),
    (
        lambda: group_rows(zeros(U8, 4, 2), array(U16, 0, 1, 0, 1), array(I64, 1, 3)),
        "group_rows: target 1 starts at row 1, expected 2",
    ),
    (
        lambda: bulk.group_varints(array(U8, 1, 2, 3), array(U8, 1, 1, 1), zeros(U16, 2), array(I64, 3)),
        "group_varints: owner has 4 bytes, the 3 rows need 6",
    ),
    (
        lambda: bulk.group_varints(zeros(U8, 12), array(U8, 1, 11), zeros(U16, 2), array(I64, 12)),
        "group_varints: the varint of row 1 has length 11, expected 1 to 10",
    ),
    (
        lambda: bulk.group_varints(zeros(U8, 1), array(U8, 0, 1), zeros(U16, 2), array(I64, 1)),
        "group_varints: the varint of row 0 has length 0, expected 1 to 10",
    ),
    (
        lambda: bulk.group_varints(zeros(U8, 1), array(U8, 1, 2), zeros(U16, 2), array(I64, 3)),
        "group_varints: data has 1 byte, the 2 lengths add up to 3",
    ),
    (
        lambda: bulk.group_varints(zeros(U8, 3), array(U8, 1), zeros(U16, 1), array(I64, 3)),
        "group_varints: data has 3 bytes, the 1 length adds up to 1",
    ),
    (
        lambda: bulk.group_varints(zeros(U8, 3), array(U8, 1, 2), array(U16, 0, 2), array(I64, 1, 2)),
        "group_varints: owner 2 of row 1 is out of range for 2 targets",
    ),
    (
        lambda: bulk.group_varints(zeros(U8, 3), array(U8, 1, 2), array(U16, 1, 0), array(I64, 1, 2)),
        "group_varints: target 1 starts at byte 1, expected 2",
    ),
    (
        lambda: bulk.sketch_rows(bulk.new_sketch(4), zeros(I64, 2), zeros(U8, 3, 4)),
        "sketch_rows: ids has 16 bytes, the 3 rows need 24",
    ),
    (
        lambda: bulk.sketch_rows(zeros(U32, 8, 1), zeros(I64, 2), zeros(U8, 2, 4)),
        "sketch_rows: sketch has 1 column, rows of 4 bytes need 3",
    ),
    (
        lambda: bulk.sketch_rows(zeros(U32, 8, 2), zeros(I64, 2), zeros(U8, 2, 5000)),
        "sketch_rows: sketch has 2 columns, rows of 5000 bytes need 2049",
    ),
    (
        lambda: bulk.ranges_of(zeros(I64, 1), zeros(I64, 65_536)),
        "ranges_of: 65536 cuts are more than 65535",
    ),
    (
        lambda: bulk.ranges_of(zeros(I64, 1), array(I64, 1, 2**40, -(2**63), 5)),
        "ranges_of: cut 2 is below the one before it",
    ),
    (
        lambda: bulk.take_rows(zeros(U8, 3, 2), array(U32, 2, 3, 1)),
        "take_rows: place 3 of row 1 is out of range for 3 rows",
    ),
    (
        lambda: bulk.take_rows(zeros(U8, 3, 0), array(U32, 2)),
        "take_rows: row_bytes must be at least 1, got 0",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISFITS, ids=[message for _, message in MISFITS])
def test_misfit_is_named(either_kernel: str, call: Callable[[], Any], message: str) -> None:
    """The error names the function, the argument, the expected value and the one that came."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        call()
    assert str(caught.value) == message


def test_refusal_changes_nothing(either_kernel: str) -> None:
    """What a refused call was to fill stays as it was."""
    out = np.full((4, 2), 77, U8)
    with pytest.raises(ValueError, match="owner 9 of row 3 is out of range for 2 targets"):
        bulk.group_rows(zeros(U8, 4, 2), array(U16, 0, 1, 1, 9), array(I64, 1, 3), out)
    with pytest.raises(ValueError, match="target 1 starts at row 2, expected 1"):
        bulk.group_rows(zeros(U8, 4, 2), array(U16, 0, 1, 1, 1), array(I64, 2, 2), out)
    assert (out == 77).all()
    sketch = bulk.new_sketch(5000)
    with pytest.raises(ValueError, match="ids has 8 bytes"):
        bulk.sketch_rows(sketch, zeros(I64, 1), np.ones((2, 5000), U8))
    assert not sketch.any()


KERNEL_MISFITS: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda k: k.decode_varints(zeros(U8, 3), zeros(I64, 2), zeros(U8, 3)),
        "decode_varints: values has 16 bytes, the 3 rows need 24",
    ),
    (
        lambda k: k.varint_lengths(zeros(I64, 2), zeros(U8, 3)),
        "varint_lengths: values has 16 bytes, the 3 rows need 24",
    ),
    (
        lambda k: k.encode_varints(array(I64, 128), zeros(U8, 1)),
        "encode_varints: out has 1 byte, the values need 2",
    ),
    (lambda k: k.owners(zeros(I64, 2), 3, zeros(U16, 3)), "owners: ids has 16 bytes, the 3 rows need 24"),
    (
        lambda k: k.tally(zeros(U16, 1), zeros(U8, 1), zeros(I64, 2), zeros(I64, 1)),
        "tally: id_bytes has 8 bytes, rows has 16",
    ),
    (
        lambda k: k.group_rows(zeros(U8, 3), 2, zeros(U16, 1), zeros(I64, 1), zeros(U8, 3)),
        "group_rows: values has 3 bytes, not a multiple of row_bytes 2",
    ),
    (
        lambda k: k.group_rows(zeros(U8, 3), -1, zeros(U16, 1), zeros(I64, 1), zeros(U8, 3)),
        "group_rows: row_bytes must be at least 1, got -1",
    ),
    (
        lambda k: k.group_rows(zeros(U8, 2), 1, zeros(U16, 2), array(I64, -1), zeros(U8, 2)),
        "group_rows: target 0 starts at row -1, expected 0",
    ),
    (
        lambda k: k.group_varints(zeros(U8, 1), array(U8, 1), zeros(U16, 1), zeros(I64, 1), zeros(U8, 2)),
        "group_varints: out has 2 bytes, data has 1",
    ),
    (
        lambda k: k.sketch(zeros(U32, 8, 3), zeros(I64, 1), zeros(U8, 1), 0, 0, 0, 0),
        "sketch_rows: row_bytes must be at least 1, got 0",
    ),
    (
        lambda k: k.sketch(zeros(U32, 8, 3), zeros(I64, 1), zeros(U8, 3), 2, 0, 2, 0),
        "sketch_rows: values has 3 bytes, not a multiple of row_bytes 2",
    ),
    (
        lambda k: k.sketch(zeros(U32, 8, 3), zeros(I64, 1), zeros(U8, 4), 4, 2, 3, 0),
        "sketch_rows: 3 bytes from byte 2 on are not inside of rows of 4 bytes",
    ),
    (
        lambda k: k.sketch(zeros(U32, 8, 3), zeros(I64, 1), zeros(U8, 4), 4, -1, 1, 0),
        "sketch_rows: 1 byte from byte -1 on is not inside of rows of 4 bytes",
    ),
]


@pytest.mark.parametrize(("call", "message"), KERNEL_MISFITS, ids=[message for _, message in KERNEL_MISFITS])
def test_kernel_trusts_no_buffer(call: Callable[[Any], Any], message: str) -> None:
    """The compiled kernel checks what `bulk` never passes, too: no call writes outside of a buffer."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        call(bulk.kernel)
    assert str(caught.value) == message


def test_kernel_names_its_function() -> None:
    """A call with too few arguments names the function of the kernel."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    for name in ("decode_varints", "owners", "tally", "group_rows", "group_varints", "sketch", "set_simd_level"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) takes exactly \d arguments? \(0 given\)$"):
            getattr(bulk.kernel, name)()


@pytest.mark.parametrize(
    ("data", "position", "message"),
    [
        (b"\x80", 0, "a varint is cut short"),
        (b"\x01\xff", 1, "a varint is cut short"),
        (b"\x05" + b"\x80" * 9, 1, "a varint is cut short"),
        (b"\x05" + b"\x80" * 10, 1, "a varint is longer than 10 bytes"),
        (b"\xff" * 10 + b"\x01", 0, "a varint is longer than 10 bytes"),
        (b"\xff" * 9 + b"\x02", 0, "a varint has more than 64 bits"),
        (b"\x05" + b"\xff" * 9 + b"\x7f" + b"\xff" * 12 + b"\x80", 1, "a varint has more than 64 bits"),
    ],
)
def test_bad_varint_is_named(either_kernel: str, data: bytes, position: int, message: str) -> None:
    """The first bad varint is reported: where it starts, and which of the three things is wrong with it."""
    with pytest.raises(bulk.VarintError) as caught:
        bulk.decode_varints(np.frombuffer(data, U8))
    assert (str(caught.value), caught.value.position) == (message, position)


def outcomes(monkeypatch: pytest.MonkeyPatch, call: Callable[[], list[Any]]) -> tuple[Any, Any]:
    """What a call returns or raises with the compiled kernel, and what with numpy alone."""

    def outcome() -> Any:
        try:
            return [found.tolist() for found in call()]
        except ValueError as error:
            return type(error), str(error), getattr(error, "position", None)

    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    compiled = outcome()
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "kernel", None)
        return compiled, outcome()


@given(st.lists(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]), max_size=100))
def test_any_bytes_decode_alike(monkeypatch: pytest.MonkeyPatch, data: list[int]) -> None:
    """For any bytes the kernel and numpy give the same numbers, or the same error at the same place."""
    compiled, plain = outcomes(monkeypatch, lambda: list(bulk.decode_varints(array(U8, *data))))
    assert compiled == plain


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=12),
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_any_groups_fare_alike(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, int]], claimed: list[int], spare: int
) -> None:
    """For any owners, lengths and sizes the kernel and numpy give the same arrays, or the same error."""
    owner, lengths = array(U16, *(o for o, _ in rows)), array(U8, *(n for _, n in rows))
    data = np.arange(int(lengths.sum()) + spare // 2).astype(U8)
    values = np.arange(len(rows) * 3).astype(U8).reshape(-1, 3)
    true = np.bincount(owner, minlength=len(claimed))
    for call in (
        lambda: list(bulk.tally(owner, lengths, len(claimed))),
        lambda: [group_rows(values, owner, array(I64, *claimed))],
        lambda: [group_rows(values, owner, true)],
        lambda: [bulk.group_varints(data, lengths, owner, array(I64, *claimed))],
        lambda: [bulk.group_varints(data, lengths, owner, np.bincount(owner, lengths, len(claimed)).astype(I64))],
    ):
        compiled, plain = outcomes(monkeypatch, call)
        assert compiled == plain


@pytest.mark.skipif(bulk.kernel is None, reason="the kernel is not compiled")
@pytest.mark.parametrize(
    "call",
    [
        lambda kernel, some: kernel.move_rows(
            zeros(U32, 8, 2), some[:2], zeros(U16, 2), zeros(U8, 2, 2), 2, some[2:3], some.view(U8)
        ),
        lambda kernel, some: kernel.group_rows(some.view(U8), 8, zeros(U16, len(some)), some[:1], some.view(U8)),
        lambda kernel, some: kernel.sort_ids(some, some.view(U32)[: len(some)]),
        lambda kernel, some: kernel.tally(zeros(U16, 3), zeros(U8, 3), some[:2], some[1:3]),
    ],
)
def test_what_is_written_overlaps_nothing(call: Callable[[Any, Any], None]) -> None:
    """The kernel refuses to write into an array that it has checked or reads: what it relies on would change."""
    some = np.arange(64, dtype=I64)
    with pytest.raises(ValueError, match="overlap, and one of them is written"):
        call(bulk.kernel, some)
    assert some.tolist() == list(range(64))


@pytest.mark.skipif(bulk.kernel is None, reason="the kernel is not compiled")
def test_arrays_that_are_only_read_may_overlap() -> None:
    """The same array twice is no fault where both are read; neither are neighbours of what is written."""
    some = np.array([3, 1, 2, 9], I64)
    bulk.sort_ids(some[:3])
    assert bulk.ranges_of(some, some).tolist() == [1, 2, 3, 4]
