"""A checkpoint of torch_checkpointing laid out without torch: `ITEM_RANK.pt` of each item and rank, and `metadata.pkl`.

A file is a zip of torch.save with plain tensors, nested as the paths say. The metadata say that a tensor is cut by rows
over all ranks, as `Shard(0)` is, or that one rank has all of it: so any number of ranks may load it.

Source: `distributed_metadata.py`, `dtensor_metadata.py` and `default_resharder.py` of torch_checkpointing 0.1.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Final

from edl_ckpt.core.sources.dcp.writing import pickled, small_members, tensor_of
from edl_ckpt.core.sources.steps.file_layout import Array
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA
from edl_ckpt.core.sources.zip_layout import TorchZip, ZipMember, ZipPlan, lay_out_zip

_ITEM: Final = re.compile(r"(?:model|optim|optimizer|ema|ema_model|model_ema)(?:_[a-z]+)?")
_STATE: Final = re.compile(r"state\.(.+)\.([^.]+)", re.DOTALL)
_DEFAULT: Final = "model"
_VERSION: Final = "2.0"
Path = tuple[str | int, ...]


def items_of(names: Sequence[str]) -> Mapping[str, tuple[str, Path]]:
    """Return the item and the path of each name: its first part where that of all is an item, else all in `model`.

    >>> items_of(["model.a.b", "optim.state.0.exp_avg"])
    {'model.a.b': ('model', ('a.b',)), 'optim.state.0.exp_avg': ('optim', ('state', 0, 'exp_avg'))}
    >>> items_of(["model.a", "b"])
    {'model.a': ('model', ('model.a',)), 'b': ('model', ('b',))}
    """
    parts = {name: name.partition(".") for name in names}
    if not all(_ITEM.fullmatch(item) and rest for item, _, rest in parts.values()):
        return {name: (_DEFAULT, (name,)) for name in names}
    return {
        name: (item, _path(rest) if item.startswith("optim") else (rest,)) for name, (item, _, rest) in parts.items()
    }


def _path(rest: str) -> Path:
    """Return the path to a tensor of an optimizer's state, whose numbers are keys of their own."""
    match = _STATE.fullmatch(rest)
    if match is None:
        return (rest,)
    number = int(match[1]) if match[1].isascii() and match[1].isdigit() and len(match[1]) < 10 else match[1]
    return "state", number, match[2]


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Where everything goes in the files of a checkpoint of torch_checkpointing."""

    checksum: ClassVar = "crc32"
    files: Mapping[str, int]
    _plans: Mapping[str, ZipPlan]
    _members: Mapping[tuple[str, int], tuple[str, str]]
    """The file of each slab, and the member of its zip."""
    _metadata: bytes

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of a slab, and the offset of its values."""
        file, member = self._members[key, slab]
        return file, self._plans[file].places[member]

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield what stands around values, and the metadata at last, given the CRC-32 of each slab."""
        by_file: dict[str, dict[str, int]] = {file: {} for file in self._plans}
        for slab, (file, member) in self._members.items():
            by_file[file][member] = sums[slab]
        for file, plan in self._plans.items():
            for offset, data in plan.parts(0, by_file[file]):
                yield file, offset, data
        yield METADATA, 0, self._metadata


def lay_out(arrays: Sequence[Array], ranks: int) -> RankFiles:
    """Lay out arrays, whose slabs are blocks of rows of all ranks or one of one rank, for so many ranks.

    Each rank has a file of each item, which may be empty.
    """
    paths = items_of([array.key for array in arrays])
    states: dict[str, dict[Any, Any]] = {}
    for item in dict.fromkeys(item for item, _ in paths.values()):
        for rank in range(ranks):
            states[f"{item}_{rank}.pt"] = {}
    sizes: dict[str, list[int]] = {file: [] for file in states}
    members: dict[tuple[str, int], tuple[str, str]] = {}
    described: dict[str, dict[str, Any]] = {item: {} for item, _ in paths.values()}
    for array in arrays:
        item, path = paths[array.key]
        for number, slab in enumerate(array.slabs):
            file = f"{item}_{slab.rank}.pt"
            key = str(len(sizes[file]))
            sizes[file].append(prod(slab.sizes) * array.dtype.itemsize)
            members[array.key, number] = file, f"data/{key}"
            _put(states[file], path, tensor_of(array.dtype, slab.sizes, key))
        described[item][json.dumps(list(path), separators=(",", ":"))] = [_described(array, ranks)]
    plans = {file: _zip(state, sizes[file]) for file, state in states.items()}
    everywhere: dict[int, None] = dict.fromkeys(range(ranks))
    items = {
        item: {"nested_path_to_metadata": tensors, "rank_to_layout_info": everywhere}
        for item, tensors in described.items()
    }
    metadata = pickled({"metadata": items, "world_size": ranks, "version": _VERSION})
    files = {file: plan.size for file, plan in plans.items()}
    return RankFiles({**files, METADATA: len(metadata)}, plans, members, metadata)


def _put(state: dict[Any, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        state = state.setdefault(key, {})
    state[path[-1]] = value


def _zip(state: dict[Any, Any], sizes: Sequence[int]) -> ZipPlan:
    before, behind = small_members(pickled(state, memo=False))
    values = [ZipMember(f"data/{number}", size) for number, size in enumerate(sizes)]
    return lay_out_zip([*before, *values, *behind], TorchZip())


def _described(array: Array, ranks: int) -> dict[str, Any]:
    """Return what the metadata say of a tensor: its shape, and that its rows are cut, or who has them."""
    having = tuple(dict.fromkeys(slab.rank for slab in array.slabs))
    is_cut = len(array.slabs) > 1
    mesh = tuple(range(ranks)) if is_cut else having
    data = {
        "global_shape": list(array.shape),
        "dtype": f"torch.{array.dtype.name}",
        "stride": [prod(array.shape[n + 1 :]) for n in range(len(array.shape))],
        "mesh_spec": {"device_type": "cpu", "mesh_shape": (len(mesh),), "mesh_data": mesh, "mesh_dim_names": None},
        "placements": [{"type": "Shard", "dim": 0} if is_cut else {"type": "Replicate"}],
    }
    return {"sharding_metadata": {"type": "DTensorShardingMetadata", "data": data}, "ranks": having}
