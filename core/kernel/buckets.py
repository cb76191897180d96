"""Ids in buckets of a hash, each so small that repeated ids are found in it while it is in the cache.

As in `bulk.py`, the numpy code is the reference, and the compiled kernel does the same. The hash turns each id into
another number, and no two into the same; its highest bits choose the bucket. That takes the same time on any processor,
while a sort takes five times as long where numpy has no vector instructions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.parallel import run_parallel, stop_requested
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.kernel import bulk

BUCKET_IDS: Final = 1 << 14
"""About how many ids are in a bucket: 128 KiB."""
_BUCKETS_AT_ONCE: Final = 32
_MOST_BITS: Final = 16
_MULTIPLIER: Final = 0xBF58476D1CE4E5B9


class Buckets:
    """Room for `rows` ids, in turns of at most `at_once`; several threads put ids.

    They are in `memory`, which other buckets may have used before.
    """

    def __init__(self, rows: int, at_once: int, memory: ThreadMemory | None = None) -> None:
        turns = max(-(-rows // max(at_once, 1)), 1)
        self.bits = min(max((rows // BUCKET_IDS).bit_length(), (turns - 1).bit_length(), 1), _MOST_BITS)
        mean = (rows >> self.bits) + 1
        self._room = mean + 8 * isqrt(mean) + 8  # a bucket has so many more by chance once in 10**14
        self._own = -(-(1 << self.bits) // turns)
        words = (memory or ThreadMemory()).take(8 * self._own * self._room)
        self._words = words.view(np.uint64).reshape(self._own, self._room)
        self._filled = np.zeros(self._own, np.int64)
        self._lock = threading.Lock()

    def have_all_once(self, reads: Sequence[Callable[[], bulk.I64]], workers: int = 1) -> bool:
        """Put all ids, turn by turn; say whether none occurs twice. False too for ids that crowd in few buckets.

        Raises LockedError when the work is stopped.
        """
        for first in self.turns():
            self.clear()

            def put(read: Callable[[], bulk.I64], first: int = first) -> bool:
                if stop_requested():  # there may be many turns
                    raise LockedError("stopped")
                return self.put(read(), first)

            if not all(run_parallel(put, reads, workers)):
                return False
            if not all(run_parallel(self.are_unique, self.batches(), workers)):
                return False
        return True

    def turns(self) -> range:
        """Return the first bucket of each turn."""
        return range(0, 1 << self.bits, self._own)

    def clear(self) -> None:
        """Take all ids out."""
        self._filled[:] = 0

    def put(self, ids: bulk.I64, first: int) -> bool:
        """Put those ids, int64 [n], that belong to the turn of a first bucket; False where a bucket has no room."""
        if bulk.kernel is not None:
            return bulk.kernel.put_ids(np.ascontiguousarray(ids), self.bits, first, self._words, self._filled)
        word = ids.view(np.uint64)
        word = (word ^ (word >> np.uint64(32))) * np.uint64(_MULTIPLIER)
        bucket = (word >> np.uint64(64 - self.bits)).astype(np.int64) - first
        own = (bucket >= 0) & (bucket < self._own)
        bucket, word = bucket[own], word[own]
        counts = np.bincount(bucket, minlength=self._own)
        with self._lock:
            starts = self._filled.copy()
            self._filled += counts
        if (starts + counts > self._room).any():
            return False
        order = np.argsort(bucket, kind="stable")
        places = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts) + starts[bucket[order]]
        self._words[bucket[order], places] = word[order]
        return True

    def batches(self) -> range:
        """Return the first bucket of each batch that `are_unique` looks at."""
        return range(0, self._own, _BUCKETS_AT_ONCE)

    def are_unique(self, start: int) -> bool:
        """Say whether no id occurs twice in a batch of buckets."""
        batch = slice(start, start + _BUCKETS_AT_ONCE)
        words, filled = self._words[batch], self._filled[batch]
        if bulk.kernel is not None:
            return bulk.kernel.unique_words(words, filled)
        for row, count in zip(words, filled.tolist(), strict=True):
            own = np.sort(row[:count])
            if (own[1:] == own[:-1]).any():
                return False
        return True
