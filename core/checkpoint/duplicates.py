"""Ids that occur twice in a table: found in bounded memory, and without sorting where there are none.

Ids that ascend are unique. Others have a mark each where they lie close together; else they are put into buckets by a
hash, which are looked at in the cache. Ids are sorted only to count and name those that occur twice.

A table that is well placed has equal ids in one shard only, so each shard is looked at alone. Only where rows are in
the wrong shard, all shards of the table are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, IdPiece, cut_piece, id_pieces, number_rows, read_piece
from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.buckets import Buckets
from edl_ckpt.core.format.checks import duplicate_id, repeated_ids
from edl_ckpt.core.format.model import ShardFile
from edl_ckpt.core.parallel import run_parallel, stop_requested
from edl_ckpt.core.words import command

SORTED_AT_ONCE: Final = 8 << 20
"""Ids that one sort takes to find duplicates: 64 MiB."""
LEAST_AT_ONCE: Final = 1 << 16
_ALONE_FROM: Final = 1 << 20
"""More ids than so many are looked at by all workers together."""
_SORTED_IN_JOB: Final = 9 << 19
"""Ids that one sort takes in a process that must leave the memory to its job: 36 MiB."""
_MARKS: Final = 48 << 20
_BYTES_PER_ID: Final = 16
"""Memory for each id that is sorted: as it was read, and in the array that is sorted."""


@dataclass(frozen=True, slots=True)
class IdOrder:
    """What a piece of ids shows by itself: where it begins, ends and lies, whether it ascends and is in its shard."""

    rows: int
    first: int
    last: int
    lowest: int
    highest: int
    ascending: bool
    placed: bool

    def followed_by(self, other: IdOrder) -> IdOrder:
        """Return the order of both pieces, one after the other."""
        if not self.rows or not other.rows:
            return other if other.rows else self
        return IdOrder(
            self.rows + other.rows,
            self.first,
            other.last,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.ascending and other.ascending and self.last < other.first,
            self.placed and other.placed,
        )


NO_IDS: Final = IdOrder(0, 0, 0, 0, 0, ascending=True, placed=True)


def order_of(ids: bulk.I64, shard: ShardFile | None = None) -> IdOrder:
    """Return the order of the ids of a piece, in a shard if they are in one."""
    if not len(ids):
        return NO_IDS
    ascending = bool((ids[1:] > ids[:-1]).all())
    placed = shard is None or shard.ps_num == 1 or bulk.have_owner(ids, shard.ps_num, shard.ps_id)
    first, last = int(ids[0]), int(ids[-1])
    lowest, highest = (first, last) if ascending else (int(ids.min()), int(ids.max()))
    return IdOrder(len(ids), first, last, lowest, highest, ascending, placed)


class Search:
    """Looks for ids that occur twice in one part of a table after the other; several threads use it.

    `at_once` is the number of ids that each worker may have in memory. That memory is used again for the next part.
    """

    def __init__(self, checkpoint: Checkpoint, at_once: int) -> None:
        self._checkpoint = checkpoint
        self._at_once = at_once
        self._sorted_at_once = min(at_once, SORTED_AT_ONCE)
        """Marks and sorts take twice the memory that buckets take for each id."""
        self._spare: SimpleQueue[bulk.U64] = SimpleQueue()

    def repeated(self, pieces: Sequence[IdPiece], order: IdOrder, workers: int = 1) -> tuple[int, list[int]]:
        """Return (the number of ids that repeat another one, the lowest of them) among the ids of some pieces.

        The pieces may be large, for they are cut again; `order` is that of all their ids, of which there are some.
        Raises LockedError when the work is stopped.
        """
        own = [cut for piece in pieces for cut in cut_piece(self._checkpoint, piece, PIECE_BYTES // 2)]
        span = order.highest - order.lowest + 1
        is_dense = span <= _BYTES_PER_ID * min(order.rows, self._sorted_at_once)
        if is_dense and _are_unique(self._checkpoint, own, order.rows, order.lowest, span):
            return 0, []
        try:
            memory = self._spare.get_nowait()
        except Empty:
            memory = None
        buckets = Buckets(order.rows, workers * self._at_once, memory)
        if _are_unique_in_buckets(self._checkpoint, own, buckets, workers):
            self._spare.put(buckets.memory)
            return 0, []
        return find_repeated(self._checkpoint, own, order.rows, workers, at_once=self._sorted_at_once)

    def each(
        self, units: Sequence[tuple[Sequence[IdPiece], IdOrder]], workers: int
    ) -> Iterator[tuple[int, tuple[int, list[int]]]]:
        """Yield (number of a unit, what `repeated` finds in it) for all units, in any order."""
        # All workers look at one that is large: they have memory for more of its ids, and use it again for the next.
        few = len(units) < workers
        large = [number for number, (_, order) in enumerate(units) if few or order.rows > _ALONE_FROM]
        others = sorted(set(range(len(units))) - set(large))
        yield from zip(others, run_parallel(lambda number: self.repeated(*units[number]), others, workers), strict=True)
        for number in large:
            yield number, self.repeated(*units[number], workers)


def check_unique(
    checkpoint: Checkpoint,
    pieces: Sequence[IdPiece],
    orders: Sequence[IdOrder],
    *,
    workers: int,
    max_memory_bytes: int | None = None,
    at_once: int | None = None,
) -> None:
    """Raise CorruptError when an id occurs twice in a table; `pieces` are whole tables, one after the other.

    Pieces may be large, for they are cut again. Ids that do not ascend are read again, and marked or sorted.
    `max_memory_bytes` bounds what that takes in all workers together; `at_once` are the ids that a worker may have in
    memory, at 8 bytes each.
    """
    if at_once is None:
        at_once = max(min(SORTED_AT_ONCE, 2 * SORTED_AT_ONCE // workers), 1)  # 128 MiB in all, however many workers
    if max_memory_bytes is not None:
        at_once = min(at_once, max(max_memory_bytes // (_BYTES_PER_ID * workers), LEAST_AT_ONCE))
    units = [
        ([piece for piece, _ in unit], reduce(IdOrder.followed_by, (order for _, order in unit)))
        for _, found in groupby(zip(pieces, orders, strict=True), key=lambda each: each[0].entry.name)
        for unit in _units(list(found))
    ]
    units = [unit for unit in units if not unit[1].ascending]
    for number, (count, some) in Search(checkpoint, at_once).each(units, workers):
        if count:
            first, hint = units[number][0][0], f"try: {command('verify', checkpoint.version.ref)}"
            raise duplicate_id(first.entry.name, some[0], count, path=first.shard.file.path, hint=hint)


def _are_unique(checkpoint: Checkpoint, pieces: Sequence[IdPiece], rows: int, lowest: int, span: int) -> bool:
    """Say whether no id of some pieces occurs twice, with a mark for each id in [lowest, lowest + span).

    Ten times as fast as sorting, and within its memory, where the ids fill a good part of that range.
    """
    marked = np.zeros(span, np.bool_)
    for piece in pieces:
        marked[read_piece(checkpoint, piece).ids - lowest] = True
    return int(np.count_nonzero(marked)) == rows


def _are_unique_in_buckets(checkpoint: Checkpoint, pieces: Sequence[IdPiece], buckets: Buckets, workers: int) -> bool:
    """Say whether no id of some pieces occurs twice; False too for ids that crowd in few buckets."""
    for first in buckets.turns():
        buckets.clear()

        def put(piece: IdPiece, first: int = first) -> bool:
            if stop_requested():  # there may be many turns
                raise LockedError("stopped")
            return buckets.put(read_piece(checkpoint, piece).ids, first)

        if not all(run_parallel(put, pieces, workers)):
            return False
        if not all(run_parallel(buckets.are_unique, buckets.batches(), workers)):
            return False
    return True


def _units(found: list[tuple[IdPiece, IdOrder]]) -> Iterator[list[tuple[IdPiece, IdOrder]]]:
    """Yield the pieces of a table that can have equal ids: those of each shard, or all if a row is misplaced."""
    if all(order.placed for _, order in found):
        for _, unit in groupby(found, key=lambda each: each[0].shard.file.ps_id):
            yield list(unit)
    else:
        yield found


def check_unique_ids(checkpoint: Checkpoint, *, workers: int) -> None:
    """Read all ids of a checkpoint; CorruptError when one occurs twice in a table, or ids and rows differ in number."""
    pieces = list(id_pieces(checkpoint))

    def look(piece: IdPiece) -> IdOrder:
        return order_of(read_piece(checkpoint, piece).ids, piece.shard.file)

    orders = list(run_parallel(look, pieces, workers))
    number_rows(checkpoint, pieces, [order.rows for order in orders])
    check_unique(checkpoint, pieces, orders, workers=workers)


def find_repeated(
    checkpoint: Checkpoint, pieces: Sequence[IdPiece], rows: int, workers: int, *, at_once: int | None = None
) -> tuple[int, list[int]]:
    """Return (the number of ids that repeat another one, the lowest of them) among the ids of some pieces.

    With more ids than one sort takes (`at_once`), each turn reads all of them and sorts those of one hash.
    """
    bits = (max(-(-rows // (at_once or SORTED_AT_ONCE)), 1) - 1).bit_length()
    found = [repeated_of_turn(checkpoint, pieces, rows, bits, turn, workers=workers) for turn in range(1 << bits)]
    return sum(count for count, _ in found), sorted(id_ for _, some in found for id_ in some)[:5]


def repeated_of_turn(
    checkpoint: Checkpoint, pieces: Sequence[IdPiece], rows: int, bits: int, turn: int, *, workers: int = 1
) -> tuple[int, list[int]]:
    """Return what `find_repeated` does, among the ids whose hash has a number in its highest bits."""

    def mine(piece: IdPiece) -> bulk.I64:
        return _of_turn(read_piece(checkpoint, piece).ids, bits, turn)

    again = repeated_ids(_gathered(run_parallel(mine, pieces, workers), rows >> bits))
    return len(again), np.unique(again)[:5].tolist()


def repeated_across(
    checkpoint: Checkpoint, pieces: Sequence[IdPiece], rows: int, bits: int, turn: int
) -> tuple[int, list[int]]:
    """Return (the number of ids that more than one shard has, the lowest of them), of a hash as in `repeated_of_turn`.

    The pieces of a shard follow each other; `rows` are those of all. An id that one shard has twice counts once there.
    """

    def own(some: Iterable[IdPiece]) -> bulk.I64:
        ids = (_of_turn(read_piece(checkpoint, piece).ids, bits, turn) for piece in some)
        found: bulk.I64 = np.unique(_gathered(ids, 0))
        return found

    of_shards = (own(some) for _, some in groupby(pieces, key=lambda piece: piece.shard.file.ps_id))
    again = np.unique(repeated_ids(_gathered(of_shards, rows >> bits)))
    return len(again), again[:5].tolist()


def repeated_among(
    parts: Callable[[], Iterable[bulk.I64]], rows: int, *, lowest: int, highest: int, step: int = 1
) -> tuple[int, list[int]]:
    """Return (the number of ids that repeat another one, the lowest of them) among ids that `parts` yields each time.

    All ids are in [lowest, highest], and of one residue modulo `step`. With a mark for each possible id where that is
    few, else sorted in turns; memory is 48 MiB at most.
    """
    span = (highest - lowest) // step + 1
    if span <= _MARKS:
        marked = np.zeros(span, np.bool_)
        for ids in parts():
            marked[(ids - lowest) // step if step > 1 else ids - lowest] = True
        if int(np.count_nonzero(marked)) == rows:
            return 0, []
        del marked
    bits = (max(-(-rows // _SORTED_IN_JOB), 1) - 1).bit_length()
    total, some = 0, list[int]()
    for turn in range(1 << bits):
        again = repeated_ids(_gathered((_of_turn(ids, bits, turn) for ids in parts()), rows >> bits))
        total += len(again)
        some += np.unique(again)[:5].tolist()
    return total, sorted(some)[:5]


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


def count_repeated(parts: Sequence[bulk.I64]) -> tuple[int, list[int]]:
    """Return (the number of ids that repeat another one, the lowest of them)."""
    again = repeated_ids(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
    return len(again), np.unique(again)[:5].tolist()
