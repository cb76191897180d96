"""The tensors of a checkpoint of torch as variables, tables and items: what its indexes say, proved by the items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.model.dtypes import DTYPES, TENSOR_DTYPES, item_type
from edl_ckpt.core.model.tables import Box, DenseEntry, Extent, GatheredRows, Problem, StoredSum
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.dcp.archives import read_values
from edl_ckpt.core.sources.dcp.boxes import BoxValues, SavedTensor, gathered
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item, SavedBox
from edl_ckpt.core.sources.dcp.names import shown_names
from edl_ckpt.core.sources.dcp.pickles import uncollected
from edl_ckpt.core.sources.dcp.tables import add_tables
from edl_ckpt.core.sources.dcp.tiling import untiled
from edl_ckpt.core.sources.steps.content import Content, Found, problem_of
from edl_ckpt.core.sources.torch.tensors import ItemValues
from edl_ckpt.core.storage.interface import RangeReader

_Key: TypeAlias = tuple[str, tuple[int, ...]]
"""The name of a tensor and the offsets of a box."""


@dataclass(frozen=True, slots=True)
class _ReadIndex:
    """What one index names, and the directory that it is in, with a slash at its end."""

    folder: str
    stored_in: Found
    tensors: Sequence[IndexedTensor]
    items: Sequence[Item]
    variables: frozenset[str]
    """What the index marks as variables."""


def add_all(content: Content, indexes: Sequence[str]) -> None:
    """Add the tensors of some indexes, which are open files, to the content of a version."""
    saved: dict[str, SavedTensor] = {}
    variables: set[str] = set()
    for index in _with_different_names(list(_indexes(content, indexes))):
        saved |= {one.tensor.name: one for one in _saved(content, index) if one.parts}
        variables |= index.variables
    others = {name: one for name, one in saved.items() if one.tensor.dtype not in DTYPES or name in variables}
    if content.tables:
        for name in others:
            del saved[name]
        add_tables(saved)
        saved |= others
    for one in saved.values():
        add_variable(one)
    for shard in content.shards.values():
        shard.infos = list(dict.fromkeys(shard.infos))  # one for all parts of a table


def _indexes(content: Content, paths: Sequence[str]) -> Iterator[_ReadIndex]:
    """Yield the indexes that can be read."""
    for path in paths:
        stored_in = content.files[path]
        if stored_in.reader is None:
            continue
        try:
            yield _read(path, stored_in, stored_in.reader)
        except (CorruptError, UnsupportedError) as error:
            error.path = error.path or stored_in.file.path
            content.fail(stored_in.shard, error)


def _read(path: str, stored_in: Found, reader: RangeReader) -> _ReadIndex:
    """Return the index in an open file."""
    with uncollected():
        root = metadata.read(reader)
        metadata.ends(root)  # raises the error of a path
        folder = path[: path.rfind("/") + 1]
        return _ReadIndex(
            folder, stored_in, list(metadata.tensors(root)), list(metadata.items(root)), metadata.marked_variables(root)
        )


def _with_different_names(indexes: Sequence[_ReadIndex]) -> Iterator[_ReadIndex]:
    """Yield indexes with the names of a step that has several of them, as `shown_names`."""
    named = shown_names({index.folder: [tensor.name for tensor in index.tensors] for index in indexes})
    for index in indexes:
        shown = named[index.folder]
        tensors = [replace(one, name=shown[one.name]) for one in index.tensors]
        items = [replace(one, name=shown.get(one.name, one.name)) for one in index.items]
        variables = frozenset(shown.get(name, name) for name in index.variables)
        yield replace(index, tensors=tensors, items=items, variables=variables)


def _saved(content: Content, index: _ReadIndex) -> Iterator[SavedTensor]:
    """Yield the tensors of an index whose bytes are found; add all else that it names as items, and what is wrong."""
    kinds = {tensor.name: tensor.dtype for tensor in index.tensors}
    of_file: dict[str, list[Item]] = defaultdict(list)
    whole_items: dict[str, list[Item]] = defaultdict(list)
    for item in index.items:
        if kinds.get(item.name) in TENSOR_DTYPES:
            of_file[index.folder + item.path].append(item)
        else:
            whole_items[item.name].append(item)
    tensors = [tensor for tensor in index.tensors if tensor.dtype in TENSOR_DTYPES]
    boxes = _boxes_of(tensors)
    parts: dict[_Key, BoxValues | None] = {}
    unread: set[str] = set()

    def read(path: str) -> None:
        parts.update(_parts(content.files.get(path), boxes, of_file[path], unread))

    run_all(read, of_file, content.workers)
    for item in chain.from_iterable(of_file.values()) if unread else ():
        if item.name in unread:
            whole_items[item.name].append(item)
    _add_items(content, index, whole_items)
    for tensor in tensors:
        if tensor.name in unread:
            continue
        try:
            saved = _whole(tensor, parts)
            if not saved.whole and tensor.name not in _told(content):
                message = "a file with values of it cannot be read"
                gone = Problem("missing-file", tensor.name, None, message, warning=True)
                index.stored_in.shard.problems.append(gone)
            yield saved
        except (CorruptError, UnsupportedError) as error:
            index.stored_in.shard.problems.append(problem_of(error, tensor.name))


def _boxes_of(tensors: Iterable[IndexedTensor]) -> dict[_Key, tuple[SavedBox, str]]:
    """Return the boxes of tensors with their dtypes; of two at one place, that with values."""
    boxes: dict[_Key, tuple[SavedBox, str]] = {}
    for tensor in tensors:
        for piece in sorted(tensor.pieces, key=lambda piece: 0 not in piece.sizes):
            boxes[tensor.name, piece.offsets] = piece, tensor.dtype
    return boxes


def _told(content: Content) -> set[str]:
    return {problem.subject for shard in content.shards.values() for problem in shard.problems}


def _parts(
    stored_in: Found | None, boxes: Mapping[_Key, tuple[SavedBox, str]], items: Sequence[Item], unread: set[str]
) -> Iterator[tuple[_Key, BoxValues | None]]:
    """Yield the boxes of a file by names and offsets; None for one that cannot be read, whose shard gets a problem.

    Tensors whose items are sound, but have their values in a way that is not read, are added to `unread`.
    """
    yield from (((item.name, item.offsets), None) for item in items)
    if stored_in is None or stored_in.reader is None:
        return
    for item, values in read_values(stored_in.reader, items):
        box, dtype = boxes.get((item.name, item.offsets), (None, ""))
        fault = values if isinstance(values, CorruptError | UnsupportedError) else _mismatch(item, values, box, dtype)
        if isinstance(values, UnsupportedError):
            unread.add(item.name)
        if fault:
            stored_in.shard.problems.append(problem_of(fault, item.name, item.start))
        elif box and isinstance(values, ItemValues):
            yield (item.name, item.offsets), BoxValues(box, stored_in, values, item)
            extent = Extent(values.start, values.end, file=stored_in.number)
            stored_in.shard.sums.append(StoredSum(item.name, "crc32", values.crc, (extent,)))


def _mismatch(item: Item, values: ItemValues, box: SavedBox | None, dtype: str) -> CorruptError | None:
    """Return how an item contradicts the index; None where it does not."""
    if box and (values.dtype, values.shape) == (dtype, box.sizes):
        return None
    wanted = f"{list(box.sizes)} of {dtype}" if box else "no box there"
    stored = f"its item at {list(item.offsets)} has {list(values.shape)} of {values.dtype}"
    return CorruptError(f"{stored}; the index has {wanted}")


def _whole(tensor: IndexedTensor, parts: Mapping[_Key, BoxValues | None]) -> SavedTensor:
    """Return a tensor with its boxes; CorruptError when the index cannot be right."""
    pieces = [piece for piece in tensor.pieces if 0 not in piece.sizes] or list(tensor.pieces[:1])
    for piece in pieces:
        if (tensor.name, piece.offsets) not in parts:
            raise CorruptError(f"the index has no item for the box at {list(piece.offsets)}")
    is_empty = 0 in tensor.shape and all(0 in piece.sizes for piece in pieces)  # then its boxes tile nothing
    if not is_empty and (fault := untiled(tensor.shape, pieces)):
        raise CorruptError(fault)
    there = [part for piece in pieces if (part := parts[tensor.name, piece.offsets])]
    return SavedTensor(tensor, there, whole=len(there) == len(pieces))


class _WholeItem(NamedTuple):
    """What an index has of a value that is no tensor, or of a tensor that is not read: its items, one for each box."""

    name: str
    kind: str
    shape: tuple[int, ...]
    items: Sequence[Item]

    @property
    def in_order(self) -> Sequence[Item]:
        """Return the items in the order of their boxes: so their bytes are the same, whichever ranks have them."""
        return sorted(self.items, key=lambda item: item.offsets)


def _add_items(content: Content, index: _ReadIndex, items: Mapping[str, Sequence[Item]]) -> None:
    """Add items by their names, each of the kind that the index says."""
    known = {tensor.name: tensor for tensor in index.tensors}
    for name, some in items.items():
        tensor = known.get(name)
        dtype, shape = (tensor.dtype, tensor.shape) if tensor else ("", ())
        kind = "item" if dtype in TENSOR_DTYPES else dtype or "value"  # no item has the name of a dtype
        _add_item(content, index, _WholeItem(name, kind, shape, some))


def _add_item(content: Content, index: _ReadIndex, item: _WholeItem) -> None:
    """Add an item to the shard that has its first box: the bytes of its zips, one after the other."""
    places = [(content.files.get(index.folder + one.path), one) for one in item.in_order]
    found = [(stored_in, one) for stored_in, one in places if stored_in is not None and stored_in.reader is not None]
    if len(found) < len(places):
        gone = Problem("missing-file", item.name, None, "a file with values of it cannot be read", warning=True)
        index.stored_in.shard.problems.append(gone)
        return
    for stored_in, one in found:
        size_bytes = one.end if stored_in.reader is None else stored_in.reader.size_bytes
        if one.end > size_bytes:
            message = f"the file ends at byte {size_bytes:,}; this tensor needs bytes up to {one.end:,}"
            stored_in.shard.problems.append(Problem("values-outside-content", item.name, one.start, message))
            return
    (first, one), shard = found[0], found[0][0].shard
    extent = Extent(one.start, one.end, file=first.number)
    if len(found) > 1:
        boxes: list[Box] = []
        size = 0
        for stored_in, part in found:
            own = Extent(part.start, part.end, file=shard.number(stored_in.file))
            boxes.append(Box(own, 1, own.size_bytes, size))
            size += own.size_bytes
        extent = Extent(0, size, file=shard.gather(GatheredRows(size, 1, tuple(boxes))))
    shard.variables.append(DenseEntry(item.name, item_type(item.kind), item.shape, extent, one.start))


def add_variable(saved: SavedTensor) -> None:
    """Add a tensor to the shard of its first box; nothing where boxes of it are missing."""
    if not saved.whole:
        return
    tensor, first, size = saved.tensor, saved.first, saved.size_bytes
    shard = first.stored_in.shard
    extent = Extent(first.values.first, first.values.first + size, file=first.stored_in.number)
    if size and not (len(saved.parts) == 1 and first.values.is_plain):
        try:
            rows = gathered(tensor.shape, saved.parts, lambda of_box: shard.number(of_box.file))
        except UnsupportedError as error:
            shard.problems.append(problem_of(error, tensor.name, first.item.start))
            return
        extent = Extent(0, size, file=shard.gather(rows))
    shard.variables.append(DenseEntry(tensor.name, saved.dtype, tensor.shape, extent, first.item.start))
