"""Values that an export makes: floats of another dtype."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.format import bulk


def cast_floats(values: npt.NDArray[np.generic], dtype: str) -> tuple[bulk.U8, int]:
    """Return floats in another dtype as bytes, rounded to nearest even, and how many finite values became infinite.

    >>> cast_floats(np.array([1.0, 1e9]), "float16")[1]
    1
    """
    with np.errstate(all="ignore"):
        finite = np.isfinite(values.astype(np.float64))
        if dtype != "bfloat16":
            out = values.astype(np.dtype(dtype).newbyteorder("<"))
            return np.ascontiguousarray(out).reshape(-1).view(np.uint8), int(
                np.count_nonzero(finite & ~np.isfinite(out))
            )
        single = np.ascontiguousarray(values.astype(np.float32))
        bits = single.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        rounded = np.where(np.isnan(single), bits >> 16 | 0x40, rounded).astype("<u2")
        infinite = (rounded & 0x7FFF) == 0x7F80
    return rounded.reshape(-1).view(np.uint8), int(np.count_nonzero(finite & infinite))
