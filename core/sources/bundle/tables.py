"""Tables in a bundle: `NAME-keys` and `NAME-values`, as DeepRec, TFPlus and TFRA save them, in parts or not.

DeepRec's `NAME/part_3-keys` and TFRA's `NAME_mht_4of8-keys` are parts of the table NAME. So are those of TFRA's saved
objects, `.../tables_of_VARIABLE/3/.ATTRIBUTES/table-keys`. Frequencies, versions and an optimizer's slots
are companions. Whatever does not fit is left to be a variable.

Below them: open data files; partitioned variables, which are saved in slices and read as one; and what makes all
tensors of a bundle variables, tables and items of the shards that have their bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from typing import Final, NamedTuple, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.kernel.checksums import unmasked
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES, TF_DTYPES, DType, item_type
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import (
    Box,
    DenseEntry,
    Encoding,
    Extent,
    GatheredRows,
    Problem,
    StoredSum,
    TableEntry,
    TableInfo,
)
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.sources.bundle.index import Index, Slice, StoredTensor
from edl_ckpt.core.sources.steps.content import Content, Found, ShardContent

_BYTES: Final = (
    *(dtype for dtype in TENSOR_DTYPES.values() if dtype.tf_enum),
    DType("qint8", 1, 11),
    DType("quint8", 1, 12),
    DType("qint32", 4, 13),
    DType("qint16", 2, 15),
    DType("quint16", 2, 16),
)
TENSORS: Final = {dtype.tf_enum: dtype for dtype in _BYTES}
"""The element types whose tensors are elements of whole bytes, by tensorflow.DataType."""
WRITTEN_DTYPES: Final = frozenset(one.name for number, one in TENSORS.items() if number not in range(26, 29))
"""Those that go into new bundles: TensorFlow 2.16 lists no bundle with a number from 26 to 28, which came later."""
_KINDS: Final = {7: "string", 20: "resource", 21: "variant", 29: "int4", 30: "uint4"}
"""What tensorflow.DataType calls the other ones."""
_SUMMED_APART: Final = {7, 21}
"""Texts and variants: `verify --deep` makes their checksum from their parts."""
_ENCODED: Final = {7, 20, 21}
"""Those whose checksum is of other bytes than those of the file."""


class DataFile(NamedTuple):
    """An open data file: its shard, and its number there."""

    shard: ShardContent
    file: ShardFile
    number: int

    def extent(self, tensor: StoredTensor) -> Extent:
        """Return the bytes of a tensor in it."""
        return Extent(tensor.start, tensor.end, file=self.number)

    def add_sum(self, name: str, tensor: StoredTensor, extent: Extent) -> None:
        """Add the checksum of a tensor, if it is one of the bytes in the file."""
        if tensor.dtype in _SUMMED_APART:
            self.shard.text_crcs.append((name, tensor.crc32c))
        if tensor.dtype not in _ENCODED:
            self.shard.sums.append(StoredSum(name, "crc32c", unmasked(tensor.crc32c), (extent,)))


DataFiles = Mapping[int, DataFile]
"""Open data files by their numbers."""


def dtype_of(name: str, tensor: StoredTensor, file: DataFile) -> DType:
    """Return the dtype of a tensor, or the type of an item; CorruptError when its bytes are not its shape's."""
    dtype = TENSORS.get(tensor.dtype) or item_type(_KINDS.get(tensor.dtype, f"dtype {tensor.dtype}"))
    if not dtype.is_item and prod(tensor.shape) * dtype.itemsize != tensor.end - tensor.start:
        message = f"{name!r} has {tensor.end - tensor.start} bytes; expected {dtype.name} {list(tensor.shape)}"
        raise CorruptError(message, path=file.file.path, offset=tensor.start)
    return dtype


def add_tensor(name: str, tensor: StoredTensor, file: DataFile) -> None:
    """Add a tensor that lies in one extent, with its checksum."""
    extent, dtype = file.extent(tensor), dtype_of(name, tensor, file)
    file.shard.variables.append(DenseEntry(name, dtype, tensor.shape, extent, tensor.start))
    file.add_sum(name, tensor, extent)


_COMPANIONS: Final = ("freqs", "versions")
_PARTS: Final = [
    re.compile(r"(.*)/part_([0-9]{1,9})((?:/.*)?)", re.ASCII | re.DOTALL),
    re.compile(r"(.*)_mht_([0-9]{1,9})of[0-9]+()", re.ASCII | re.DOTALL),
    re.compile(r"(.*/tables_of_[^/]+)/([0-9]{1,9})/\.ATTRIBUTES/table()", re.ASCII | re.DOTALL),
]
"""How parts are spelled: the table's name without the part's number is the first group and the third one."""
_ENCODINGS: Final = {9: Encoding.INT64, 23: Encoding.UINT64, 3: Encoding.INT32}


class KeyedPart(NamedTuple):
    """A part of a table: its number, -1 for a whole table, the begin of the names of its tensors, and two of these."""

    number: int
    stem: str
    keys: StoredTensor
    values: StoredTensor

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.keys.shape[0]


class KeyedTable(NamedTuple):
    """A table: its name, its parts in order, what the names of their values end with, and whose companion it is."""

    name: str
    parts: Sequence[KeyedPart]
    ending: str = "values"
    placement: Placement | None = None
    companion_of: str = ""
    slot: str = ""

    @property
    def dtype(self) -> DType:
        """Return the dtype of its rows."""
        return TF_DTYPES[self.parts[0].values.dtype]

    @property
    def dim(self) -> int:
        """Return the elements of a row."""
        return (*self.parts[0].values.shape, 1)[1]

    @property
    def tensors(self) -> Iterator[tuple[str, StoredTensor]]:
        """Return the tensors that its parts are, by their names."""
        for part in self.parts:
            yield f"{part.stem}-keys", part.keys
            yield f"{part.stem}-{self.ending}", part.values


def find_tables(index: Index) -> list[KeyedTable]:
    """Return the tables among the tensors of an index."""
    by_name: defaultdict[str, list[KeyedPart]] = defaultdict(list)
    for stem in (name.removesuffix("-keys") for name in index.tensors if name.endswith("-keys")):
        keys, values = index.tensors[f"{stem}-keys"], index.tensors.get(f"{stem}-values")
        if values is not None and _are_rows(keys, values, 2) and keys.dtype in _ENCODINGS and values.shape[1]:
            name, number = part_of(stem)
            by_name[name].append(KeyedPart(number, stem, keys, values))
    tables: dict[str, KeyedTable] = {}
    for name, parts in by_name.items():
        parts.sort(key=lambda part: part.number)
        alike = len({(part.keys.dtype, part.values.dtype, part.values.shape[1]) for part in parts}) == 1
        for table in [KeyedTable(name, parts)] if alike else [KeyedTable(part.stem, [part]) for part in parts]:
            tables[table.name] = table._replace(placement=_placement(index, table))
    slots = [_as_slot(table, tables) for table in tables.values()]
    return [*slots, *(companion for table in slots for companion in _companions(index, table))]


def part_of(stem: str) -> tuple[str, int]:
    """Return the table that a part belongs to, and its number, from the begin of its tensors' names.

    >>> part_of("item/part_3/Adagrad"), part_of("item")
    (('item/Adagrad', 3), ('item', -1))
    """
    match = next(filter(None, (pattern.fullmatch(stem) for pattern in _PARTS)), None)
    return (match[1] + match[3], int(match[2])) if match else (stem, -1)


def _are_rows(keys: StoredTensor, values: StoredTensor, dims: int) -> bool:
    """Say whether values have a row for each key, and both the bytes that their shapes need."""
    for tensor in (keys, values):
        dtype = TF_DTYPES.get(tensor.dtype)
        if dtype is None or tensor.slices or prod(tensor.shape) * dtype.itemsize != tensor.end - tensor.start:
            return False
    return len(keys.shape) == 1 and len(values.shape) == dims and values.shape[0] == keys.shape[0]


def _placement(index: Index, table: KeyedTable) -> Placement | None:
    """Return the rule of DeepRec where each part is alone in the data file of its number, else no rule."""
    offsets = all(f"{part.stem}-partition_offset" in index.tensors for part in table.parts)
    placed = [(part.number, part.keys.shard, part.values.shard) for part in table.parts]
    return Placement.MOD_1000_MOD if offsets and placed == [(n, n, n) for n in range(index.shards)] else None


def _companions(index: Index, table: KeyedTable) -> Iterator[KeyedTable]:
    """Yield the frequencies and versions of a table, where all parts have them."""
    for ending in _COMPANIONS:
        values = [index.tensors.get(f"{part.stem}-{ending}") for part in table.parts]
        parts = [
            part._replace(values=one)
            for part, one in zip(table.parts, values, strict=True)
            if one is not None and one.dtype in _ENCODINGS and _are_rows(part.keys, one, 1)
        ]
        if len(parts) == len(values) and len({part.values.dtype for part in parts}) == 1:
            yield KeyedTable(f"{table.name}-{ending}", parts, ending, table.placement, table.name, ending)


def _as_slot(table: KeyedTable, tables: Mapping[str, KeyedTable]) -> KeyedTable:
    """Return a table as the companion of the one whose name its own begins with, if the checksums of ids are equal."""
    name, slot = table.name, ""
    while "/" in name:
        name, _, last = name.rpartition("/")
        slot = f"{last}/{slot}" if slot else last
        keys = [(part.number, part.keys.crc32c, part.rows) for part in table.parts]
        if name in tables and keys == [(part.number, part.keys.crc32c, part.rows) for part in tables[name].parts]:
            return table._replace(companion_of=name, slot=slot)
    return table


def add_table(table: KeyedTable, files: DataFiles) -> None:
    """Add a table to the shards that have its values; parts in files that are not open are left out."""
    by_shard: defaultdict[int, list[KeyedPart]] = defaultdict(list)
    for part in table.parts:
        if part.keys.shard in files and part.values.shard in files:
            by_shard[part.values.shard].append(part)
    for number, parts in by_shard.items():
        _add_parts(table, parts, files[number], files)
    for name, tensor in table.tensors:
        if tensor.shard in files:
            files[tensor.shard].add_sum(name, tensor, files[tensor.shard].extent(tensor))


def _add_parts(table: KeyedTable, parts: Sequence[KeyedPart], file: DataFile, files: DataFiles) -> None:
    """Add those parts of a table that one shard has, as one."""
    dtype, dim, placement, start = table.dtype, table.dim, table.placement, parts[0].values.start
    total, owner, slot = sum(part.rows for part in table.parts), table.companion_of, table.slot
    info = TableInfo(table.name, dim, "", dtype=dtype.tf_enum, companion_of=owner, slot=slot, total=total)
    file.shard.infos.append(info)
    parts = [part for part in parts if part.rows]
    ids = tuple(
        file.shard.id_run(files[keys.shard].file, keys.start, keys.end, _ENCODINGS[keys.dtype], keys.shape[0])
        for keys in (part.keys for part in parts)
    )
    values = _values(parts, file, dim * dtype.itemsize) if parts else Extent(start, start, file=file.number)
    rows = sum(part.rows for part in parts)
    entry = TableEntry(table.name, dtype, dim, rows, values, ids, start, placement=placement)
    file.shard.tables.append(entry.described())


def _values(parts: Sequence[KeyedPart], file: DataFile, row_bytes: int) -> Extent:
    """Return the rows of parts, one after the other."""
    if len(parts) == 1:
        return file.extent(parts[0].values)
    firsts = [*accumulate((part.rows for part in parts), initial=0)]
    boxes = [
        Box(file.extent(part.values), row_bytes, part.rows, first) for part, first in zip(parts, firsts, strict=False)
    ]
    number = file.shard.gather(GatheredRows(firsts[-1], row_bytes, tuple(boxes)))
    return Extent(0, firsts[-1] * row_bytes, file=number)


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
    whole = [(start, dim - start if size is None else size) for (start, size), dim in zip(one, shape, strict=False)]
    return [(start, size) for (start, size), dim in zip(whole, shape, strict=False) if start + size <= dim]


def _add_variable(name: str, tensor: StoredTensor, parts: Sequence[SlicePart]) -> None:
    """Add a variable to the shard of its first slice: gathered, unless its slices lie one after the other."""
    dtype, shape, home = TENSORS[tensor.dtype], tensor.shape, parts[0][2]
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
            elif name not in used and files:
                fault = Problem("missing-file", name, None, "the file with its values cannot be read", warning=True)
                next(iter(files.values())).shard.problems.append(fault)
        except CorruptError as error:  # TensorFlow reads the others, and so do we
            home = (file or next(iter(files.values()))).shard
            home.problems.append(Problem(error.code, name, error.offset, f"{base_name(path)}: {error.message}"))
        except UnsupportedError as error:
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
