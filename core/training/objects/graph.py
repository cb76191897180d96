"""The graph of objects below a root: which values it has, under which names, and which other names lead to them.

An object may be reached by several names. It is saved once, under the first of the shortest paths, and every other
edge to it is an *alias*. A checkpoint with aliases has them in one more variable, `ALIASES`: JSON, as int8. So a
restore can start from any of the names. TensorFlow saves the same in `_CHECKPOINTABLE_OBJECT_GRAPH`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.reading.aliases import Path, path_name
from edl_ckpt.core.training.objects.tracking import (
    Child,
    TrackedDict,
    TrackedList,
    children_of,
    is_leaf,
    is_stateful,
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
