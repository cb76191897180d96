"""Odd values of a version: NaN, infinite and huge ones."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType

HUGE_EXPONENT: Final = 100
"""A float of 2**100 or more in magnitude is 'huge': no trained weight is, a flipped exponent bit is."""
_FLOATS: Final = {  # name: (unsigned view, mask of the magnitude, least huge, infinity)
    "float16": ("<u2", 0x7FFF, 0x7C00, 0x7C00),
    "bfloat16": ("<u2", 0x7FFF, (127 + HUGE_EXPONENT) << 7, 0x7F80),
    "float32": ("<u4", 0x7FFFFFFF, (127 + HUGE_EXPONENT) << 23, 0x7F800000),
    "float64": ("<u8", 0x7FFFFFFFFFFFFFFF, (1023 + HUGE_EXPONENT) << 52, 0x7FF0000000000000),
}


def odd_values(data: bulk.U8, dtype: DType | None) -> npt.NDArray[np.int64]:
    """Return how many elements are NaN, infinite and huge: int64 [3]; integers are none of them.

    >>> from edl_ckpt.core.model.dtypes import DTYPES
    >>> odd_values(np.array([1, np.nan, -np.inf, 2.0**101], "<f4").view(np.uint8), DTYPES["float32"]).tolist()
    [1, 1, 1]
    """
    counts = np.zeros(3, np.int64)
    if dtype is None or dtype.name not in _FLOATS or not len(data):
        return counts
    view, mask, huge, infinity = _FLOATS[dtype.name]
    elements = data.view(view)
    if bulk.kernel is not None and not bulk.kernel.reaches(data, elements.itemsize, huge):
        return counts
    magnitude = elements & mask
    if int(magnitude.max()) < huge:
        return counts
    counts[0] = np.count_nonzero(magnitude > infinity)
    counts[1] = np.count_nonzero(magnitude == infinity)
    counts[2] = np.count_nonzero((magnitude >= huge) & (magnitude < infinity))
    return counts
