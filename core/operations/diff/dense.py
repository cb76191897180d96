"""The change of a dense variable: both are read a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edl_ckpt.core.operations.diff.measures import Sums, compare
from edl_ckpt.core.operations.diff.results import DenseDiff
from edl_ckpt.core.reading.blocks import read_elements
from edl_ckpt.core.reading.reader import Checkpoint

_DENSE_BYTES: Final = 4 << 20


def diff_dense(one: Checkpoint, two: Checkpoint, name: str, tolerance: float) -> DenseDiff:
    """Return the change of a variable, which at least one of the checkpoints has."""
    if name not in one or name not in two:
        return DenseDiff(name, "removed" if name in one else "added")
    first, second = one.find_variable(name), two.find_variable(name)
    a, b = first[1], second[1]
    changes = [f"dtype {a.dtype.name} -> {b.dtype.name}"] if a.dtype != b.dtype else []
    if a.shape != b.shape:
        changes.append(f"shape {_shape(a.shape)} -> {_shape(b.shape)}")
        return DenseDiff(name, "changed", what=", ".join(changes))
    sums, differs = Sums(), False
    step = _DENSE_BYTES // 8
    for start in range(0, a.elements, step):
        count = min(step, a.elements - start)
        x, y = read_elements(one, *first, start, count), read_elements(two, *second, start, count)
        differs |= bool(compare(x, y, tolerance, sums).differ.any())
    status = "changed" if differs or changes else "equal"
    return DenseDiff(name, status, sums.max_abs, sums.l2, sums.relative, sums.cosine, ", ".join(changes))


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
