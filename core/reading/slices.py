"""Slices of arrays in shards, by integers, slices and `...`, as numpy has them; only their bytes are read.

Elements that lie less than a page apart are read at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Final, TypeAlias

import numpy as np

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.reading.blocks import read_runs
from edl_ckpt.core.storage.interface import RangeReader

Index: TypeAlias = "int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]"
"""What `np.s_[0:10, 3]` returns."""
_PART: Final = re.compile(r"(?:(-?\d{1,18})?\s*:\s*(-?\d{1,18})?\s*(?::\s*(-?\d{1,18})?)?|(-?\d{1,18})|(\.\.\.))")


def parse_index(text: str) -> Index:
    """Return the index that a text is in Python, with brackets around it or without.

    >>> parse_index("0:10, 3"), parse_index("[..., ::-1]"), parse_index("5")
    ((slice(0, 10, None), 3), (Ellipsis, slice(None, None, -1)), (5,))
    """
    inner = text.strip().removeprefix("[").removesuffix("]").strip().removesuffix(",")
    found = [_PART.fullmatch(part.strip()) for part in inner.split(",")]
    parts: list[int | slice | EllipsisType] = []
    for match in found:
        if match is None:
            raise UsageError(f"{text!r} is not a slice", hint="write it as for numpy: 0:10 or 0:10,3 or ...,-1")
        start, stop, step, number, dots = match.groups()
        if dots:
            parts.append(...)
        elif number:
            parts.append(int(number))
        else:
            parts.append(slice(*(int(each) if each else None for each in (start, stop, step))))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Axis:
    """The chosen positions along one axis; an integer chooses one, and takes the axis out of the shape."""

    chosen: range
    size: int
    is_number: bool = False

    @property
    def is_whole(self) -> bool:
        """Return True when every position is chosen, in order."""
        return self.chosen == range(self.size)


def choose(index: Index, shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return what an index chooses along each axis of a shape; UsageError where numpy has an IndexError.

    >>> [axis.chosen for axis in choose((slice(0, 2), ...), (5, 3))]
    [range(0, 2), range(0, 3)]
    """
    parts = index if isinstance(index, tuple) else (index,)
    dots = [at for at, part in enumerate(parts) if part is ...]
    given = len(parts) - len(dots)
    if len(dots) > 1:
        raise UsageError("an index can only have a single '...'")
    if given > len(shape):
        raise UsageError(f"too many indices: the array has {len(shape)} dimensions, and {given} were given")
    at = dots[0] if dots else len(parts)
    full = (*parts[:at], *(slice(None),) * (len(shape) - given), *parts[at + 1 :])
    return tuple(_axis(part, axis, size) for axis, (part, size) in enumerate(zip(full, shape, strict=True)))


def _axis(part: object, axis: int, size: int) -> Axis:
    if isinstance(part, slice):
        if part.step == 0:
            raise UsageError("the step of a slice cannot be zero")
        return Axis(range(*part.indices(size)), size)
    if not isinstance(part, int | np.integer) or isinstance(part, bool):
        raise UsageError(f"expected an integer, a slice or '...', got {part!r:.40}")
    number = int(part) + (size if part < 0 else 0)
    if not 0 <= number < size:
        raise UsageError(f"index {part} is out of bounds for axis {axis} with size {size}")
    return Axis(range(number, number + 1), size, is_number=True)


def result_shape(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the shape of what is chosen."""
    return tuple(len(axis.chosen) for axis in axes if not axis.is_number)


def memory_bytes(axes: Sequence[Axis], itemsize: int) -> int:
    """Return the bytes that `read_chosen` needs at most, with the result."""
    chosen = [len(axis.chosen) for axis in axes]
    return math.prod(chosen) * itemsize + 32 * math.prod(chosen[: _inner(axes)])


def _inner(axes: Sequence[Axis]) -> int:
    """Return the first of the axes along which the chosen elements lie behind each other.

    These are the last axes that are whole, and the one before them if it has no steps.
    """
    inner = len(axes)
    while inner and axes[inner - 1].is_whole:
        inner -= 1
    return inner - 1 if inner and axes[inner - 1].chosen.step == 1 else inner


def read_chosen(reader: RangeReader, offset: int, itemsize: int, axes: Sequence[Axis]) -> bulk.U8:
    """Return the bytes of the chosen elements of an array at an offset, in C order, uint8 [n * itemsize]."""
    inner = _inner(axes)
    chosen = [len(axis.chosen) for axis in axes]
    sizes = [axis.size for axis in axes]
    run = math.prod(chosen[inner:]) * itemsize
    starts = np.full(1, offset, np.int64)  # of each run of chosen bytes, in C order
    for at, axis in enumerate(axes):
        stride = math.prod(sizes[at + 1 :]) * itemsize
        if at < inner:
            own = np.arange(axis.chosen.start, axis.chosen.stop, axis.chosen.step, dtype=np.int64) * stride
            starts = (starts[:, None] + own).reshape(-1)
        elif axis.chosen:
            starts += axis.chosen.start * stride
    return read_runs(reader, starts, run).reshape(-1)
