"""Tensors that were saved in boxes, and the rows that a reader gathers from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES, DType
from edl_ckpt.core.model.tables import Box, Extent, GatheredRows
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item, SavedBox
from edl_ckpt.core.sources.steps.content import Found
from edl_ckpt.core.sources.torch.tensors import ItemValues, in_c_order

_MOST_BOXES: Final = 1 << 16
"""A tensor in more pieces is not gathered: each piece takes memory."""
_ROW_BYTES: Final = 64 << 10
"""Of a tensor with one dimension, elements are read together up to this size."""


@dataclass(frozen=True, slots=True)
class BoxValues:
    """A box of a tensor, and where its values are."""

    piece: SavedBox
    stored_in: Found
    values: ItemValues
    item: Item

    @property
    def itemsize(self) -> int:
        """Return the bytes of an element."""
        return TENSOR_DTYPES[self.values.dtype].itemsize

    def _run(self, shape: Sequence[int], axis: int) -> tuple[int, int]:
        """Return (bytes, dimension): so many follow each other in a row and in the storage, from the dimension on."""
        sizes, run, begin = self.piece.sizes, self.itemsize, len(shape)
        while begin > axis and (sizes[begin - 1] == 1 or self.values.strides[begin - 1] == run):
            begin -= 1
            run *= sizes[begin]
            if sizes[begin] != shape[begin]:
                break
        return run, begin

    def _outer(self, shape: Sequence[int], axis: int) -> int:
        """Return the first dimension from which on rows of the box follow each other in the shape."""
        return max((n for n in range(1, axis) if self.piece.sizes[n] != shape[n]), default=0)

    def count(self, shape: Sequence[int], axis: int) -> int:
        """Return in how many pieces a reader finds it, where a row has the dimensions of the shape from `axis` on."""
        sizes = self.piece.sizes
        return math.prod((*sizes[: self._outer(shape, axis)], *sizes[axis : self._run(shape, axis)[1]]))

    def pieces(self, shape: Sequence[int], axis: int, file: int) -> Iterator[Box]:
        """Yield these pieces; `file` is the number of its file."""
        sizes, strides = self.piece.sizes, self.values.strides
        (run, begin), outer = self._run(shape, axis), self._outer(shape, axis)
        counted, steps = sizes[outer:axis], strides[outer:axis]
        length = run + sum((size - 1) * step for size, step in zip(counted, steps, strict=True))
        walk = () if in_c_order(counted, steps, run) else tuple(zip(counted, steps, strict=True))
        units = [math.prod(shape[n + 1 : axis]) for n in range(axis)]
        units += [math.prod(shape[n + 1 :]) * self.itemsize for n in range(axis, len(shape))]
        free = (*range(outer), *range(axis, begin))
        for numbers in product(*(range(sizes[n]) for n in free)):
            inside = dict(zip(free, numbers, strict=True))
            moved = [(offset + inside.get(n, 0)) * units[n] for n, offset in enumerate(self.piece.offsets)]
            start = self.values.first + sum(number * strides[n] for n, number in inside.items())
            extent = Extent(start, start + length, file=file)
            yield Box(extent, run, math.prod(counted), sum(moved[:axis]), sum(moved[axis:]), walk)

    def reshaped(self, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> BoxValues:
        """Return the same bytes as a box of another shape."""
        values = replace(self.values, shape=tuple(sizes), strides=tuple(strides))
        return replace(self, piece=SavedBox(tuple(offsets), tuple(sizes)), values=values)


@dataclass(slots=True)
class SavedTensor:
    """A tensor and those of its boxes that have values here."""

    tensor: IndexedTensor
    parts: list[BoxValues] = field(default_factory=list)
    whole: bool = True
    """True when that is all of them."""

    @property
    def first(self) -> BoxValues:
        """Return its first box."""
        return min(self.parts, key=lambda part: part.piece.offsets)

    @property
    def dtype(self) -> DType:
        """Return its dtype."""
        return TENSOR_DTYPES[self.tensor.dtype]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all its elements."""
        return math.prod(self.tensor.shape) * self.dtype.itemsize


def gathered(shape: Sequence[int], parts: Sequence[BoxValues], number: Callable[[Found], int]) -> GatheredRows:
    """Return the rows of a tensor of a shape, whose boxes tile it; `number` gives the number of a file.

    Rows are as long as the boxes allow: a row of the first dimensions, or one element. Raises UnsupportedError for more
    pieces than a reader can hold.
    """
    itemsize = parts[0].itemsize
    if not shape:
        shape, parts = (1,), [part.reshaped((0,), (1,), (itemsize,)) for part in parts]
    elif len(shape) == 1 and all(part.values.is_plain for part in parts):  # some elements, which each box has whole
        common = math.gcd(*shape, *(n for part in parts for n in (*part.piece.offsets, *part.piece.sizes)))
        row = next(n for n in range(max(min(_ROW_BYTES // itemsize, common), 1), 0, -1) if common % n == 0)
        step = (row * itemsize, itemsize)
        cut = [(part, part.piece.offsets[0] // row, part.piece.sizes[0] // row) for part in parts]
        shape, parts = (
            (shape[0] // row, row),
            [part.reshaped((first, 0), (rows, row), step) for part, first, rows in cut],
        )
    axis = min(range(1, len(shape) + 1), key=lambda axis: sum(part.count(shape, axis) for part in parts))
    boxes = _in_order(shape, axis, parts, number)
    return GatheredRows(math.prod(shape[:axis]), math.prod(shape[axis:]) * itemsize, boxes)


def table_boxes(
    dim: int, parts: Sequence[BoxValues], first: int, rows: int, number: Callable[[Found], int]
) -> tuple[Box, ...]:
    """Return the boxes of rows [first, first + rows) of a table, which some parts of it tile; errors as `gathered`."""
    moved = [(part, (part.piece.offsets[0] - first, *part.piece.offsets[1:])) for part in parts]
    shifted = [part.reshaped(offsets, part.piece.sizes, part.values.strides) for part, offsets in moved]
    return _in_order((rows, dim)[: len(parts[0].piece.sizes)], 1, shifted, number)


def _in_order(
    shape: Sequence[int], axis: int, parts: Sequence[BoxValues], number: Callable[[Found], int]
) -> tuple[Box, ...]:
    """Return the pieces of parts in the order of their rows."""
    if (count := sum(part.count(shape, axis) for part in parts)) > _MOST_BOXES:
        raise UnsupportedError(f"it is stored in {count} pieces")
    boxes = [box for part in parts for box in part.pieces(shape, axis, number(part.stored_in))]
    return tuple(sorted(boxes, key=lambda box: (box.first, box.column)))
