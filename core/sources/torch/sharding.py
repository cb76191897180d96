"""The elements of a whole tensor that one rank has: placements of a DTensor on a mesh, shards with offsets.

The rules are torch's: a dimension is cut as by `torch.chunk`, into parts of ceil(n / W) of which the last ones are
short or empty; of several mesh dimensions each cuts what the one before has left. `_StridedShard` first cuts into as
many parts as its factor says, and takes its own part of each of them, as torch 2.13 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.torch.machine import Global, Items, Made, Value
from edl_ckpt.core.sources.torch.tensors import MOST_DIMS

_MOST_PIECES: Final = 1 << 12
_MOST_PARTS: Final = 1 << 20
"""So many ranks along a dimension of a mesh."""
_MOST_FACTOR: Final = 1 << 12
"""So many cuts of a dimension by other dimensions of the mesh."""
_WORD: Final = "torch.distributed"


class Piece(NamedTuple):
    """A box of a whole tensor, and where it begins in the part that has it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    inner: tuple[int, ...]


class Share(NamedTuple):
    """What a rank has of a whole tensor: its shape, and the boxes."""

    shape: tuple[int, ...]
    local: tuple[int, ...]
    """The shape that the part has."""
    pieces: tuple[Piece, ...]
    rank: int | None
    """The rank that saved it, where the mesh says so."""


class Placement(NamedTuple):
    """How a dimension of a mesh cuts a tensor: `dim` is None for copies; `factor` is that of `_StridedShard`."""

    dim: int | None
    factor: int = 1


def share_of(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[Piece, ...]]:
    """Return the shape of the part at a coordinate of a mesh, and the boxes that it has.

    >>> share_of((7, 4), (2,), (1,), (Placement(0),))
    ((3, 4), (Piece(offsets=(4, 0), sizes=(3, 4), inner=(0, 0)),))
    """
    if not len(mesh) == len(coordinate) == len(placements):
        raise CorruptError("the pickle has another number of placements than its mesh has dimensions")
    runs: list[list[tuple[int, int]]] = [[(0, size)] for size in shape]
    for parts, at, (dim, factor) in zip(mesh, coordinate, placements, strict=True):
        if dim is None:
            continue
        if not (0 <= dim < len(shape) and 0 <= at < parts <= _MOST_PARTS and 0 < factor <= _MOST_FACTOR):
            raise CorruptError("the pickle has a placement that its tensor or its mesh cannot have")
        total = sum(size for _, size in runs[dim])
        cut: list[tuple[int, int]] = []
        outer = -(-total // factor)
        for begin in range(0, total, max(outer, 1)):
            end = min(begin + outer, total)
            step = -(-(end - begin) // parts)
            start = min(begin + at * step, end)
            cut += _between(runs[dim], start, min(start + step, end))
        runs[dim] = _joined(cut)
    local = tuple(sum(size for _, size in some) for some in runs)
    return local, tuple(_pieces(runs)) if 0 not in local else ()


def check_share(share: Share, shape: tuple[int, ...]) -> None:
    """Raise CorruptError where a part has another shape than its placement gives it."""
    if shape != share.local:
        raise CorruptError(f"its part has {list(shape)}; its placement says {list(share.local)}")


def _between(runs: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of runs that are from one element to another, counted along all of them."""
    begin = 0
    for offset, size in runs:
        first, last = max(start - begin, 0), min(stop - begin, size)
        if first < last:
            yield offset + first, last - first
        begin += size


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset, size in runs:
        if found and found[-1][0] + found[-1][1] == offset:
            found[-1] = found[-1][0], found[-1][1] + size
        else:
            found.append((offset, size))
    return found


def _pieces(runs: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Piece]:
    """Yield the boxes that the runs of each dimension make together."""
    count = 1
    for some in runs:
        count *= len(some)
        if count > _MOST_PIECES:
            raise UnsupportedError(f"the part of a rank is in more than {_MOST_PIECES:,} pieces")
    placed = []
    for some in runs:
        inner, begins = 0, []
        for offset, size in some:
            begins.append((offset, size, inner))
            inner += size
        placed.append(begins)
    for chosen in product(*placed):
        yield Piece(*(tuple(one[n] for one in chosen) for n in range(3)))


def state_of(made: Value) -> dict[str, Value]:
    """Return the attributes of an object by their names: its state, also that of one with slots."""
    state = made.state if type(made) is Made else None
    both = state.values if type(state) is Items and state.kind == "tuple" else [state]
    found: dict[str, Value] = {}
    for one in both:
        if type(one) is Items and one.kind == "dict":
            found |= {key: value for key, _, value, _ in one.pairs if type(key) is str}
    return found


def plain(value: Value) -> Value:
    """Return a tuple or a list of numbers as a tuple; a torch.Size too; anything else as it is."""
    if type(value) is Made and value.name == "torch.Size" and type(value.args) is Items and value.args.values:
        value = value.args.values[0]
    if type(value) is Items and value.kind in {"tuple", "list"}:
        return tuple(value.values)
    return value


def items_of(value: Value) -> tuple[Value, ...]:
    """Return the items of a list or a tuple, () for None; CorruptError for anything else."""
    found = () if value is None else plain(value)
    if type(found) is not tuple:
        raise CorruptError("the pickle has something else instead of a list")
    return found


def sizes_of(value: Value) -> tuple[int, ...]:
    """Return a shape; CorruptError for anything else."""
    numbers = plain(value)
    if type(numbers) is not tuple or len(numbers) > MOST_DIMS:
        raise CorruptError("the pickle has something else instead of a shape")
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
        raise CorruptError("the pickle has something else instead of a shape")
    return numbers


def is_distributed(value: Value, *names: str) -> bool:
    """Say whether a value is an object of torch.distributed of one of some classes."""
    return is_distributed_name(value.name if type(value) is Made else "", *names)


def is_distributed_name(name: str, *names: str) -> bool:
    """Say whether a name is that of one of some classes of torch.distributed."""
    return name.startswith(_WORD) and name.rpartition(".")[2] in names


def dtensor_share(args: Sequence[Value], state: Mapping[str, Value]) -> Share:
    """Return the part of a DTensor, by the arguments of `_rebuild_wrapper_subclass` and its state.

    Raises UnsupportedError for values that are still to be summed, CorruptError for a geometry that cannot be.
    """
    if len(args) < 3:
        raise CorruptError("the pickle has a DTensor without a shape")
    shape, spec = sizes_of(args[2]), state_of(state.get("_spec"))
    placed = plain(spec.get("placements", state.get("_placements")))
    mesh = state_of(spec.get("mesh", state.get("_device_mesh")))
    if type(placed) is not tuple:
        raise CorruptError("the pickle has a DTensor without placements")
    placements = [placement_of(one, len(shape)) for one in placed]
    sizes, coordinate = _mesh_shape(mesh), plain(mesh.get("_coordinate_on_dim"))
    rank = mesh.get("_rank")
    if coordinate is None and type(rank) is int:
        coordinate = _coordinate(plain(mesh.get("_flatten_rank_map")), sizes, rank)
    if type(coordinate) is not tuple or any(type(n) is not int for n in coordinate):
        raise UnsupportedError("its pickle does not say which part of the tensor its rank has")
    local, pieces = share_of(shape, sizes, coordinate, placements)
    return Share(shape, local, pieces, rank if type(rank) is int else None)


def dtensor_geometry(state: Mapping[str, Value], dims: int) -> tuple[tuple[int, ...], list[Placement]]:
    """Return the ranks along each dimension of the mesh of a DTensor, and its placements; errors as `dtensor_share`."""
    spec = state_of(state.get("_spec"))
    placed = plain(spec.get("placements", state.get("_placements")))
    mesh = state_of(spec.get("mesh", state.get("_device_mesh")))
    return _mesh_shape(mesh), [placement_of(one, dims) for one in items_of(placed)]


def placement_of(value: Value, dims: int) -> Placement:
    """Return how a placement cuts a tensor of so many dimensions."""
    if is_distributed(value, "Replicate"):
        return Placement(None)
    if is_distributed(value, "Shard", "_StridedShard"):
        state = state_of(value)
        given = value.args.values if type(value.args) is Items else []
        dim = state.get("dim", given[0] if given else None)
        factor = state.get("split_factor", given[1] if len(given) > 1 else 1)
        if type(dim) is int and type(factor) is int:
            return Placement(dim + dims if dim < 0 else dim, factor)
    if is_distributed(value, "Partial", "_Partial", "_MaskPartial", "_NormPartial"):
        raise UnsupportedError("it is Partial: each rank has values that are still to be summed")
    name = value.name if type(value) is Made else type(value).__name__
    raise UnsupportedError(f"its placement is not known: {name}")


def _mesh_shape(mesh: Mapping[str, Value]) -> tuple[int, ...]:
    """Return the ranks along each dimension of a mesh, as any release of torch keeps them."""
    layout = state_of(mesh.get("_layout"))
    axes = plain(layout.get("axes"))
    if type(axes) is tuple:
        sizes: list[int] = []
        for axis in axes:
            flat = plain(state_of(axis).get("shape"))
            numbers = (flat,) if type(flat) is int else sizes_of(state_of(axis).get("shape"))
            product_of = 1
            for number in numbers:
                product_of *= number
            sizes.append(product_of)
        return tuple(sizes)
    shape = plain(layout.get("shape", mesh.get("_layout_shape")))
    if type(shape) is int:
        return (shape,)
    if type(shape) is tuple:
        return sizes_of(layout.get("shape"))
    stored = mesh.get("mesh")  # a tensor of the ranks
    given = stored.args.values if type(stored) is Made and type(stored.args) is Items else []
    if len(given) > 2:
        return sizes_of(given[2])
    raise UnsupportedError("its pickle does not say which mesh the tensor is on")


def _coordinate(ranks: Value, sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the place of a rank on a mesh whose ranks are in C order; () plus an error of the caller without them."""
    if type(ranks) is not tuple or rank not in ranks:
        raise UnsupportedError("its pickle does not say which part of the tensor its rank has")
    at, found = ranks.index(rank), []
    for size in reversed(sizes):
        found.append(at % max(size, 1))
        at //= max(size, 1)
    return tuple(reversed(found))


def sharded_parts(state: Value) -> Iterator[tuple[Value, Share]]:
    """Yield the tensors of a ShardedTensor that a rank has, each with the box that its metadata give it.

    Raises CorruptError for a geometry that cannot be.
    """
    given = state.values if type(state) is Items else []
    if len(given) < 2:
        raise CorruptError("the pickle has a ShardedTensor without metadata")
    whole = state_of(given[1])
    shape = sizes_of(whole.get("size"))
    for shard in items_of(given[0]):
        parts = state_of(shard)
        described = state_of(parts.get("metadata"))
        offsets, sizes = sizes_of(described.get("shard_offsets")), sizes_of(described.get("shard_sizes"))
        if not len(offsets) == len(sizes) == len(shape):
            raise CorruptError("the pickle has a shard of other dimensions than its tensor")
        pieces = () if 0 in sizes else (Piece(offsets, sizes, (0,) * len(sizes)),)
        yield parts.get("tensor"), Share(shape, sizes, pieces, None)


def name_of(value: Value) -> str:
    """Return the name of a class or of a function; '' for anything else."""
    return value.name if type(value) is Global else ""
