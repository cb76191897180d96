"""An array of an input that is read once, from its begin to its end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.model.dtypes import DType

ArrayStream = tuple[str, DType, tuple[int, ...], Iterator[npt.NDArray[np.uint8]]]
"""Name, dtype, shape and the bytes of an array, in order."""
