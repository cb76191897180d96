"""Values that an export makes: floats of another dtype, and rows that an initializer draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.errors import UnsupportedError
from edl_ckpt.core.format import bulk

_INITIALIZERS: Final[Mapping[str, Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]]] = {
    "uniform": lambda random, shape: random.uniform(-0.05, 0.05, shape),
    "normal": lambda random, shape: random.normal(0.0, 0.05, shape),
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
}
"""Keras' defaults, which ElasticDL's servers use: RandomUniform(-0.05, 0.05), RandomNormal(0, 0.05)."""


def draw(kind: str, name: str, dim: int, start: int, stop: int, seed: int) -> npt.NDArray[np.float64]:
    """Return rows [start, stop) that an initializer draws, float64 [n, dim]: the same for a seed, however they are cut.

    Raises UnsupportedError for an unknown initializer.
    """
    function = _INITIALIZERS.get(kind.lower())
    if function is None:
        try:
            return np.full((stop - start, dim), float(kind))
        except ValueError:
            raise UnsupportedError(f"table {name!r}: unknown initializer {kind!r}", hint="try: --fill zeros") from None
    block, blocks = 1024, []
    salt = list(name.encode())
    for first in range(start // block * block, stop, block):
        random = np.random.default_rng([seed & 0xFFFFFFFF, first, *salt])
        rows = function(random, (block, dim))
        blocks.append(rows[max(start - first, 0) : stop - first])
    return np.concatenate(blocks)


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
