"""Numbers of every target, kept for those targets that have any: a stretch goes to M / gcd(N, M) of M targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar, overload

import numpy as np

from edl_ckpt.core.kernel import bulk

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class PieceCounts:
    """The rows of a piece of ids, or of a table, that go to each target, and the bytes of their ids: int64 [to_ps]."""

    table: str
    rows: bulk.I64
    id_bytes: bulk.I64


class SparsePair(NamedTuple):
    """Two numbers of each of some `targets`, int64 [targets] and [2, targets]; those of all others are 0."""

    targets: bulk.I64
    numbers: bulk.I64

    @classmethod
    def of(cls, first: bulk.I64, second: bulk.I64, targets: bulk.I64) -> Self:
        """Return the entries of these targets of two int64 [to_ps]."""
        return cls(targets, np.stack((first[targets], second[targets])))

    def full(self, to_ps: int) -> tuple[bulk.I64, bulk.I64]:
        """Return both as int64 [to_ps].

        >>> pair = SparsePair.of(np.array([0, 5, 0, 7]), np.array([0, 6, 0, 8]), np.array([1, 3]))
        >>> [numbers.tolist() for numbers in pair.full(4)]
        [[0, 5, 0, 7], [0, 6, 0, 8]]
        """
        full = np.zeros((2, to_ps), np.int64)
        full[:, self.targets] = self.numbers
        return full[0], full[1]


class SparsePairs(Sequence[Item]):
    """Items with two int64 [to_ps] each, of which only the entries of some targets are kept; the others are 0.

    An item is made by `of` when it is asked for, from what names it and its two arrays in full.
    """

    def __init__(self, to_ps: int, of: Callable[..., Item]) -> None:
        self._to_ps, self._of = to_ps, of
        self._kept: list[tuple[tuple[str, ...], SparsePair]] = []
        self._targets: dict[bytes, bulk.I64] = {}
        """One for all pairs with the same targets: those of a remainder."""

    def __repr__(self) -> str:
        return f"<{len(self)} SparsePairs of {self._to_ps}>"

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, first: bulk.I64, second: bulk.I64, targets: bulk.I64, *names: str) -> None:
        """Keep the entries of these targets of a pair."""
        shared = self._targets.setdefault(targets.tobytes(), targets)
        self._kept.append((names, SparsePair.of(first, second, shared)))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        names, pair = self._kept[index]
        return self._of(*names, *pair.full(self._to_ps))
