"""Tensors in the pickles of torch.save put anew: plain ones, parameters, and the part that one rank has of a DTensor.

A tensor keeps all that its pickle says of it besides its values: whether it needs a gradient, its hooks, its class and
its device. Its storage is a new one, in C order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.sources.dcp.writing import storage_kind
from edl_ckpt.core.sources.torch.editing import with_state, with_values
from edl_ckpt.core.sources.torch.machine import Global, Items, Made, Persistent, Value
from edl_ckpt.core.sources.torch.rewriting import call, tuple_of
from edl_ckpt.core.sources.torch.sharding import is_distributed_name, name_of, plain, state_of
from edl_ckpt.core.sources.torch.tree import OF_TYPE, REBUILT, WRAPPED, WRAPPER

NEW: Final = "\0new:"
"""What the keys of new storages begin with, until they have their numbers."""
MESH: Final = "\0mesh"
"""The key of the storage with the ranks of a new mesh."""
_OTHER: Final = "it is a tensor of a kind that is not written anew"


@dataclass(frozen=True, slots=True)
class NewTensor:
    """What takes the place of a tensor: its dtype and shape, of a part the own ones, and the number of its storage."""

    was: DType
    dtype: DType
    shape: tuple[int, ...]
    number: int


def is_dtensor(value: Value) -> bool:
    """Say whether a value of a pickle is a DTensor."""
    given = value.args.values if type(value) is Made and type(value.args) is Items else []
    if name_of(value.by if type(value) is Made else None) not in OF_TYPE or len(given) < 4:
        return False
    return name_of(given[0]) == WRAPPER and is_distributed_name(name_of(given[1]), "DTensor")


def state_of_dtensor(value: Value) -> dict[str, Value]:
    """Return the attributes of a DTensor."""
    return state_of(Made(None, None, 0, 0, value.args.values[3]))


def renewed(value: Value, new: NewTensor) -> Value:
    """Return a tensor with another storage; UnsupportedError for one of another kind."""
    given = value.args.values if type(value) is Made and type(value.args) is Items else []
    name = value.name if type(value) is Made else ""
    if name in REBUILT and len(given) > 3 and type(given[0]) is Persistent:
        return _rebuilt(value, given, new)
    if name in WRAPPED and given:
        return replace(value, args=replace(value.args, values=[renewed(given[0], new), *given[1:]]))
    if name in OF_TYPE and len(given) > 3 and name_of(given[0]) in REBUILT:
        inner = renewed(Made(given[0], given[2], 0, 0), new)
        return replace(value, args=replace(value.args, values=[inner.by, given[1], inner.args, *given[3:]]))
    raise UnsupportedError(_OTHER)


def _rebuilt(value: Made, given: Sequence[Value], new: NewTensor) -> Made:
    stored = given[0].id
    if type(stored) is not Items or len(stored.values) < 5:
        raise UnsupportedError(_OTHER)
    count, kept = prod(new.shape), new.dtype == new.was
    kind = stored.values[1] if kept else Global(".".join(storage_kind(new.dtype)))
    is_untyped = name_of(kind).endswith("UntypedStorage")
    elements = count * new.dtype.itemsize if is_untyped else count
    storage = Persistent(
        replace(stored, values=["storage", kind, f"{NEW}{new.number}", stored.values[3], elements, *stored.values[5:]])
    )
    strides = tuple_of(*(prod(new.shape[n + 1 :]) for n in range(len(new.shape))))
    place = [storage, 0, tuple_of(*new.shape), strides]
    if kept:
        return replace(value, args=replace(value.args, values=[*place, *given[4:]]))
    needs = given[4] if len(given) > 4 else False
    hooks = given[5] if len(given) > 5 else call("collections.OrderedDict")
    end = [Global(f"torch.{new.dtype.name}")] if is_untyped else []
    version = "v3" if is_untyped else "v2"
    return call(f"torch._utils._rebuild_tensor_{version}", *place, needs, hooks, *end)


@dataclass(slots=True)
class Meshes:
    """The mesh of one rank among so many, made once for all DTensors of a file that share it."""

    rank: int
    ranks: int
    _made: dict[int, tuple[Value, Value]] = field(default_factory=dict)

    def of(self, mesh: Value) -> Value:
        """Return the new mesh for an old one, of one dimension; UnsupportedError for that of another release."""
        known = self._made.get(id(mesh))
        if known is None:
            state = state_of(mesh)
            layout, ranks = state.get("_layout"), state.get("_rank_map")
            axes = plain(state_of(layout).get("axes"))
            if (
                type(mesh) is not Made
                or type(layout) is not Made
                or state.get("_root_mesh") is not None
                or type(axes) is not tuple
            ):
                raise UnsupportedError("its mesh is a part of another one, or of another release of torch")
            axis = with_state(axes[0], {"shape": tuple_of(self.ranks), "stride": tuple_of(1)})
            changes = {
                "_layout": with_state(layout, {"axes": tuple_of(axis)}),
                "_rank_map": self._rank_map(ranks),
                "_flatten_rank_map": tuple_of(*range(self.ranks)),
                "_rank": self.rank,
                "_coordinate_on_dim": tuple_of(self.rank),
            }
            if "_hash" in state:
                changes["_hash"] = None
            known = self._made[id(mesh)] = mesh, with_state(mesh, changes)
        return known[1]

    def _rank_map(self, value: Value) -> Value:
        given = value.args.values if type(value) is Made and type(value.args) is Items else []
        stored = given[0].id if given and type(given[0]) is Persistent else None
        if type(stored) is not Items or name_of(stored.values[1]) != "torch.IntStorage":
            raise UnsupportedError("its mesh is of another release of torch")
        storage = Persistent(replace(stored, values=[*stored.values[:2], MESH, stored.values[3], self.ranks]))
        new = [storage, 0, tuple_of(self.ranks), tuple_of(1), *given[4:]]
        return replace(value, args=replace(value.args, values=new))


def renewed_dtensor(value: Made, new: NewTensor, meshes: Meshes | None) -> Made:
    """Return a DTensor whose rank has another part, on another mesh where one is given."""
    function, kind, inner, state = value.args.values[:4]
    local = renewed(state_of_dtensor(value).get("_local_tensor"), new)
    spec = state_of_dtensor(value).get("_spec")
    changes: dict[str, Value] = {}
    if meshes is not None:
        changes["mesh"] = meshes.of(state_of(spec).get("mesh"))
    if new.dtype != new.was:
        meta = state_of(spec).get("tensor_meta")
        given = meta.args.values if type(meta) is Made and type(meta.args) is Items else []
        dtype = Global(f"torch.{new.dtype.name}")
        if type(meta) is not Made or len(given) != 3 or len(inner.values) < 2:
            raise UnsupportedError(_OTHER)
        changes["tensor_meta"] = replace(meta, args=replace(meta.args, values=[*given[:2], dtype]))
        inner = replace(inner, values=[inner.values[0], dtype, *inner.values[2:]])
    if type(spec) is not Made:
        raise UnsupportedError(_OTHER)
    if changes and "_hash" in state_of(spec):
        changes["_hash"] = None
    new_spec = with_state(spec, changes) if changes else spec
    if type(state) is not Items:
        raise UnsupportedError(_OTHER)
    if state.kind == "tuple":
        parts = [
            with_values(p, {"_local_tensor": local, "_spec": new_spec}) if type(p) is Items else p for p in state.values
        ]
        state = replace(state, values=parts)
    else:
        state = with_values(state, {"_local_tensor": local, "_spec": new_spec})
    return replace(value, args=replace(value.args, values=[function, kind, inner, state, *value.args.values[4:]]))
