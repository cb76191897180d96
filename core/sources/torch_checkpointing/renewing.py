"""`metadata.pkl` of torch_checkpointing written anew: for other names, dtypes and ranks, and all else as it was.

It has dicts, lists, tuples, numbers and texts only. Another number of ranks has a rule where a tensor is cut by its
rows over all ranks, or where each of them has all of it: only the mesh changes then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.dcp.writing import pickled
from edl_ckpt.core.sources.torch.machine import Items, Value
from edl_ckpt.core.sources.torch.sharding import Placement

_LOST: Final = "its metadata.pkl has {}, so it is not written anew"
_MOST_NUMBER: Final = 1 << 63
Path = tuple[str, ...]


class Kept(NamedTuple):
    """What the metadata say from now on of a tensor that stays: the last part of its path, and its dtype."""

    key: str | None
    """None where it stays the same."""
    dtype: str
    """As numpy and torch name it."""


def plain_document(value: Value) -> Any:
    """Return the tree of a pickle as dicts, lists, tuples, numbers and texts; UnsupportedError for anything else."""
    if value is None or type(value) in {bool, str}:
        return value
    if type(value) is int and -_MOST_NUMBER <= value < _MOST_NUMBER:
        return value
    if type(value) is Items and value.by is None and value.state is None:
        if value.kind == "dict":
            return {plain_document(key): plain_document(one) for key, _, one, _ in value.pairs}
        if value.kind in {"list", "tuple"}:
            found = map(plain_document, value.values)
            return list(found) if value.kind == "list" else tuple(found)
    raise UnsupportedError(_LOST.format("a value of another kind"))


def path_in(text: str) -> Path:
    """Return a path of the metadata, its numbers as texts.

    >>> path_in('["state",0,"exp_avg"]')
    ('state', '0', 'exp_avg')
    """
    return tuple(map(str, json.loads(text)))


def placement_of_rows(entries: Any, ranks: int) -> Placement | None:
    """Return how a tensor lies on all ranks, by its entries in the metadata; None where other ranks have no rule."""
    if not isinstance(entries, list | tuple) or len(entries) != 1:
        return None
    data = entries[0]["sharding_metadata"]["data"]
    mesh, placements = data.get("mesh_spec"), data.get("placements")
    everyone = list(range(ranks))
    if not mesh or [*mesh["mesh_shape"]] != [ranks] or [*mesh["mesh_data"]] != everyone or len(placements) != 1:
        return None
    if [*entries[0]["ranks"]] != everyone:
        return None
    placed = placements[0]
    if placed.get("type") == "Replicate":
        return Placement(None)
    return Placement(0) if placed.get("type") == "Shard" and placed.get("dim") == 0 else None


def renewed_metadata(
    document: Mapping[str, Any], kept: Callable[[str, Path], Kept | None], ranks: int, *, path: str
) -> bytes:
    """Return the metadata for so many ranks; `kept` says what stays of a tensor, by its item and its path.

    Raises UnsupportedError where nothing says what other ranks have.
    """
    try:
        items = {
            item: _item(described, item, kept, document["world_size"], ranks)
            for item, described in document["metadata"].items()
        }
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise CorruptError("its metadata.pkl has something else than metadata", path=path) from error
    return pickled({**document, "metadata": items, "world_size": ranks})


def _item(
    described: Mapping[str, Any], item: str, kept: Callable[[str, Path], Kept | None], old_ranks: int, ranks: int
) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for text, entries in described["nested_path_to_metadata"].items():
        parts = json.loads(text)
        stays = kept(item, path_in(text))
        if stays is None:
            continue
        if stays.key is not None:
            parts = [*parts[:-1], stays.key]
        new = [_entry(entry, stays.dtype) for entry in entries]
        if ranks != old_ranks:
            if placement_of_rows(entries, old_ranks) is None:
                message = f"{item}.{'.'.join(map(str, parts))!r} is not cut by its rows over all ranks: other ranks"
                raise UnsupportedError(f"{message} have no rule")
            new = [_on_ranks(one, ranks) for one in new]
        tensors[json.dumps(parts, separators=(",", ":"))] = new
    layouts = described["rank_to_layout_info"]
    if ranks != old_ranks:
        if any(layout is not None for layout in layouts.values()):
            raise UnsupportedError(f"the files of {item!r} have names of their own: other ranks have no rule")
        layouts = dict.fromkeys(range(ranks))
    return {**described, "nested_path_to_metadata": tensors, "rank_to_layout_info": layouts}


def _entry(entry: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    sharding = entry["sharding_metadata"]
    data = {**sharding["data"], "dtype": f"torch.{dtype}"} if "dtype" in sharding["data"] else sharding["data"]
    return {**entry, "sharding_metadata": {**sharding, "data": data}}


def _on_ranks(entry: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    sharding = entry["sharding_metadata"]
    mesh = {**sharding["data"]["mesh_spec"], "mesh_shape": (ranks,), "mesh_data": tuple(range(ranks))}
    data = {**sharding["data"], "mesh_spec": mesh}
    return {**entry, "ranks": tuple(range(ranks)), "sharding_metadata": {**sharding, "data": data}}
