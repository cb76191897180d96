"""Tensors that were saved in boxes, and the rows that a reader gathers from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import add, mul
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
"""Of a tensor with one dimension, elements are read together up to this size: a row of `_as_matrix`."""


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

    def cut(self, shape: Sequence[int], axis: int) -> BoxCut:
        """Return the box cut into pieces for a reader of the rows of a shape, whose columns begin at `axis`."""
        sizes = self.piece.sizes
        run, run_bytes = len(shape), self.itemsize
        while run > axis and (sizes[run - 1] == 1 or self.values.strides[run - 1] == run_bytes):
            run -= 1
            run_bytes *= sizes[run]
            if sizes[run] != shape[run]:  # in the row, other boxes come before the next bytes of this one
                break
        uneven = [dimension for dimension in range(1, axis) if sizes[dimension] != shape[dimension]]
        return BoxCut(self, tuple(shape), axis, max(uneven, default=0), run, run_bytes)

    def reshaped(self, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> BoxValues:
        """Return the same bytes as a box of another shape."""
        values = replace(self.values, shape=tuple(sizes), strides=tuple(strides))
        return replace(self, piece=SavedBox(tuple(offsets), tuple(sizes)), values=values)


@dataclass(frozen=True, slots=True)
class BoxCut:
    """A box of a tensor, cut into pieces that a reader copies.

    The dimensions of the shape before `axis` count rows, the others are those of a row. Of the box, they are four
    groups, and each may be empty:

    * before `outer`: each index has pieces of its own, since the next rows of the box are not the next of the tensor;
    * from `outer` to `axis`: rows that follow each other in the tensor, all in one piece;
    * from `axis` to `run`: each index has pieces of its own, since its bytes do not follow those of the last one;
    * from `run` on: `run_bytes` that follow each other both in a row of the tensor and in the file.
    """

    box: BoxValues
    shape: tuple[int, ...]
    axis: int
    outer: int
    run: int
    run_bytes: int

    @property
    def count(self) -> int:
        """Return the number of pieces."""
        sizes = self.box.piece.sizes
        return math.prod(sizes[: self.outer]) * math.prod(sizes[self.axis : self.run])

    def pieces(self, file: int) -> Iterator[Box]:
        """Yield the pieces; `file` is the number of the file with the values."""
        sizes, strides = self.box.piece.sizes, self.box.values.strides
        row_sizes, row_steps = sizes[self.outer : self.axis], strides[self.outer : self.axis]
        steps = tuple(zip(row_sizes, row_steps, strict=True))
        span_bytes = self.run_bytes + sum((size - 1) * step for size, step in steps)
        if in_c_order(row_sizes, row_steps, self.run_bytes):
            steps = ()
        with_own_pieces = (*range(self.outer), *range(self.axis, self.run))
        for numbers in product(*(range(sizes[dimension]) for dimension in with_own_pieces)):
            index = [0] * len(self.shape)
            for dimension, number in zip(with_own_pieces, numbers, strict=True):
                index[dimension] = number
            start = self.box.values.first + sum(map(mul, index, strides))
            place = [*map(add, index, self.box.piece.offsets)]
            yield Box(
                Extent(start, start + span_bytes, file=file),
                self.run_bytes,
                math.prod(row_sizes),
                first=_number_of(place[: self.axis], self.shape[: self.axis]),
                column=_number_of(place[self.axis :], self.shape[self.axis :]) * self.box.itemsize,
                steps=steps,
            )


def _number_of(index: Sequence[int], shape: Sequence[int]) -> int:
    """Return the number of an element in C order.

    >>> _number_of([1, 2], [3, 4])
    6
    """
    number = 0
    for position, size in zip(index, shape, strict=True):
        number = number * size + position
    return number


@dataclass(slots=True)
class SavedTensor:
    """A tensor and those of its boxes that have values here."""

    tensor: IndexedTensor
    parts: list[BoxValues] = field(default_factory=list)
    whole: bool = True
    """True when none of its boxes is missing from `parts`."""

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
    elif len(shape) == 1 and all(part.values.is_plain for part in parts):
        shape, parts = _as_matrix(shape[0], parts)
    axis = min(range(1, len(shape) + 1), key=lambda axis: sum(part.cut(shape, axis).count for part in parts))
    boxes = _in_order(shape, axis, parts, number)
    return GatheredRows(math.prod(shape[:axis]), math.prod(shape[axis:]) * itemsize, boxes)


def _as_matrix(size: int, parts: Sequence[BoxValues]) -> tuple[tuple[int, int], list[BoxValues]]:
    """Return the shape and the boxes of a vector as a matrix, whose rows are the longest that no box cuts.

    A row has at most `_ROW_BYTES`.
    """
    itemsize = parts[0].itemsize
    edges = [edge for part in parts for edge in (part.piece.offsets[0], part.piece.sizes[0])]
    common = math.gcd(size, *edges)
    longest = max(min(_ROW_BYTES // itemsize, common), 1)
    row = next(length for length in range(longest, 0, -1) if common % length == 0)
    reshaped: list[BoxValues] = []
    for part in parts:
        first, rows = part.piece.offsets[0] // row, part.piece.sizes[0] // row
        reshaped.append(part.reshaped((first, 0), (rows, row), (row * itemsize, itemsize)))
    return (size // row, row), reshaped


def table_boxes(
    dim: int, parts: Sequence[BoxValues], first: int, rows: int, number: Callable[[Found], int]
) -> tuple[Box, ...]:
    """Return the boxes of rows [first, first + rows) of a table, which some parts of it tile; errors as `gathered`."""
    shifted: list[BoxValues] = []
    for part in parts:
        row, *columns = part.piece.offsets
        shifted.append(part.reshaped((row - first, *columns), part.piece.sizes, part.values.strides))
    shape = (rows, dim)[: len(parts[0].piece.sizes)]
    return _in_order(shape, 1, shifted, number)


def _in_order(
    shape: Sequence[int], axis: int, parts: Sequence[BoxValues], number: Callable[[Found], int]
) -> tuple[Box, ...]:
    """Return the pieces of parts in the order of their rows."""
    cuts = [part.cut(shape, axis) for part in parts]
    count = sum(cut.count for cut in cuts)
    if count > _MOST_BOXES:
        raise UnsupportedError(f"it is stored in {count} pieces")
    boxes: list[Box] = []
    for cut in cuts:
        boxes += cut.pieces(number(cut.box.stored_in))
    return tuple(sorted(boxes, key=lambda box: (box.first, box.column)))
