"""Checkpoints of torch.distributed.checkpoint that real jobs saved, and what torch itself reads from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from places import TOP

SAVED = TOP / "tests/data/systems/dcp"
"""The README there says how they were made."""


class Tensor(NamedTuple):
    """A tensor as torch reads it: bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of each row of the first dimension."""
        return self.data.reshape(self.shape[0], -1)


def truth(path: Path) -> dict[str, Tensor]:
    """Return the tensors that `judges/torchrec_models.py truth` wrote to a file."""
    with np.load(path) as arrays:
        kinds = json.loads(bytes(arrays["__meta__"]))
        return {name: Tensor(dtype, tuple(shape), arrays[name]) for name, (dtype, shape) in kinds.items()}


def raw(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
