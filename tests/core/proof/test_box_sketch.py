"""Boxes of an array add up to the sketch of the whole, whichever way it is cut."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.proof.box_sketch import ArrayForm, add_box, whole_sketch
from edl_ckpt.core.proof.fingerprint import ContentSketch

SHAPES = ((), (1,), (5000,), (3, 5), (1500, 3), (7, 4097), (2, 9000), (40, 30, 7), (513, 2, 4), (3, 2, 2, 1100))


def cuts(random: np.random.Generator, shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes (offsets, sizes) that tile a shape, cut at random in some dimensions."""
    ranges = []
    for size in shape:
        inner = random.integers(0, size + 1, random.integers(0, 3)).tolist() if random.random() < 0.7 else []
        ranges.append(list(pairwise(sorted([0, *inner, size]))))
    boxes = product(*ranges)
    return [(tuple(a for a, _ in box), tuple(b - a for a, b in box)) for box in boxes]


def of_boxes(array: np.ndarray[Any, Any], form: ArrayForm, boxes: Any) -> bulk.U32:
    """The sum of the sketches of boxes of an array."""
    sketch = bulk.new_sketch(form.row_bytes)
    for offsets, sizes in boxes:
        inside = tuple(slice(a, a + n) for a, n in zip(offsets, sizes, strict=True))
        data = np.frombuffer(array[inside].tobytes(), np.uint8)
        add_box(sketch, form, offsets, sizes, data)
    return sketch


@pytest.mark.parametrize("itemsize", [1, 2, 4, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_add_up(shape: tuple[int, ...], itemsize: int, either_kernel: str) -> None:
    """Of a variable and of a table, in boxes cut at random, the sum is the sketch of the whole."""
    random = np.random.default_rng(math.prod(shape) + itemsize)
    array = random.integers(0, 256, (*shape, itemsize), dtype=np.uint8)
    plain = array.reshape(-1)
    whole = ContentSketch()
    for start in range(0, len(plain), 1 << 20):
        whole.add_dense("x", len(plain), start, plain[start : start + (1 << 20)])
    ((_, variable),) = whole.variable_sums(["x"])
    for _ in range(6):
        boxes = cuts(random, shape)
        assert np.array_equal(of_boxes(array, ArrayForm(shape, itemsize), boxes), variable)
    if shape:
        table = bulk.new_sketch(len(plain) // shape[0])
        bulk.sketch_rows(table, np.arange(shape[0], dtype=np.int64), plain.reshape(shape[0], -1))
        for _ in range(6):
            boxes = cuts(random, shape)
            assert np.array_equal(of_boxes(array, ArrayForm(shape, itemsize, is_table=True), boxes), table)


@pytest.mark.parametrize("shape", [(0,), (4, 0)])
def test_arrays_without_bytes(shape: tuple[int, ...]) -> None:
    """An array without bytes has the sketch that an empty row has, and no box adds to it."""
    whole = ContentSketch()
    whole.add_dense("x", 0, 0, np.zeros(0, np.uint8))
    ((_, variable),) = whole.variable_sums(["x"])
    found = whole_sketch(ArrayForm(shape, 4))
    assert found is not None
    assert np.array_equal(found, variable)


def test_a_box_of_other_bytes() -> None:
    """Bytes that are no box of that size are refused."""
    with pytest.raises(ValueError, match="has no 3 bytes"):
        add_box(bulk.new_sketch(8), ArrayForm((2,), 4), (0,), (1,), np.zeros(3, np.uint8))
