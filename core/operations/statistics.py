"""Statistics of the values of each tensor, in one pass and bounded memory, which `inspect --stats` shows."""

from __future__ import annotations

import math
import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.reading.blocks import as_dtype
from edl_ckpt.core.reading.pieces import dense_at, read_dense
from edl_ckpt.core.reading.reader import Checkpoint

_BINS: Final = 4096
_SHOWN_BINS: Final = 24


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one variable or table.

    Minimum, maximum, mean, standard deviation and L2 norm are over the finite values: None without any, and infinite
    or NaN where a sum exceeds float64. `histogram` counts the finite values between consecutive `edges`, so there is
    one edge more than counts.
    """

    name: str
    kind: str
    elements: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None
    l2: float | None
    zeros: int
    nan: int
    inf: int
    histogram: tuple[int, ...]
    edges: tuple[float, ...]

    def __repr__(self) -> str:
        return describe("TensorStats", f"{self.kind} {escaped(self.name)}", counted(self.elements, "element"))


@dataclass(slots=True)
class Moments:
    """Sums over batches. When values exceed the range of the histogram, it doubles and bins are merged in pairs."""

    elements: int = 0
    finite: int = 0
    zeros: int = 0
    nan: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0
    """The sum of squared distances from the mean, updated batch by batch (Chan, Golub and LeVeque)."""
    reach: float = 0.0
    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    @np.errstate(all="ignore")  # signalling NaNs, and sums that exceed float64
    def add(self, values: npt.NDArray[np.generic]) -> None:
        """Add a batch of any shape."""
        flat = values.reshape(-1).astype(np.float64)
        good = flat[np.isfinite(flat)]
        self.elements += len(flat)
        self.nan += int(np.count_nonzero(np.isnan(flat)))
        self.zeros += int(np.count_nonzero(flat == 0))
        if not len(good):
            return
        mean = float(good.mean())
        delta, total = mean - self.mean, self.finite + len(good)
        self.squares += float(((good - mean) ** 2).sum()) + delta * delta * self.finite * len(good) / total
        self.mean += delta * len(good) / total
        self.finite = total
        self.minimum = min(self.minimum, float(good.min()))
        self.maximum = max(self.maximum, float(good.max()))
        self._bin(good)

    def _bin(self, values: npt.NDArray[np.float64]) -> None:
        largest = float(np.abs(values).max())
        if self.reach == 0.0:
            self.reach = _power_above(largest) if largest else 2.0**-60
        while largest > self.reach:
            half = self.bins.reshape(-1, 2).sum(axis=1)
            self.bins[:] = 0
            self.bins[_BINS // 4 : 3 * _BINS // 4] = half
            self.reach = _power_above(2 * self.reach)
        place = ((values / self.reach + 1) * (_BINS / 2)).astype(np.int64)
        self.bins += np.bincount(np.minimum(place, _BINS - 1), minlength=_BINS)

    def result(self, name: str, kind: str) -> TensorStats:
        """Return the statistics, with the histogram cut to the bins that have values."""
        counts = self.zeros, self.nan, self.elements - self.finite - self.nan, *self._shown()
        if not self.finite:
            return TensorStats(name, kind, self.elements, None, None, None, None, None, *counts)
        std = math.sqrt(self.squares / self.finite)
        l2 = math.sqrt(self.squares + self.finite * self.mean * self.mean)
        return TensorStats(name, kind, self.elements, self.minimum, self.maximum, self.mean, std, l2, *counts)

    def _shown(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        used = np.flatnonzero(self.bins)
        if not len(used):
            return (), ()
        first, last = int(used[0]), int(used[-1]) + 1
        width = max(1, -(-(last - first) // _SHOWN_BINS))
        starts = np.arange(first, last, width)
        counts = np.add.reduceat(self.bins[:last], starts)
        edges = (np.append(starts, starts[-1] + width) / (_BINS / 2) - 1) * self.reach
        return tuple(counts.tolist()), tuple(edges.tolist())


def _power_above(value: float) -> float:
    """Return the least power of two that is not below a value; the largest float where that power exceeds float64."""
    return 2.0 ** math.ceil(math.log2(value)) if value <= 2.0**1023 else sys.float_info.max


def tensor_stats(
    checkpoint: Checkpoint,
    *,
    variables: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    reporter: Reporter = WARNINGS,
) -> tuple[TensorStats, ...]:
    """Return statistics of the named variables and tables; None means all of them. Each value is read once.

    Raises NotFoundError for an unknown name, and the errors of reading.
    """
    names = _measurable(checkpoint, variables)
    table_names = checkpoint.table_names if tables is None else list(several(tables, "tables"))
    reporter.start("reading values", _bytes_of(checkpoint, set(names), set(table_names)))
    moments = {name: Moments() for name in names}
    for piece in dense_at(checkpoint, 0):
        entry = piece.entry(checkpoint)
        if entry.name in moments:
            moments[entry.name].add(as_dtype(read_dense(checkpoint, piece), entry.dtype))
            reporter.advance(piece.size)
    results = [moments[name].result(name, "variable") for name in names]
    for name in table_names:
        rows = Moments()
        for batch in checkpoint.table(name, batch_rows=16_384):
            rows.add(batch.vectors)
            reporter.advance(batch.vectors.nbytes)
        results.append(rows.result(name, "table"))
    return tuple(results)


def _measurable(checkpoint: Checkpoint, wanted: Sequence[str] | None) -> list[str]:
    """Return the variables that have statistics, or those that are wanted; UnsupportedError for one that has none."""
    if wanted is None:
        every = checkpoint.variable_names
        return [name for name in every if checkpoint.find_variable(name)[1].dtype.is_ours]
    names = list(several(wanted, "variables"))
    for name in names:
        _, entry = checkpoint.find_variable(name)
        if not entry.dtype.is_ours:
            raise UnsupportedError(f"{name!r} is {entry.dtype.name}: no statistics of it", path=checkpoint.version.ref)
    return names


def _bytes_of(checkpoint: Checkpoint, variables: Container[str], tables: Container[str]) -> int:
    """Return the bytes of the values of some variables and tables."""
    total = 0
    for shard in checkpoint.shards:
        total += sum(variable.size_bytes for variable in shard.variables if variable.name in variables)
        total += sum(table.values.size_bytes for table in shard.tables if table.name in tables)
    return total
