"""Floats in another dtype: rounded to nearest even, and counted where they become infinite."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.reading.blocks import as_dtype

_CAST_BYTES: Final = 1 << 20
"""Bytes that are cast at a time: what a cast makes on its way stays in the cache."""


def cast_bytes(data: bulk.U8, dtype: DType, target: DType) -> tuple[bulk.U8, int]:
    """Return bytes of elements in another dtype, and how many of them became infinite."""
    if target == dtype or not len(data):
        return data, 0
    out = np.empty(len(data) // dtype.itemsize * target.itemsize, np.uint8)
    overflowed = 0
    for start in range(0, len(data), _CAST_BYTES):
        at = start // dtype.itemsize * target.itemsize
        cast, more = cast_floats(as_dtype(data[start : start + _CAST_BYTES], dtype), target.name)
        out[at : at + len(cast)] = cast
        overflowed += more
    return out, overflowed


def cast_floats(values: npt.NDArray[np.generic], dtype: str) -> tuple[bulk.U8, int]:
    """Return floats in another dtype as bytes, rounded to nearest even, and how many finite values became infinite.

    >>> cast_floats(np.array([1.0, 1e9]), "float16")[1]
    1
    """
    with np.errstate(all="ignore"):
        finite = np.isfinite(values.astype(np.float64))
        if dtype != "bfloat16":
            out = values.astype(np.dtype(dtype).newbyteorder("<"))
            overflowed = int(np.count_nonzero(finite & ~np.isfinite(out)))
            return np.ascontiguousarray(out).reshape(-1).view(np.uint8), overflowed
        single = np.ascontiguousarray(values.astype(np.float32))
        bits = single.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        rounded = np.where(np.isnan(single), bits >> 16 | 0x40, rounded).astype("<u2")
        infinite = (rounded & 0x7FFF) == 0x7F80
    return rounded.reshape(-1).view(np.uint8), int(np.count_nonzero(finite & infinite))
