"""Partitioned variables of a bundle, which are saved in slices and read as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.tables import (
    Box,
    DenseEntry,
    Extent,
    GatheredRows,
)
from edl_ckpt.core.sources.bundle.data_files import _KINDS, TENSORS, DataFile, DataFiles, dtype_of
from edl_ckpt.core.sources.bundle.index import Index, Slice, StoredTensor

_MOST_BOXES: Final = 1 << 16
SlicePart: TypeAlias = tuple[Sequence[tuple[int, int]], StoredTensor, DataFile]
"""A slice: (start, length) in each dimension, its tensor, and the file of that."""


def add_slices(index: Index, name: str, tensor: StoredTensor, files: DataFiles) -> None:
    """Add a variable that is saved in slices; it is left out where one is in a file that is not open.

    Raises CorruptError unless they tile its shape.
    """
    parts: list[SlicePart] = []
    for one in tensor.slices:
        part = index.slice_of(name, one)
        bounds = _bounds(tensor.shape, one)
        if part is None or part.dtype != tensor.dtype or tuple(size for _, size in bounds) != part.shape:
            raise CorruptError(f"damaged index: {name!r} lacks its slice {list(one)}, or that has another shape")
        if part.shard in files:
            parts.append((bounds, part, files[part.shard]))
    if len(parts) < len(tensor.slices):
        return
    if tensor.dtype not in TENSORS:
        raise UnsupportedError(f"{name!r} is saved in slices of {_KINDS.get(tensor.dtype, 'an unknown dtype')}")
    _add_variable(name, tensor, parts)
    for _, part, file in parts:
        dtype_of(name, part, file)
        file.add_sum(name, part, file.extent(part))


def _bounds(shape: tuple[int, ...], one: Slice) -> list[tuple[int, int]]:
    """Return the start and the length of a slice in each dimension; what does not fit the shape is left out."""
    bounds: list[tuple[int, int]] = []
    for (start, size), dim in zip(one, shape, strict=False):
        length = dim - start if size is None else size
        if start + length <= dim:
            bounds.append((start, length))
    return bounds


def _add_variable(name: str, tensor: StoredTensor, parts: Sequence[SlicePart]) -> None:
    """Add a variable to the shard of its first slice: gathered, unless its slices lie one after the other."""
    dtype = TENSORS[tensor.dtype]
    shape = tensor.shape
    _, first, home = parts[0]
    axis = max(_last_cut(shape, bounds) for bounds, _, _ in parts)  # the dimensions before it count the rows
    rows = prod(shape[:axis])
    row_bytes = prod(shape[axis:]) * dtype.itemsize
    if sum(_count_of_runs(shape[:axis], bounds) for bounds, _, _ in parts) > _MOST_BOXES:
        raise UnsupportedError(f"{name!r} is saved in too many pieces")
    boxes: list[Box] = []
    for part in parts:
        _, stored, _ = part
        if 0 not in stored.shape:
            boxes += _boxes(part, shape, axis, dtype.itemsize, home)
    boxes.sort(key=lambda box: (box.first, box.column))
    if not _tile(boxes, rows, row_bytes):
        raise CorruptError(f"damaged index: the slices of {name!r} do not tile {list(shape)}")
    extent = Extent(0, 0, file=home.number)
    if boxes and all(box.row_bytes == row_bytes for box in boxes) and all(map(_follows, boxes, boxes[1:])):
        extent = Extent(boxes[0].extent.start, boxes[-1].extent.end, file=boxes[0].extent.file)
    elif boxes:
        number = home.shard.gather(GatheredRows(rows, row_bytes, tuple(boxes)))
        extent = Extent(0, rows * row_bytes, file=number)
    home.shard.variables.append(DenseEntry(name, dtype, shape, extent, first.start))


def _last_cut(shape: tuple[int, ...], bounds: Sequence[tuple[int, int]]) -> int:
    """Return the last dimension in which a slice has only a part of the tensor, at least 1."""
    cut = [dimension for dimension, (_, size) in enumerate(bounds) if size != shape[dimension]]
    return max([1, *cut])


def _count_of_runs(shape: tuple[int, ...], bounds: Sequence[tuple[int, int]]) -> int:
    """Return how many runs `_runs` yields of a slice."""
    return prod(size for _, size in bounds[: _last(shape, bounds)])


def _boxes(part: SlicePart, shape: tuple[int, ...], axis: int, itemsize: int, home: DataFile) -> Iterator[Box]:
    """Yield the boxes of a slice: each has rows that follow each other."""
    bounds, tensor, file = part
    inner = prod(shape[axis + 1 :]) * itemsize
    column, width = (bounds[axis][0] * inner, bounds[axis][1] * inner) if axis < len(shape) else (0, itemsize)
    start, number = tensor.start, home.shard.number(file.file)
    for first, rows in _runs(shape[:axis], bounds[:axis]):
        end = start + rows * width
        yield Box(Extent(start, end, file=number), width, rows, first, column)
        start = end


def _runs(shape: tuple[int, ...], bounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each run of a slice, in order.

    >>> list(_runs((4, 3, 2), ((1, 2), (0, 2), (0, 2))))
    [(6, 4), (12, 4)]
    """
    last = _last(shape, bounds)
    unit = prod(shape[last + 1 :])
    start, size = bounds[last] if bounds else (0, 1)
    for outer in product(*(range(first, first + count) for first, count in bounds[:last])):
        row = 0
        for position, dim in zip((*outer, start), shape, strict=False):
            row = row * dim + position
        yield row * unit, size * unit


def _follows(before: Box, box: Box) -> bool:
    """Say whether the bytes of a box follow those of the one before it."""
    return (box.extent.file, box.extent.start) == (before.extent.file, before.extent.end)


def _last(shape: tuple[int, ...], bounds: Sequence[tuple[int, int]]) -> int:
    """Return the last dimension of some first ones that a slice does not have whole."""
    return max((d for d, (dim, (_, size)) in enumerate(zip(shape, bounds, strict=False)) if size != dim), default=0)


def _tile(boxes: Sequence[Box], rows: int, row_bytes: int) -> bool:
    """Say whether boxes tile the rows: their areas add up, and no corner but four is that of an odd number of boxes."""
    odd: set[tuple[int, int]] = set()
    for box in boxes:
        for row in (box.first, box.first + box.rows):
            odd ^= {(row, box.column), (row, box.column + box.row_bytes)}
    corners = {(row, column) for row in (0, rows) for column in (0, row_bytes)} if boxes else set()
    return odd == corners and sum(box.rows * box.row_bytes for box in boxes) == rows * row_bytes
