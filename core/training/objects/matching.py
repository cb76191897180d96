"""What a program and a checkpoint share: each value of the program with the path at which the checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_ckpt.core.reading.aliases import Path
from edl_ckpt.core.training.objects.tracking import (
    Child,
    children_of,
    is_leaf,
    is_stateful,
)


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
