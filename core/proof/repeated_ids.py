"""Ids that occur twice among some: found in bounded memory, and without sorting where there are none.

Ids that lie close together have a mark each. Others are put into buckets by a hash, which are looked at in the cache.
Ids are sorted only to count and name those that occur twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.buckets import Buckets
from edl_ckpt.core.proof.id_order import IdOrder

SORTED_AT_ONCE: Final = 8 << 20
"""Ids that one sort takes to find duplicates: 64 MiB."""
BYTES_PER_ID: Final = 16
"""Memory for each id that is sorted: as it was read, and in the array that is sorted."""
NAMED: Final = 3
"""The number of ids that are named."""
SORTED_ROWS: Final = 1 << 9
"""So few ids are sorted at once: that takes less time than buckets."""
_NONE: Final = np.zeros(0, np.int64)
Read: TypeAlias = Callable[[], bulk.I64]
"""Reads some ids, int64 [n]; each time it is called."""
Repeated: TypeAlias = tuple[int, list[int]]
"""The number of ids that repeat another one, and the lowest of them."""


class Search:
    """Looks for ids that occur twice in one unit after the other; several threads use it.

    A unit are ids that can be equal. `at_once` is the number of ids that each worker may have in memory. That memory
    is used again for the next unit.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._sorted_at_once = min(at_once, SORTED_AT_ONCE)
        """Marks and sorts take twice the memory that buckets take for each id."""
        self._memory = ThreadMemory()

    def repeated(self, reads: Sequence[Read], order: IdOrder, *, workers: int = 1, step: int = 1) -> Repeated:
        """Return what repeats among some ids, whose `order` is known: all are of one residue modulo `step`.

        Raises LockedError when the work is stopped.
        """
        span = (order.highest - order.lowest) // step + 1
        is_dense = span <= BYTES_PER_ID * min(order.rows, self._sorted_at_once)
        if is_dense and _fill_marks(reads, order, span, step):
            return 0, []
        if order.rows <= min(SORTED_ROWS, self._sorted_at_once):
            return _counted([_repeated_ids(np.concatenate([_NONE, *(read() for read in reads)]))])
        if Buckets(order.rows, workers * self._at_once, self._memory).have_all_once(reads, workers):
            return 0, []
        return _counted(list(self.again([reads], order.rows, workers)))

    def across(self, groups: Sequence[Sequence[Read]], rows: int) -> Repeated:
        """Return the same for ids of several groups; one that a group has twice counts once there."""
        return _counted(list(self.again(groups, rows)))

    def again(self, groups: Sequence[Sequence[Read]], rows: int, workers: int = 1) -> Iterator[bulk.I64]:
        """Yield the ids that one group has again, once for each time; of several groups, those that several have."""
        for parts in zip(*(self._turns(reads, rows, workers) for reads in groups), strict=True):
            again = _repeated_ids(np.concatenate([*map(np.unique, parts)]) if len(parts) > 1 else parts[0])
            yield np.unique(again) if len(parts) > 1 else again

    def _turns(self, reads: Sequence[Read], rows: int, workers: int) -> Iterator[bulk.I64]:
        """Yield the ids in turns, each with those of one hash: so many as one sort takes, of `rows` in all."""
        bits = (max(-(-rows // self._sorted_at_once), 1) - 1).bit_length()
        for turn in range(1 << bits):

            def mine(read: Read, turn: int = turn) -> bulk.I64:
                return _of_turn(read(), bits, turn)

            yield _gathered(run_parallel(mine, reads, workers), rows >> bits)


def _repeated_ids(ids: bulk.I64) -> bulk.I64:
    """Return the ids that occur again, ascending, once for each time; `ids` is sorted in place."""
    bulk.sort_ids(ids)
    again: bulk.I64 = ids[1:][ids[1:] == ids[:-1]]
    return again


def _counted(found: Sequence[bulk.I64]) -> Repeated:
    lowest = sorted(chain.from_iterable(np.unique(ids)[:NAMED].tolist() for ids in found if len(ids)))[:NAMED]
    return sum(map(len, found)), lowest


def _fill_marks(reads: Sequence[Read], order: IdOrder, span: int, step: int) -> bool:
    """Say whether as many marks are set as there are ids, with a mark for each id that there can be.

    Ten times as fast as sorting, and within its memory, where the ids fill a good part of that range.
    """
    marked = np.zeros(span, np.bool_)
    for read in reads:
        marked[(read() - order.lowest) // step if step > 1 else read() - order.lowest] = True
    return int(np.count_nonzero(marked)) == order.rows


def _gathered(parts: Iterable[bulk.I64], expected: int) -> bulk.I64:
    """Return the ids of some parts in one array, which has room for a few more than expected from the start."""
    gathered: bulk.I64 = np.empty(expected + expected // 16 + 64, np.int64)
    count = 0
    for ids in parts:
        if count + len(ids) > len(gathered):
            gathered = np.concatenate([gathered[:count], np.empty(count // 4 + len(ids), np.int64)])
        gathered[count : count + len(ids)] = ids
        count += len(ids)
    return gathered[:count]


def _of_turn(ids: bulk.I64, bits: int, turn: int) -> bulk.I64:
    """Return the ids whose hash has a number in its highest bits."""
    if not bits:
        return ids
    mixed: bulk.U64 = (ids.view(np.uint64) * np.uint64(bulk.CHUNK_STEP)) >> np.uint64(64 - bits)
    own: bulk.I64 = ids[mixed == turn]
    return own
