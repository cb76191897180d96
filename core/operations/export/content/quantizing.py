"""Rows in 8 or 4 bits an element, each row with a scale and an offset of its own, as PyTorch and FBGEMM serve them.

Source: `embedding_bag_byte_prepack` and `embedding_bag_4bit_prepack` of PyTorch, FusedNBitRowwise of FBGEMM
(`QuantUtils.cc`). Bytes are those that they write: half-way values go to the even neighbour.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.reading.blocks import as_dtype

_Floats = npt.NDArray[np.float32]
_EPSILON: Final = np.float32(1e-8)
_BLOCK_BYTES: Final = 256 << 10
"""Rows that are looked at together: they stay in the cache."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Quantized:
    """How a row is stored: so many bits an element, then scale and offset."""

    bits: int
    half: bool
    """Scale and offset are float16, else float32."""

    def width(self, dim: int) -> int:
        """Return the bytes of a row."""
        return -(-dim * self.bits // 8) + (4 if self.half else 8)


QUANTIZED: Final[Mapping[str, Quantized]] = {
    "int8-fbgemm": Quantized(8, half=False),
    "int8-f16": Quantized(8, half=True),
    "int4-fbgemm": Quantized(4, half=True),
}


@dataclass(slots=True)
class QuantizationErrors:
    """How far stored values are from those that they stand for: the greatest distance, and the mean."""

    greatest: float = 0.0
    total: float = 0.0
    elements: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, greatest: float, total: float, elements: int) -> None:
        """Add what the errors of some values are; several threads call it."""
        with self._lock:
            self.greatest, self.total = max(self.greatest, greatest), self.total + total
            self.elements += elements

    @property
    def mean(self) -> float:
        """Return the mean distance."""
        return self.total / self.elements if self.elements else 0.0


def quantized(
    name: str, ids: bulk.I64, data: bulk.U8, dtype: DType, form: Quantized, errors: QuantizationErrors
) -> bulk.U8:
    """Return rows of floats, uint8 [n, row_bytes], as they are stored, uint8 [n, width].

    UnsupportedError names the ids of rows that are not finite, or whose range is beyond float16.
    """
    dim = data.shape[1] // dtype.itemsize
    rows = as_dtype(np.ascontiguousarray(data).reshape(-1), dtype).reshape(len(data), dim)
    out = np.empty((len(rows), form.width(rows.shape[1])), np.uint8)
    step = max(_BLOCK_BYTES // max(data.shape[1], 1), 1)
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        single = np.ascontiguousarray(rows[block], np.float32)
        scale, offset, inverse = _scales(single, form)
        bad = np.flatnonzero(~(np.isfinite(scale) & np.isfinite(offset)))
        if len(bad):
            shown = ", ".join(map(str, ids[block][bad[:_SHOWN]].tolist()))
            why = "is not finite, or beyond float16" if form.half else "is not finite"
            raise UnsupportedError(f"table {name!r}: a value {why} in {len(bad)} rows and perhaps more: ids {shown}")
        _store(single, scale, offset, inverse, form, out[block], errors)
    return out


def _scales(rows: _Floats, form: Quantized) -> tuple[_Floats, ...]:
    """Return the scale, the offset and what differences are multiplied by, float32 [n] each."""
    with np.errstate(all="ignore"):
        low, high = _ranges(rows)
        if not form.half:
            wide = high - low
            return _single(wide / np.float32(255), low, np.float32(255) / (wide + _EPSILON))
        low = low.astype(np.float16).astype(np.float32)
        wide = high - low
        scale = np.where(wide == 0, np.float32(1), wide / np.float32((1 << form.bits) - 1))
        scale = scale.astype(np.float16).astype(np.float32)
        scale[scale == 0] = 1
        inverse = np.float32(1) / scale
        far = np.isinf(inverse)
        scale[far] = inverse[far] = 1
        return _single(scale, low, inverse)


def _ranges(rows: _Floats) -> tuple[_Floats, _Floats]:
    """Return the least and the greatest value of each row; no number for a row with one that is not finite."""
    low, high = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
    if bulk.kernel is not None:
        bulk.kernel.row_ranges(rows, rows.shape[1], low, high)
        return low, high
    if rows.shape[1]:
        low, high = rows.min(axis=1), rows.max(axis=1)
        low[~np.isfinite(low + high)] = np.nan
        zero = np.flatnonzero(low == 0)
        low[zero] = rows[zero, rows[zero].argmin(axis=1)]  # of -0.0 and 0.0, which are equal, the first one counts
    return low, high


def _single(*some: npt.NDArray[Any]) -> tuple[_Floats, ...]:
    return tuple(one.astype(np.float32, copy=False) for one in some)


def _store(
    rows: _Floats,
    scale: _Floats,
    offset: _Floats,
    inverse: _Floats,
    form: Quantized,
    out: bulk.U8,
    errors: QuantizationErrors,
) -> None:
    """Fill rows as they are stored, and add their errors."""
    tail = np.stack([scale, offset], axis=1).astype("<f2" if form.half else "<f4")
    count = form.width(rows.shape[1]) - tail.itemsize * 2
    if bulk.kernel is not None:
        sums = np.zeros(2, np.float64)
        forms = rows.shape[1], form.bits, scale, offset, inverse
        bulk.kernel.quantize_rows(rows, *forms, out, out.shape[1], sums)
        errors.add(float(sums[0]), float(sums[1]), rows.size)
    else:
        codes = np.rint((rows - offset[:, None]) * inverse[:, None])
        np.clip(codes, 0, (1 << form.bits) - 1, out=codes)
        distances = np.abs(codes * scale[:, None] + offset[:, None] - rows)
        errors.add(float(distances.max(initial=0)), float(distances.sum(dtype=np.float64)), rows.size)
        small = codes.astype(np.uint8)
        if form.bits == 4:
            even, odd = small[:, 0::2].copy(), small[:, 1::2]
            even[:, : odd.shape[1]] |= odd << 4
            small = even
        out[:, :count] = small
    out[:, count:] = tail.view(np.uint8).reshape(len(rows), -1)
