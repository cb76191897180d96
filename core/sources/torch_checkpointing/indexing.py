"""The items of torch_checkpointing as variables, tables and items: each name begins with that of its item.

So `model` with `emb.weight` is `model.emb.weight`, as torch.distributed.checkpoint names it. An item may be a
safetensors file of each rank, a JSON document, or bytes: of the first the metadata say which part of a tensor it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.safetensors.indexing import read_header
from edl_ckpt.core.sources.steps.content import Content, Found
from edl_ckpt.core.sources.torch.files import FileContents, FileTensor, FileValue, digest_of, open_file
from edl_ckpt.core.sources.torch.indexing import Source, add_sources
from edl_ckpt.core.sources.torch.sharding import Share, check_share
from edl_ckpt.core.sources.torch.tensors import ItemValues
from edl_ckpt.core.sources.torch.tree import Unread
from edl_ckpt.core.sources.torch_checkpointing.metadata import Metadata, read_metadata
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA, files_by_item, item_named
from edl_ckpt.core.storage.interface import RangeReader

_MOST_DOCUMENT: Final = 64 << 20
Shares = Mapping[tuple[str, int], Share]


def add_all(content: Content) -> None:
    """Add what the open files of a version have."""
    metadata = _metadata(content)
    items: dict[str, dict[int, str]] = {}
    if metadata is None:
        items = files_by_item([path for path in content.files if path != METADATA])
    else:
        items = {item: dict(ranks) for item, ranks in metadata.files.items()}
        taken = {path for ranks in items.values() for path in ranks.values()}
        for path in content.files:
            named_so = item_named(path)
            if path not in taken and named_so is not None:
                items.setdefault(named_so[0], {})[named_so[1]] = path
    ranks = metadata.ranks if metadata else max((max(every) for every in items.values()), default=0) + 1
    by_item: dict[str, list[Source]] = {}
    for item, paths in items.items():
        shares = metadata.shares.get(item, {}) if metadata else {}
        by_item[item] = []
        for rank, path in sorted(paths.items()):
            file = content.files.get(path)
            if file is None or file.reader is None:
                continue
            try:
                opened = _opened(file.reader, path)
                by_item[item].append(Source(path, rank, file, placed(opened, shares, rank)))
            except (CorruptError, UnsupportedError) as error:
                error.path = error.path or file.file.path
                content.fail(file.shard, error)
    add_sources(content, by_item, {item: f"{item}." for item in by_item}, ranks=ranks)


def _metadata(content: Content) -> Metadata | None:
    found: Found | None = content.files.get(METADATA)
    if found is None or found.reader is None:
        return None
    return read_metadata(found.reader)


def _opened(reader: RangeReader, path: str) -> FileContents:
    """Return what a file of an item contains."""
    if path.endswith(".safetensors"):
        tensors = []
        for one in read_header(reader).tensors:
            strides, step = list[int](), one.dtype.itemsize
            for size in reversed(one.dims):
                strides.append(step)
                step *= size
            values = ItemValues(one.dtype.name, one.dims, tuple(reversed(strides)), one.start, one.start, one.end, 0)
            tensors.append(FileTensor(tuple(one.name.split(".")), values, None))
        return FileContents(tensors, (), (), (), {})
    if path.endswith(".pt"):
        return open_file(reader)
    size = reader.size_bytes
    content = digest_of(reader.read(0, size)) if size <= _MOST_DOCUMENT else b""
    return FileContents((), [FileValue((), 0, size, None, content)], (), (), {})


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
