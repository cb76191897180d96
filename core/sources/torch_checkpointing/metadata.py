"""`metadata.pkl` of torch_checkpointing: how many ranks there were, and which part of each tensor a rank has.

It has dicts, lists, texts and numbers, and no name of a class. Of versions "1.0" and "2.0", the second is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.interface import NotOfFormatError
from edl_ckpt.core.sources.steps.interface import read_head
from edl_ckpt.core.sources.torch.machine import Items, Value, read
from edl_ckpt.core.sources.torch.sharding import Piece, Placement, Share, items_of, plain, share_of, sizes_of
from edl_ckpt.core.storage.interface import RangeReader

_MARK: Final = b"nested_path_to_metadata"
_MARK_WITHIN: Final = 64 << 10
_VERSION: Final = "2.0"
_MOST_RANKS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Metadata:
    """What joins the files of ranks: the name of each file, and the part of each tensor, by item and rank."""

    ranks: int
    files: Mapping[str, Mapping[int, str]]
    shares: Mapping[str, Mapping[tuple[str, int], Share]] = field(default_factory=dict)
    """By item: the part by the path of the tensor, joined by points, and the rank."""


def read_metadata(file: RangeReader) -> Metadata:
    """Return the content of a `metadata.pkl`.

    Raises NotOfFormatError for a file of another program, UnsupportedError for another version, or CorruptError.
    """
    if _MARK not in file.read(0, min(file.size_bytes, _MARK_WITHIN)):
        raise NotOfFormatError("it is no metadata of torch_checkpointing", path=file.path, offset=0)
    root, _, _ = read(read_head(file))
    top = _dict(root)
    if top.get("version") != _VERSION:
        raise UnsupportedError(f"metadata of torch_checkpointing of version {top.get('version')!r}, not {_VERSION!r}")
    ranks = top.get("world_size")
    if type(ranks) is not int or not 0 < ranks <= _MOST_RANKS:
        raise CorruptError("its metadata.pkl has no number of ranks")
    files: dict[str, dict[int, str]] = {}
    shares: dict[str, dict[tuple[str, int], Share]] = {}
    for item, described in _dict(top.get("metadata")).items():
        parts = _dict(described)
        files[item] = _files(item, parts.get("rank_to_layout_info"))
        shares[item] = _shares(parts.get("nested_path_to_metadata"))
    return Metadata(ranks, files, shares)


def _dict(value: Value) -> dict[str, Value]:
    """Return a dict with keys that are texts; CorruptError for anything else."""
    if type(value) is not Items or value.kind != "dict":
        raise CorruptError("its metadata.pkl has something else instead of a dict")
    return {key: one for key, _, one, _ in value.pairs if type(key) is str}


def _files(item: str, layouts: Value) -> dict[int, str]:
    """Return the file of each rank that has an item."""
    if type(layouts) is not Items or layouts.kind != "dict":
        raise CorruptError("its metadata.pkl has something else instead of a dict")
    found: dict[int, str] = {}
    for rank, _, layout, _ in layouts.pairs:
        path = f"{item}_{rank}.pt" if layout is None else _dict(layout).get("file_path")
        if type(rank) is not int or type(path) is not str:
            raise CorruptError(f"its metadata.pkl does not name the files of {item!r}")
        if {"", ".", ".."} & {*path.split("/")} or "\\" in path or "\0" in path:
            raise CorruptError(f"its metadata.pkl names a file outside of its directory: {path!r:.80}")
        found[rank] = path
    return found


def _shares(paths: Value) -> dict[tuple[str, int], Share]:
    """Return the part of each tensor that each rank has."""
    found: dict[tuple[str, int], Share] = {}
    for text, entries in _dict(paths).items():
        path = _path(text)
        for entry in items_of(entries):
            parts = _dict(entry)
            sharding = _dict(parts.get("sharding_metadata"))
            data = _dict(sharding.get("data"))
            for rank in items_of(parts.get("ranks")):
                share = _share(data, rank)
                if share is not None:
                    found[path, rank] = share
    return found


def _path(text: str) -> str:
    """Return a path joined by points; it is stored as a JSON list."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list):
        raise CorruptError(f"its metadata.pkl has something else instead of a path: {text!r:.80}")
    return ".".join(map(str, parts))


def _share(data: Mapping[str, Value], rank: Value) -> Share | None:
    """Return the part of a tensor that a rank has; None where the metadata do not say it."""
    if type(rank) is not int:
        raise CorruptError("its metadata.pkl has something else instead of a rank")
    shape = sizes_of(data.get("global_shape"))
    if "mesh_spec" in data:
        mesh = _dict(data.get("mesh_spec"))
        ranks, sizes = plain(mesh.get("mesh_data")), sizes_of(mesh.get("mesh_shape"))
        if type(ranks) is not tuple or rank not in ranks:
            return None
        at, coordinate = ranks.index(rank), list[int]()
        for size in reversed(sizes):
            coordinate.append(at % max(size, 1))
            at //= max(size, 1)
        placed = [_placement(_dict(one)) for one in items_of(data.get("placements"))]
        return Share(shape, *share_of(shape, sizes, coordinate[::-1], placed), rank)
    if "global_offsets" in data:
        offsets, sizes = sizes_of(data.get("global_offsets")), sizes_of(data.get("local_sizes"))
        if not len(offsets) == len(sizes) == len(shape):
            raise CorruptError("its metadata.pkl has a box of other dimensions than its tensor")
        pieces = () if 0 in sizes else (Piece(offsets, sizes, (0,) * len(sizes)),)
        return Share(shape, sizes, pieces, rank)
    return None


def _placement(described: Mapping[str, Value]) -> Placement:
    kind = described.get("type")
    dim = described.get("dim")
    factor = described.get("split_factor", 1)
    if kind == "Replicate":
        return Placement(None)
    if kind in {"Shard", "StridedShard", "_StridedShard"} and type(dim) is int and type(factor) is int:
        return Placement(dim, factor)
    raise UnsupportedError(f"its metadata.pkl has a placement that is not read: {kind!r:.40}")
