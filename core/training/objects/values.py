"""Values in a version and values of a program: their shapes and dtypes, and writing the first into the second.

The graph of objects below a root: which values it has, under which names, and which other names lead to them.

An object may be reached by several names. It is saved once, under the first of the shortest paths, and every other edge
to it is an *alias*. A checkpoint with aliases has them in one more variable, `ALIASES`: JSON, as int8. So a restore can
start from any of the names. TensorFlow saves the same in `_CHECKPOINTABLE_OBJECT_GRAPH`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.adapters.nest import array_of, flatten, unflatten
from edl_ckpt.core.adapters.tensorflow import iterator_state, restore_iterator, to_tensor
from edl_ckpt.core.base.arrays import as_array, dtype_name, is_of, torch_tensor
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.aliases import ALIASES, Path, parse_aliases, parse_name, path_name
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.training.objects.tracking import (
    Child,
    EmbeddingTable,
    TrackedDict,
    TrackedList,
    Variable,
    children_of,
    is_iterator,
    is_leaf,
    is_stateful,
    is_table,
)


def walk(root: object) -> tuple[dict[Path, Any], dict[Path, Path]]:
    """Return the values below a root by their paths, breadth first, and the path that each other edge leads to.

    Raises UsageError, with every fault, for values that have no name: those below a key that is no text, and in lists
    and dicts that changed unseen.
    """
    leaves: dict[tuple[Any, ...], Any] = {}
    edges: dict[Path, Path] = {}
    faults: list[UsageError] = []
    _check(root, (), faults)
    for edge, first, value in _edges_below(root):
        if first is not edge:
            edges[edge] = first
        elif is_leaf(value):
            leaves[edge] = value
        else:
            _check(value, edge, faults)
    for path in leaves:
        if not _is_named(path):
            keys = ", ".join(repr(step) for step in path if not isinstance(step, str))
            message = f"{'/'.join(map(str, path))}: only texts can be keys of values that are saved, not {keys}"
            faults.append(UsageError(message, hint="use texts as keys, or do not track the dict"))
    if faults:
        more = "".join(f"\n  {fault.message}" for fault in faults[1:])
        raise UsageError(f"{faults[0].message}{more}", hint=faults[0].hint)
    inside = {path[:depth] for path in leaves for depth in range(len(path) + 1)}
    return leaves, {edge: path for edge, path in edges.items() if path in inside and _is_named(edge)}


def alias_variable(aliases: Mapping[Path, Path]) -> npt.NDArray[np.int8]:
    """Return aliases as a variable."""
    document = {path_name(edge): path_name(path) for edge, path in sorted(aliases.items())}
    return np.frombuffer(json.dumps(document).encode(), np.int8)


def _check(node: object, path: Path, faults: list[UsageError]) -> None:
    if isinstance(node, TrackedDict | TrackedList):
        try:
            node.check(path_name(tuple(map(str, path))))
        except UsageError as error:
            faults.append(error)


def _is_named(path: tuple[Any, ...]) -> bool:
    return all(isinstance(step, str) for step in path)


@dataclass(frozen=True, slots=True)
class Pair:
    """A value of the program that a checkpoint has under a name; `edge` is where this program has it."""

    edge: Path
    path: Path
    child: Child


@dataclass(slots=True)
class Match:
    """The values that a program and a checkpoint share, and the nodes below which values of the checkpoint lie."""

    pairs: list[Pair] = field(default_factory=list)
    nodes: list[tuple[Any, Path]] = field(default_factory=list)


class SavedPaths:
    """The paths of the values in a checkpoint, and its aliases."""

    def __init__(self, paths: frozenset[Path], aliases: Mapping[Path, Path]) -> None:
        self.paths, self.aliases = paths, aliases
        self.inside = {edge[:depth] for edge in (*paths, *aliases) for depth in range(len(edge))}
        """The paths of all nodes: what comes before a value or an alias."""

    def match(self, node: object, path: Path) -> Match:
        """Return what a node and all below it share with the checkpoint, when the node is at a path of that."""
        found = Match(nodes=[(node, path)])
        seen = {(id(node), path)}
        for node, path in found.nodes:  # noqa: PLR1704 - the list grows meanwhile
            for child in children_of(node):
                if isinstance(child.name, str):
                    below = self.look(child, path, found)
                    if below is not None and (id(child.value), below) not in seen:
                        seen.add((id(child.value), below))
                        found.nodes.append((child.value, below))
        return found

    def look(self, child: Child, path: Path, found: Match) -> Path | None:
        """Add the pair of a leaf that the checkpoint has below a path; return the path of a node that it has."""
        edge = (*path, child.name)
        there = self.aliases.get(edge, edge)
        if is_leaf(child.value):
            if there in (self.inside if is_stateful(child.value) else self.paths):
                found.pairs.append(Pair(edge, there, child))
            return None
        return there if there in self.inside or not there else None

    def taken_by(self, pair: Pair) -> set[Path]:
        """Return the paths of the values that a pair takes: one, or for the state of an object all below its path."""
        if not is_stateful(pair.child.value):
            return {pair.path}
        return {each for each in self.paths if each[: len(pair.path)] == pair.path}


def leaves_of(root: object) -> Iterator[tuple[Path, Any]]:
    """Yield each value below a root once, with the path to it; keys that are no texts are shown as they are."""
    for edge, first, value in _edges_below(root):
        if first is edge and is_leaf(value):
            yield tuple(map(str, edge)), value


def _edges_below(root: object) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], Any]]:
    """Yield each edge below a root, breadth first, with the first edge that led to its object, and the object."""
    firsts: dict[int, tuple[Any, ...]] = {id(root): ()}
    reached: list[tuple[tuple[Any, ...], object]] = [((), root)]  # it grows, and no identity is used twice
    for path, node in reached:
        for child in () if path and is_leaf(node) else children_of(node):
            edge = (*path, child.name)
            first = firsts.setdefault(id(child.value), edge)
            yield edge, first, child.value
            if first is edge:
                reached.append((edge, child.value))


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape and dtype of a value; of a table only the dim counts, because a restore brings its rows."""

    dims: tuple[int, ...]
    dtype: str
    is_table: bool = False

    def __str__(self) -> str:
        if self.is_table:
            return f"table of dim {self.dims[-1]}, {self.dtype}"
        return f"{self.dtype} {list(self.dims)}"


def shape_of(value: Any, name: str) -> Shape | None:
    """Return the shape of a value of a program, None for the state of an object; UsageError for what is no array."""
    if is_stateful(value):
        return None
    if is_table(value):
        vectors = as_array(value.vectors, f"the vectors of {name}")
        return Shape(vectors.shape[1:] or (0,), dtype_name(vectors), is_table=True)
    if is_of(value, "torch", "tensorflow", "keras"):  # they say it without a copy
        return Shape(tuple(value.shape), str(getattr(value.dtype, "name", value.dtype)).removeprefix("torch."))
    array = as_array(value, name)
    return Shape(array.shape, dtype_name(array))


def state_of(value: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the state of an object as variables below a name."""
    state = iterator_state(value, name) if is_iterator(value) else value.state_dict()
    return flatten(state, f"{name}/", array_of)


class SavedValues:
    """The values in an open version by their paths."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        aliases: Mapping[Path, Path] = {}
        dense = set(checkpoint.variable_names)
        if ALIASES in dense:
            dense.remove(ALIASES)
            aliases = parse_aliases(checkpoint.variable(ALIASES), checkpoint.version.ref)
        self._dense, self._tables = _by_path(dense), _by_path(checkpoint.table_names)
        self.names = SavedPaths(frozenset(self._dense) | frozenset(self._tables), aliases)
        self.shapes = {path: self._shape(path) for path in self.names.paths}

    def _shape(self, path: Path) -> Shape:
        if path in self._dense:
            _, entry = self.checkpoint.find_variable(self._dense[path])
            return Shape(entry.shape, entry.dtype.name)
        table = self.checkpoint.table(self._tables[path])
        return Shape((table.dim,), table.dtype, is_table=True)

    def read_into(self, path: Path, child: Child) -> Any:
        """Read a value into the object of a program, or in its place; return the object that has the value now.

        Shapes and dtypes are equal, and `why_not` has no objection. Large arrays are read right into their memory.
        """
        if is_stateful(child.value):
            leaf = torch_tensor if is_of(child.value, "torch") else np.asarray
            state = unflatten(self.checkpoint, f"{path_name(path)}/", leaf)
            if is_iterator(child.value):
                restore_iterator(child.value, state)
            else:
                child.value.load_state_dict(state)
            return child.value
        if is_table(child.value):
            table, value = self._read_table(path, child.value), child.value
            return value.assign(table) if isinstance(value, EmbeddingTable) else _replaced(child, table)
        memory = _memory_of(child.value)
        if memory is not None:
            shard, entry = self.checkpoint.find_variable(self._dense[path])
            self.checkpoint.reader(shard, entry.values).read_into(
                entry.values.start, memory.reshape(-1).view(np.uint8).data
            )
            return child.value
        return _put_array(child, self.checkpoint.variable(self._dense[path], bits=True), path_name(path))

    def _read_table(self, path: Path, like: Any) -> Table:
        """Read a whole table; bfloat16, which numpy lacks, in the form that the program has it in."""
        view = self.checkpoint.table(self._tables[path])
        ids, vectors = view.to_numpy()
        if view.dtype == "bfloat16":
            bits = (vectors.view(np.uint32) >> 16).astype(np.uint16)
            vectors = bits.view(as_array(like.vectors, path_name(path)).dtype)
        return Table(ids, vectors, view.initializer or "uniform")


def _by_path(names: Iterable[str]) -> dict[Path, str]:
    """Return names by what they are read as: of several, the one that we would write, else the first."""
    ours_last = sorted(sorted(names, reverse=True), key=lambda name: path_name(parse_name(name)) == name)
    return {parse_name(name): name for name in ours_last}


def _memory_of(value: object) -> npt.NDArray[Any] | None:
    """Return the memory of an array if bytes of a checkpoint can be read right into it."""
    if type(value) not in {np.ndarray, np.memmap, Variable}:
        return None
    array = np.asarray(value)
    good = array.flags.writeable and array.flags.c_contiguous and array.dtype == array.dtype.newbyteorder("<")
    return array if good and array.size else None


def why_not(child: Child) -> str:
    """Return why the value of an edge can be neither changed nor replaced, '' when it can."""
    value = child.value
    if is_stateful(value) or isinstance(value, EmbeddingTable) or callable(getattr(value, "assign", None)):
        return ""
    if is_of(value, "torch") or (isinstance(value, np.ndarray) and value.flags.writeable):
        return ""
    if isinstance(value, Table | np.generic | np.ndarray) or is_of(value, "jax", "jaxlib"):
        return "in a tuple it can be neither changed nor replaced" if child.put is None else ""
    return "it cannot be changed in place: it has no assign(value)"


def _put_array(child: Child, data: npt.NDArray[Any], name: str) -> Any:
    """Write a value into an object: by its `assign`, into its memory, or into its place."""
    value = child.value
    if is_of(value, "torch"):
        with library("torch", "torch").no_grad():
            value.copy_(torch_tensor(data))
        return value
    if is_of(value, "tensorflow", "keras"):
        value.assign(to_tensor(data))
        return value
    if is_of(value, "jax", "jaxlib"):
        return _replaced(child, library("jax", "jax").numpy.asarray(data))
    data = data.view(as_array(value, name).dtype.newbyteorder("<"))  # bfloat16 has two forms
    if callable(getattr(value, "assign", None)):
        value.assign(data)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = data
    else:
        return _replaced(child, data[()] if isinstance(value, np.generic) else data)
    return value


def _replaced(child: Child, value: Any) -> Any:
    if child.put is not None:
        child.put(value)
    return value
