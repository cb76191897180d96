"""Partitioned variables: saved in slices, read as the one variable that they are.

The tensors of a bundle as variables, tables and blobs of the shards that have their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.model.dtypes import TF_DTYPES
from edl_ckpt.core.model.tables import Box, DenseEntry, Extent, GatheredRows
from edl_ckpt.core.sources.bundle.index import Index, Slice, StoredTensor
from edl_ckpt.core.sources.bundle.tables import DataFile, DataFiles, add_table, add_tensor, dtype_of, find_tables
from edl_ckpt.core.sources.steps.content import Content, Found

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
    if tensor.dtype not in TF_DTYPES:
        for _, part, file in parts:
            add_tensor(name, part, file)
        return
    _add_variable(name, tensor, parts)
    for _, part, file in parts:
        dtype_of(name, part, file)
        file.add_sum(name, part, file.extent(part))


def _bounds(shape: tuple[int, ...], one: Slice) -> list[tuple[int, int]]:
    """Return the start and the length of a slice in each dimension; what does not fit the shape is left out."""
    whole = [(start, dim - start if size is None else size) for (start, size), dim in zip(one, shape, strict=False)]
    return [(start, size) for (start, size), dim in zip(whole, shape, strict=False) if start + size <= dim]


def _add_variable(name: str, tensor: StoredTensor, parts: Sequence[SlicePart]) -> None:
    """Add a variable to the shard of its first slice: gathered, unless its slices lie one after the other."""
    dtype, shape, home = TF_DTYPES[tensor.dtype], tensor.shape, parts[0][2]
    cut = [d for bounds, *_ in parts for d, (_, size) in enumerate(bounds) if size != shape[d]]
    axis = max([1, *cut])  # the dimensions before it count the rows
    rows, row_bytes = prod(shape[:axis]), prod(shape[axis:]) * dtype.itemsize
    if sum(prod(size for _, size in bounds[: _last(shape[:axis], bounds)]) for bounds, *_ in parts) > _MOST_BOXES:
        raise UnsupportedError(f"{name!r} is saved in too many pieces")
    boxes = [box for part in parts if 0 not in part[1].shape for box in _boxes(part, shape, axis, dtype.itemsize, home)]
    boxes.sort(key=lambda box: (box.first, box.column))
    if not _tile(boxes, rows, row_bytes):
        raise CorruptError(f"damaged index: the slices of {name!r} do not tile {list(shape)}")
    extent = Extent(0, 0, file=home.number)
    if boxes and all(box.row_bytes == row_bytes for box in boxes) and all(map(_follows, boxes, boxes[1:])):
        extent = Extent(boxes[0].extent.start, boxes[-1].extent.end, file=boxes[0].extent.file)
    elif boxes:
        number = home.shard.gather(GatheredRows(rows, row_bytes, tuple(boxes)))
        extent = Extent(0, rows * row_bytes, file=number)
    home.shard.variables.append(DenseEntry(name, dtype, shape, extent, parts[0][1].start))


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


def add_tensors(content: Content, index: Index, opened: Mapping[int, Found], path: str) -> None:
    """Add every tensor whose bytes are in open files; a shard whose file ends too early is left out.

    `path` is that of the index.
    """
    files = {number: DataFile(one.shard, one.file, one.number) for number, one in opened.items()}
    for number, error in _cut_short(index, files):
        content.fail(files.pop(number).shard, error)
    used: set[str] = set()
    for table in find_tables(index):
        used.update(name for name, _ in table.tensors)
        add_table(table, files)
    for name, tensor in index.tensors.items():
        file = files.get(tensor.shard)
        try:
            if tensor.slices:
                add_slices(index, name, tensor, files)
            elif file is not None and name not in used:
                add_tensor(name, tensor, file)
        except EdlCkptError as error:
            error.path = error.path or path
            for shard in {id(one.shard): one.shard for one in ([file] if file else files.values())}.values():
                content.fail(shard, error)


def _cut_short(index: Index, files: DataFiles) -> list[tuple[int, CorruptError]]:
    """Return the data files that end before one of their tensors does, and what is wrong."""
    faults = []
    for number, end in index.ends().items():
        size = files[number].file.size_bytes if number in files else end
        if end > size:
            tensors = (*index.tensors.items(), *index.slices.items())
            name, tensor = next((name, one) for name, one in tensors if one.shard == number and one.end > size)
            message = f"{name!r} ends after the end of the file (at byte {tensor.end} of {size})"
            faults.append((number, CorruptError(message, path=files[number].file.path, offset=tensor.start)))
    return faults
