"""Odd values, beside numpy's own `isnan` and `isinf`: with the kernel and without it, wherever they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.proof.values import odd_values

_HUGE = {"float16": None, "float32": 2.0**100, "float64": 2.0**100}
_BELOW = {"float16": 65504, "float32": np.nextafter(np.float32(2.0**100), np.float32(0)), "float64": 2.0**100 - 2.0**47}


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("level", [2, 0])
def test_every_place(either_kernel: str, name: str, level: int) -> None:
    """An odd element is found at any place of any number of elements, on any byte, and no other element is odd."""
    if either_kernel == "numpy" and level != 2:
        return
    if bulk.kernel is not None:
        bulk.kernel.set_simd_level(level)
    try:
        for count in (1, 2, 15, 16, 17, 33, 4095, 4097):
            for at in {0, count // 2, count - 1}:
                for odd in (np.nan, -np.nan, np.inf, -np.inf, _HUGE[name], _BELOW[name], -1.5):
                    values: Any = np.full(count, -0.0, name)
                    values[at] = 0 if odd is None else odd
                    raw = np.zeros(values.nbytes + 1, np.uint8)
                    raw[1:] = values.view(np.uint8)
                    huge = _HUGE[name] is not None and odd == _HUGE[name]
                    expected = [int(np.isnan(values).sum()), int(np.isinf(values).sum()), int(huge)]
                    assert odd_values(raw[1:], DTYPES[name]).tolist() == expected, (count, at, odd)
    finally:
        if bulk.kernel is not None:
            bulk.kernel.set_simd_level(2)


def test_all_at_once(either_kernel: str) -> None:
    """Odd elements are counted by their kind, bfloat16 too; integers and nothing have none."""
    values = np.array([1, np.nan, -np.inf, 2.0**101, -(2.0**120), 3], np.float32)
    assert odd_values(values.view(np.uint8), DTYPES["float32"]).tolist() == [1, 1, 2]
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert odd_values(halves.view(np.uint8), DTYPES["bfloat16"]).tolist() == [1, 1, 2]
    assert odd_values(values.view(np.uint8), DTYPES["int32"]).tolist() == [0, 0, 0]
    assert odd_values(np.zeros(0, np.uint8), DTYPES["float32"]).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((bytes(8), 3, 1), "reaches: itemsize is 3, expected 2, 4 or 8"),
        ((bytes(7), 4, 1), "reaches: data has 7 bytes, expected whole elements of 4"),
        ((bytes(8), 4, 0), "reaches: least is 0, no magnitude of 4 bytes"),
        ((bytes(8), 2, 1 << 15), "reaches: least is 32768, no magnitude of 2 bytes"),
    ],
)
def test_kernel_refuses(arguments: tuple[bytes, int, int], message: str) -> None:
    """The kernel looks at whole elements only, and at magnitudes that they can have."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    with pytest.raises(ValueError, match=message):
        bulk.kernel.reaches(*arguments)
