"""The change between two arrays, element by element, and the sums from which its measures follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class Sums:
    """Sums over the elements of both sides, from which all measures follow."""

    max_abs: float = 0.0
    change: float = 0.0
    before: float = 0.0
    after: float = 0.0
    product: float = 0.0

    def add(self, other: Sums) -> None:
        """Add the sums over other elements."""
        self.max_abs = worse(self.max_abs, other.max_abs)
        self.change += other.change
        self.before += other.before
        self.after += other.after
        self.product += other.product

    @property
    def l2(self) -> float:
        """Return the L2 norm of b - a."""
        return math.sqrt(self.change)

    @property
    def relative(self) -> float | None:
        """Return the L2 norm of b - a over that of a; None when that is 0."""
        return math.sqrt(self.change / self.before) if self.before > 0 else None

    @property
    def cosine(self) -> float | None:
        """Return the cosine between a and b; None when one of them is 0."""
        norm = math.sqrt(self.before) * math.sqrt(self.after)
        return self.product / norm if norm > 0 else None


def worse(a: float, b: float) -> float:
    """Return the larger of two numbers, and NaN if one of them is NaN."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


class Change(NamedTuple):
    """b - a in float64, its absolute value, and where a and b differ by more than the tolerance."""

    change: F64
    size: F64
    differ: npt.NDArray[np.bool_]


def compare(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], tolerance: float, sums: Sums) -> Change:
    """Return the change from a to b, of one shape, and add it to `sums`; NaN equals NaN."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        change = y - x
        size = np.abs(change)
        largest = float(size.max(initial=0.0))
        if a.dtype.kind == "f" and b.dtype.kind == "f" and not math.isnan(largest):
            differ = size > tolerance
        else:  # whole numbers, where float64 may be too short; NaN, and infinities less infinities
            same = (a == b) | (np.isnan(x) & np.isnan(y))
            if a.dtype == b.dtype and a.dtype.kind in "iu":
                change = _whole_change(a, b)
            change = np.where(same, 0.0, change)
            size = np.abs(change)
            largest = float(size.max(initial=0.0))
            differ = ~same & ~(size <= tolerance)
        found = (float(np.vdot(*pair)) for pair in ((change, change), (x, x), (y, y), (x, y)))
        sums.add(Sums(largest, *found))
    return Change(change, size, differ)


def _whole_change(a: Any, b: Any) -> F64:
    """Return b - a of whole numbers of one dtype, subtracted before the cast: float64 has only 53 bits for them."""
    apart = np.where(a > b, a - b, b - a).view(f"<u{a.dtype.itemsize}").astype(np.float64)
    change: F64 = np.where(a > b, -apart, apart)
    return change
