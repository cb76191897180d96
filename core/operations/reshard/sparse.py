"""Numbers of every target, kept for those targets that have any: a stretch goes to M / gcd(N, M) of M targets."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from edl_ckpt.core.format import bulk


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


class SparsePairs:
    """Pairs of int64 [to_ps], of which only the entries of some targets are kept; the others are 0."""

    def __init__(self, to_ps: int) -> None:
        self._to_ps = to_ps
        self._kept: list[SparsePair] = []
        self._targets: dict[bytes, bulk.I64] = {}
        """One for all pairs with the same targets: those of a remainder."""

    def __repr__(self) -> str:
        return f"<{len(self)} SparsePairs of {self._to_ps}>"

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, first: bulk.I64, second: bulk.I64, targets: bulk.I64) -> None:
        """Keep the entries of these targets of a pair."""
        own = self._targets.setdefault(targets.tobytes(), targets)
        self._kept.append(SparsePair.of(first, second, own))

    def pair(self, number: int) -> tuple[bulk.I64, bulk.I64]:
        """Return a pair in full."""
        return self._kept[number].full(self._to_ps)
