"""The graph of objects below a root: which values it has, under which names, and which other names lead to them.

An object may be reached by several names. It is saved once, under the first of the shortest paths, and every other
edge to it is an *alias*. A checkpoint with aliases has them in one more variable, `ALIASES`: JSON, as int8. So a
restore can start from any of the names. TensorFlow saves the same in `_CHECKPOINTABLE_OBJECT_GRAPH`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.reading.aliases import Path, path_name
from edl_ckpt.core.training.objects.tracking import (
    TrackedDict,
    TrackedList,
    children_of,
    is_leaf,
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
