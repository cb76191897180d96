"""Numbers of every target, kept for those targets that have any: a stretch goes to M / gcd(N, M) of M targets."""

from __future__ import annotations

import numpy as np

from edl_ckpt.core.format import bulk


class SparsePairs:
    """Pairs of int64 [to_ps], of which only the entries of some targets are kept; the others are 0."""

    def __init__(self, to_ps: int) -> None:
        self._to_ps = to_ps
        self._kept: list[tuple[bulk.I64, bulk.I64]] = []
        self._targets: dict[bytes, bulk.I64] = {}
        """One for all pairs with the same targets: those of a remainder."""

    def __repr__(self) -> str:
        return f"<{len(self)} SparsePairs of {self._to_ps}>"

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, first: bulk.I64, second: bulk.I64, targets: bulk.I64) -> None:
        """Keep the entries of these targets of a pair."""
        own = self._targets.setdefault(targets.tobytes(), targets)
        self._kept.append((own, np.stack((first[own], second[own]))))

    def pair(self, number: int) -> tuple[bulk.I64, bulk.I64]:
        """Return a pair in full.

        >>> pairs = SparsePairs(4)
        >>> pairs.append(np.array([0, 5, 0, 7]), np.array([0, 6, 0, 8]), np.array([1, 3]))
        >>> [numbers.tolist() for numbers in pairs.pair(0)]
        [[0, 5, 0, 7], [0, 6, 0, 8]]
        """
        targets, numbers = self._kept[number]
        full = np.zeros((2, self._to_ps), np.int64)
        full[:, targets] = numbers
        return full[0], full[1]
