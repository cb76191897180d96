"""The items of torch_checkpointing as variables, tables and items: each name begins with that of its item.

So `model` with `emb.weight` is `model.emb.weight`, as torch.distributed.checkpoint names it. An item may be a
safetensors file of each rank, a JSON document, or bytes: of the first the metadata say which part of a tensor it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.safetensors.indexing import FileTensor as StoredTensor
from edl_ckpt.core.sources.safetensors.indexing import read_header
from edl_ckpt.core.sources.steps.content import Content, Found
from edl_ckpt.core.sources.torch.files import FileContents, FileTensor, FileValue, digest_of, open_file
from edl_ckpt.core.sources.torch.indexing import Source, add_sources
from edl_ckpt.core.sources.torch.sharding import Share, check_share
from edl_ckpt.core.sources.torch.tensors import ItemValues
from edl_ckpt.core.sources.torch.tree import Unread
from edl_ckpt.core.sources.torch_checkpointing.metadata import Metadata, read_metadata
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA, files_by_item, items_of, ranks_in
from edl_ckpt.core.storage.interface import RangeReader

_MOST_DOCUMENT: Final = 64 << 20
Shares = Mapping[tuple[str, int], Share]


def add_all(content: Content) -> None:
    """Add what the open files of a version have."""
    metadata = _metadata(content)
    if metadata is None:
        items = files_by_item([path for path in content.files if path != METADATA])
        ranks = ranks_in(items)
    else:
        items = items_of(content.files, metadata.files)
        ranks = metadata.ranks
    by_item: dict[str, list[Source]] = {}
    for item, paths in items.items():
        shares = metadata.shares.get(item, {}) if metadata else {}
        by_item[item] = _sources(content, paths, shares)
    add_sources(content, by_item, {item: f"{item}." for item in by_item}, ranks=ranks)


def _sources(content: Content, paths: Mapping[int, str], shares: Shares) -> list[Source]:
    """Return the files of an item that are open and can be read, by rank; the shards of others fail."""
    sources: list[Source] = []
    for rank, path in sorted(paths.items()):
        file = content.files.get(path)
        if file is None or file.reader is None:
            continue
        try:
            opened = _opened(file.reader, path)
            sources.append(Source(path, rank, file, placed(opened, shares, rank)))
        except (CorruptError, UnsupportedError) as error:
            error.path = error.path or file.file.path
            content.fail(file.shard, error)
    return sources


def _metadata(content: Content) -> Metadata | None:
    found: Found | None = content.files.get(METADATA)
    if found is None or found.reader is None:
        return None
    return read_metadata(found.reader)


def _opened(reader: RangeReader, path: str) -> FileContents:
    """Return what a file of an item contains."""
    if path.endswith(".safetensors"):
        tensors = [_tensor_of(stored) for stored in read_header(reader).tensors]
        return FileContents(tensors, (), (), (), {})
    if path.endswith(".pt"):
        return open_file(reader)
    size = reader.size_bytes
    content = digest_of(reader.read(0, size)) if size <= _MOST_DOCUMENT else b""
    return FileContents((), [FileValue((), 0, size, None, content)], (), (), {})


def _tensor_of(stored: StoredTensor) -> FileTensor:
    """Return a tensor of a safetensors file as one of an item: its name is a path, joined by points."""
    strides: list[int] = []
    step_bytes = stored.dtype.itemsize
    for size in reversed(stored.dims):
        strides.insert(0, step_bytes)
        step_bytes *= size
    start, end = stored.start, stored.end
    values = ItemValues(stored.dtype.name, stored.dims, tuple(strides), start, start, end, 0)
    return FileTensor(tuple(stored.name.split(".")), values, None)


def placed(opened: FileContents, shares: Shares, rank: int) -> FileContents:
    """Return the contents of a file with the parts that the metadata give tensors which do not say it themselves."""
    tensors: list[FileTensor] = []
    unread = list(opened.unread)
    for tensor in opened.tensors:
        share = tensor.share or shares.get((".".join(tensor.path), rank))
        try:
            if share is not None:
                check_share(share, tensor.values.shape)
        except CorruptError as error:
            unread.append(Unread(tensor.path, error, tensor.values.start))
        else:
            tensors.append(tensor._replace(share=share))
    return replace(opened, tensors=tensors, unread=unread)
