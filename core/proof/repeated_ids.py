"""Ids that occur twice among some: found in bounded memory, and without sorting where there are none.

Ids that lie close together have a mark each. Others are put into buckets by a hash, which are looked at in the cache.
Ids are sorted only to count and name those that occur twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
ReadIds: TypeAlias = Callable[[], bulk.I64]
"""Reads some ids, int64 [n]; each time it is called."""
Repeated: TypeAlias = tuple[int, list[int]]
"""The number of ids that repeat another one, and the lowest of them."""


class Search:
    """Looks for ids that occur twice; several threads use it, for one search after the other.

    `at_once` is the number of ids that each worker may have in memory. That memory is used again for the next search.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._sorted_at_once = min(at_once, SORTED_AT_ONCE)
        """Marks and sorts take twice the memory that buckets take for each id."""
        self._memory = ThreadMemory()

    def repeated(self, reads: Sequence[ReadIds], order: IdOrder, *, workers: int = 1, step: int = 1) -> Repeated:
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
        return _counted(list(self.repeats(reads, order.rows, workers)))

    def shared(self, groups: Sequence[Sequence[ReadIds]], rows: int) -> Repeated:
        """Return what several groups share, of `rows` ids in all; an id that a group has twice counts once there."""
        return _counted(list(self.shared_ids(groups, rows)))

    def repeats(self, reads: Sequence[ReadIds], rows: int, workers: int = 1) -> Iterator[bulk.I64]:
        """Yield the ids that occur again, among `rows` in all, once for each time."""
        for ids in self._turns(reads, rows, workers):
            yield _repeated_ids(ids)

    def shared_ids(self, groups: Sequence[Sequence[ReadIds]], rows: int) -> Iterator[bulk.I64]:
        """Yield the ids that several groups have, each once; `rows` are those of all groups."""
        for parts in zip(*(self._turns(reads, rows) for reads in groups), strict=True):
            of_groups = np.concatenate([np.unique(ids) for ids in parts])
            yield np.unique(_repeated_ids(of_groups))

    def _turns(self, reads: Sequence[ReadIds], rows: int, workers: int = 1) -> Iterator[bulk.I64]:
        """Yield the ids in turns, each with those of one hash: so many as one sort takes, of `rows` in all."""
        turns = max(-(-rows // self._sorted_at_once), 1)
        bits = (turns - 1).bit_length()
        for turn in range(1 << bits):
            ids_of_turn = partial(_ids_of_turn, bits=bits, turn=turn)
            yield _gathered(run_parallel(ids_of_turn, reads, workers), rows >> bits)


def _repeated_ids(ids: bulk.I64) -> bulk.I64:
    """Return the ids that occur again, ascending, once for each time; `ids` is sorted in place."""
    bulk.sort_ids(ids)
    again: bulk.I64 = ids[1:][ids[1:] == ids[:-1]]
    return again


def _counted(found: Sequence[bulk.I64]) -> Repeated:
    lowest: list[int] = []
    for ids in found:
        lowest += np.unique(ids)[:NAMED].tolist()
    return sum(map(len, found)), sorted(lowest)[:NAMED]


def _fill_marks(reads: Sequence[ReadIds], order: IdOrder, span: int, step: int) -> bool:
    """Say whether as many marks are set as there are ids, with a mark for each id that there can be.

    Ten times as fast as sorting, and within its memory, where the ids fill a good part of that range.
    """
    marked = np.zeros(span, np.bool_)
    for read in reads:
        places = read() - order.lowest
        marked[places // step if step > 1 else places] = True
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


def _ids_of_turn(read: ReadIds, bits: int, turn: int) -> bulk.I64:
    """Return the ids whose hash has the number of the turn in its highest bits."""
    ids = read()
    if not bits:
        return ids
    hashes = ids.view(np.uint64) * np.uint64(bulk.CHUNK_STEP)
    of_turn: bulk.I64 = ids[(hashes >> np.uint64(64 - bits)) == turn]
    return of_turn
