"""The tensors of a checkpoint of torch as variables, tables and blobs: what its indexes say, proved by the items."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import Blob, DenseEntry, Extent, Problem, StoredSum
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.dcp.archives import read_values
from edl_ckpt.core.sources.dcp.boxes import BoxValues, SavedTensor, gathered, untiled
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item
from edl_ckpt.core.sources.dcp.tables import add_tables
from edl_ckpt.core.sources.steps.content import Content, Found
from edl_ckpt.core.sources.steps.interface import HEAD_BYTES


@dataclass(frozen=True, slots=True)
class _ReadIndex:
    """What one index names, and the directory that it is in, with a slash at its end."""

    folder: str
    stored_in: Found
    tensors: Sequence[IndexedTensor]
    items: Sequence[Item]


def add_all(content: Content, head: str) -> None:
    """Add the tensors of every index, a file that is named `head`, to the content of a version."""
    saved: dict[str, SavedTensor] = {}
    for index in _with_different_names(list(_indexes(content, head))):
        saved |= {one.tensor.name: one for one in _saved(content, index) if one.parts}
    add_tables(saved)
    for one in saved.values():
        _add_variable(one)
    for shard in content.shards.values():
        shard.infos = list(dict.fromkeys(shard.infos))  # one for all parts of a table


def _indexes(content: Content, head: str) -> Iterator[_ReadIndex]:
    """Yield the indexes that can be read."""
    for name, stored_in in content.files.items():
        if name.rpartition("/")[2] != head or stored_in.reader is None:
            continue
        try:
            root = metadata.read(stored_in.reader.read(0, min(stored_in.reader.size_bytes, HEAD_BYTES)))
            metadata.ends(root)  # raises the error of a path
            yield _ReadIndex(name[: -len(head)], stored_in, list(metadata.tensors(root)), list(metadata.items(root)))
        except (CorruptError, UnsupportedError) as error:
            error.path = error.path or stored_in.file.path
            content.fail(stored_in.shard, error)


def _with_different_names(indexes: Sequence[_ReadIndex]) -> Iterator[_ReadIndex]:
    """Yield indexes; names that two of them have get those of their directories before them."""
    counts = Counter(tensor.name for index in indexes for tensor in index.tensors)
    for index in indexes:
        prefix = index.folder.replace("/", ".")
        named = {
            tensor.name: tensor.name if counts[tensor.name] == 1 else prefix + tensor.name for tensor in index.tensors
        }
        tensors = [replace(tensor, name=named[tensor.name]) for tensor in index.tensors]
        items = [replace(item, name=named.get(item.name, item.name)) for item in index.items]
        yield _ReadIndex(index.folder, index.stored_in, tensors, items)


def _saved(content: Content, index: _ReadIndex) -> Iterator[SavedTensor]:
    """Yield the tensors of an index with dtypes of ours; add all else that it names as blobs, and what is wrong."""
    tensors = {tensor.name: tensor for tensor in index.tensors if tensor.dtype in DTYPES}
    kinds = {tensor.name: tensor.dtype for tensor in index.tensors}
    of_file: dict[str, list[Item]] = defaultdict(list)
    for item in index.items:
        path = index.folder + item.path
        if item.name in tensors:
            of_file[path].append(item)
        elif path in content.files:
            _add_blob(content.files[path], item, kinds.get(item.name) or "value")
    parts: dict[tuple[str, tuple[int, ...]], BoxValues | None] = {}

    def read(path: str) -> None:
        parts.update(_parts(content.files.get(path), tensors, of_file[path]))

    run_all(read, of_file, content.workers)
    for tensor in tensors.values():
        one = _whole(tensor, parts)
        if isinstance(one, str):
            index.stored_in.shard.problems.append(Problem("malformed", tensor.name, None, one))
        else:
            yield one


def _parts(
    stored_in: Found | None, tensors: dict[str, IndexedTensor], items: Sequence[Item]
) -> Iterator[tuple[tuple[str, tuple[int, ...]], BoxValues | None]]:
    """Yield the boxes of a file by names and offsets; None for one that cannot be read, whose shard gets a problem."""
    yield from (((item.name, item.offsets), None) for item in items)
    if stored_in is None or stored_in.reader is None:
        return
    for item, values in read_values(stored_in.reader, items):
        piece = next((p for p in tensors[item.name].pieces if p.offsets == item.offsets), None)
        wanted = tensors[item.name].dtype
        if isinstance(values, UnsupportedError):
            _add_blob(stored_in, item, "item")
            stored_in.shard.problems.append(_lost(item, values))
        elif isinstance(values, CorruptError):
            stored_in.shard.problems.append(Problem(values.code, item.name, values.offset, values.message))
        elif piece is None or (values.dtype, values.shape) != (wanted, piece.sizes):
            said = f"{list(piece.sizes)} of {wanted}" if piece else "no box there"
            message = (
                f"its item at {list(item.offsets)} has {list(values.shape)} of {values.dtype}; the index has {said}"
            )
            stored_in.shard.problems.append(Problem("malformed", item.name, item.start, message))
        else:
            yield (item.name, item.offsets), BoxValues(piece, stored_in, values, item)
            if values.end > values.start:
                extent = Extent(values.start, values.end, file=stored_in.number)
                stored_in.shard.sums.append(StoredSum(item.name, "crc32", values.crc, (extent,)))


def _whole(tensor: IndexedTensor, parts: dict[tuple[str, tuple[int, ...]], BoxValues | None]) -> SavedTensor | str:
    """Return a tensor with its boxes, or why the index cannot be right."""
    pieces = [piece for piece in tensor.pieces if 0 not in piece.sizes] or list(tensor.pieces[:1])
    for piece in pieces:
        if (tensor.name, piece.offsets) not in parts:
            return f"the index has no item for the box at {list(piece.offsets)}"
    try:
        if fault := untiled(tensor.shape, pieces):
            return fault
    except UnsupportedError as error:
        return error.message
    there = [part for piece in pieces if (part := parts[tensor.name, piece.offsets])]
    return SavedTensor(tensor, there, whole=len(there) == len(pieces))


def _add_blob(stored_in: Found, item: Item, kind: str) -> None:
    stored_in.shard.blobs.append(Blob(item.name, kind, Extent(item.start, item.end, file=stored_in.number)))


def _lost(item: Item, error: UnsupportedError) -> Problem:
    """Return the warning of a tensor that cannot be read here."""
    return Problem("unsupported-item", item.name, item.start, error.message, warning=True)


def _add_variable(saved: SavedTensor) -> None:
    """Add a tensor to the shard of its first box; nothing where boxes of it are missing."""
    if not saved.whole:
        return
    tensor, first = saved.tensor, saved.first
    shard, size = first.stored_in.shard, saved.size_bytes
    extent = Extent(first.values.first, first.values.first + size, file=first.stored_in.number)
    if size and not (len(saved.parts) == 1 and first.values.is_plain):
        try:
            rows = gathered(tensor.shape, saved.parts, lambda of_box: shard.number(of_box.file))
        except UnsupportedError as error:
            shard.problems.append(_lost(first.item, error))
            return
        extent = Extent(0, size, file=shard.gather(rows))
    shard.variables.append(DenseEntry(tensor.name, saved.dtype, tensor.shape, extent, first.item.start))
