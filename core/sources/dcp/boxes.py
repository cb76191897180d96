"""Tensors that were saved in boxes: whether the boxes tile the shape, and how a reader gathers the rows from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.tables import Box, Extent, GatheredRows
from edl_ckpt.core.sources.dcp.archives import ItemValues, in_c_order
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item, SavedBox
from edl_ckpt.core.sources.steps.content import Found

_MOST_BOXES: Final = 1 << 16
"""A tensor in more pieces is not gathered: each piece takes memory."""
_MOST_SPLIT: Final = 8
"""In so many dimensions a tensor may be split."""
_ROW_BYTES: Final = 64 << 10
"""Of a tensor with one dimension, elements are read together up to this size."""


@dataclass(frozen=True, slots=True)
class BoxValues:
    """A box of a tensor, and where its values are."""

    piece: SavedBox
    stored_in: Found
    values: ItemValues
    item: Item


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
        return DTYPES[self.tensor.dtype]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all its elements."""
        return math.prod(self.tensor.shape) * self.dtype.itemsize


def untiled(shape: Sequence[int], pieces: Sequence[SavedBox]) -> str:
    """Return why some boxes do not tile a shape exactly; '' when they do.

    Count each corner of each box, with a sign that alternates from corner to corner: the sums over all boxes are those
    of the shape alone if and only if each element is in one box.

    >>> untiled([4], [SavedBox((0,), (3,)), SavedBox((3,), (1,))])
    ''
    >>> untiled([4], [SavedBox((0,), (3,)), SavedBox((2,), (2,))])
    'its 2 boxes overlap, or leave a gap'
    """
    split = [n for n, size in enumerate(shape) if any(p.offsets[n] or p.sizes[n] != size for p in pieces)]
    if len(split) > _MOST_SPLIT:
        raise UnsupportedError(f"it is split in {len(split)} dimensions")
    corners: Counter[tuple[int, ...]] = Counter()
    for sign, boxes in ((1, pieces), (-1, [SavedBox((0,) * len(shape), tuple(shape))])):
        for box in boxes:
            edges = [((box.offsets[n], 1), (box.offsets[n] + box.sizes[n], -1)) for n in split]
            for corner in product(*edges):
                corners[tuple(edge for edge, _ in corner)] += sign * math.prod(one for _, one in corner)
    if any(corners.values()):
        return f"its {len(pieces)} boxes overlap, or leave a gap"
    return ""


def gathered(shape: Sequence[int], parts: Sequence[BoxValues], number: Callable[[Found], int]) -> GatheredRows:
    """Return the rows of a tensor of a shape, whose boxes tile it; `number` gives the number of a file.

    Rows are as long as the boxes allow: a row of the first dimensions, or one element. Raises UnsupportedError for more
    pieces than a reader can hold.
    """
    itemsize = DTYPES[parts[0].values.dtype].itemsize
    places = [_PlacedBox(part, tuple(shape), part.piece.offsets, part.values.strides) for part in parts]
    if len(shape) == 1:
        places = _in_rows(places, itemsize)
    elif not shape:
        places = [_PlacedBox(part, (1,), (0,), (itemsize,)) for part in parts]
    dims = places[0].shape
    counts = {axis: sum(placed.count(axis, itemsize) for placed in places) for axis in range(1, len(dims) + 1)}
    axis = min(counts, key=lambda axis: counts[axis])
    if counts[axis] > _MOST_BOXES:
        raise UnsupportedError(f"it is stored in {counts[axis]} pieces")
    boxes = [box for placed in places for box in placed.boxes(axis, itemsize, number(placed.part.stored_in))]
    rows = math.prod(dims[:axis])
    boxes.sort(key=lambda box: (box.first, box.column))
    return GatheredRows(rows, math.prod(dims[axis:]) * itemsize, tuple(boxes))


def table_boxes(
    dim: int, parts: Sequence[BoxValues], first: int, rows: int, number: Callable[[Found], int]
) -> tuple[Box, ...]:
    """Return the boxes of rows [first, first + rows) of a table, which some parts of it tile."""
    itemsize = DTYPES[parts[0].values.dtype].itemsize
    shape = (rows, dim)[: len(parts[0].piece.sizes)]
    places = []
    for part in parts:
        begin, *columns = part.piece.offsets
        places.append(_PlacedBox(part, shape, (begin - first, *columns), part.values.strides))
    if sum(placed.count(1, itemsize) for placed in places) > _MOST_BOXES:
        raise UnsupportedError("its rows are stored in too many pieces")
    boxes = [box for placed in places for box in placed.boxes(1, itemsize, number(placed.part.stored_in))]
    return tuple(sorted(boxes, key=lambda box: (box.first, box.column)))


def _in_rows(places: Sequence[_PlacedBox], itemsize: int) -> list[_PlacedBox]:
    """Return a tensor with one dimension as rows of elements that each box has whole."""
    if any(not placed.part.values.is_plain for placed in places):
        return list(places)
    (length,) = places[0].shape
    common = math.gcd(length, *(n for placed in places for n in (*placed.offsets, *placed.part.piece.sizes)))
    row = next(n for n in range(min(max(_ROW_BYTES // itemsize, 1), max(common, 1)), 0, -1) if common % n == 0)
    return [
        _PlacedBox(placed.part, (length // row, row), (placed.offsets[0] // row, 0), (row * itemsize, itemsize), row)
        for placed in places
    ]


@dataclass(frozen=True, slots=True)
class _PlacedBox:
    """A box in a shape: its offsets there, the strides of its values in bytes."""

    part: BoxValues
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    strides: tuple[int, ...]
    row: int = 0
    """The elements of a row that one dimension was cut into; 0 where nothing was cut."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of elements in each dimension."""
        sizes = self.part.piece.sizes
        return (sizes[0] // self.row, self.row) if self.row else sizes or (1,)

    def _run(self, axis: int, itemsize: int) -> tuple[int, int]:
        """Return (bytes, dimension): so many follow each other in a row and in the storage, from the dimension on."""
        run, begin = itemsize, len(self.shape)
        while begin > axis and (self.sizes[begin - 1] == 1 or self.strides[begin - 1] == run):
            begin -= 1
            run *= self.sizes[begin]
            if self.sizes[begin] != self.shape[begin]:
                break
        return run, begin

    def _outer(self, axis: int) -> int:
        """Return the first dimension from which on rows of the box follow each other in the shape."""
        return max((n for n in range(1, axis) if self.sizes[n] != self.shape[n]), default=0)

    def count(self, axis: int, itemsize: int) -> int:
        """Return the number of boxes where a row has the dimensions from `axis` on."""
        return math.prod(self.sizes[: self._outer(axis)]) * math.prod(self.sizes[axis : self._run(axis, itemsize)[1]])

    def boxes(self, axis: int, itemsize: int, file: int) -> Iterator[Box]:
        """Yield them."""
        run, begin = self._run(axis, itemsize)
        outer = self._outer(axis)
        free = (*range(outer), *range(axis, begin))
        steps = tuple(zip(self.sizes[outer:axis], self.strides[outer:axis], strict=True))
        length = run + sum((size - 1) * step for size, step in steps)
        rows = math.prod(self.sizes[outer:axis])
        in_order = in_c_order(self.sizes[outer:axis], self.strides[outer:axis], run)
        units = [math.prod(self.shape[n + 1 : axis]) for n in range(axis)]
        units += [math.prod(self.shape[n + 1 :]) * itemsize for n in range(axis, len(self.shape))]
        for numbers in product(*(range(self.sizes[n]) for n in free)):
            inside = dict(zip(free, numbers, strict=True))
            moved = [(offset + inside.get(n, 0)) * units[n] for n, offset in enumerate(self.offsets)]
            start = self.part.values.first + sum(number * self.strides[n] for n, number in inside.items())
            extent = Extent(start, start + length, file=file)
            yield Box(extent, run, rows, sum(moved[:axis]), sum(moved[axis:]), () if in_order else steps)
