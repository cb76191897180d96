"""Ids that occur twice in a table: found in bounded memory, and without sorting where there are none.

Ids that ascend are unique. Others have a mark each where they lie close together; else they are put into buckets by a
hash, which are looked at in the cache. Ids are sorted only to count and name those that occur twice.

A table that is well placed has equal ids in one shard only, so each shard is looked at alone. Only where rows are in
the wrong shard, all shards of the table are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance, default_workers, run_parallel
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.base.words import command
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.buckets import Buckets
from edl_ckpt.core.kernel.placement import misplaced
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.reading.blocks import IdPiece, read_piece
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt, cut_piece, ids_at, in_tasks, number_rows, total_id_bytes
from edl_ckpt.core.reading.reader import Checkpoint

SORTED_AT_ONCE: Final = 8 << 20
"""Ids that one sort takes to find duplicates: 64 MiB."""
LEAST_AT_ONCE: Final = 1 << 16
IN_JOB: Final = 3 << 20
"""Ids in memory, in a process that must leave the memory to its job: 48 MiB at most for marks, or to sort them."""
_ALONE_FROM: Final = 1 << 20
"""More ids than so many are looked at by all workers together."""
_BYTES_PER_ID: Final = 16
"""Memory for each id that is sorted: as it was read, and in the array that is sorted."""
_MOST_UNITS: Final = 64
"""Units of one task."""
_NAMED: Final = 3
"""The number of ids that are named."""
KEPT_ROWS: Final = 1 << 16
"""Parts of tables of at most so many rows keep their ids until they were searched: there may be thousands of them."""
SORTED_ROWS: Final = 1 << 9
"""So few ids are sorted at once: that takes less time than buckets."""
_NONE: Final = np.zeros(0, np.int64)

Read: TypeAlias = Callable[[], bulk.I64]
"""Reads some ids, int64 [n]; each time it is called."""
Repeated: TypeAlias = tuple[int, list[int]]
"""The number of ids that repeat another one, and the lowest of them."""


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
        is_dense = span <= _BYTES_PER_ID * min(order.rows, self._sorted_at_once)
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
    lowest = sorted(chain.from_iterable(np.unique(ids)[:_NAMED].tolist() for ids in found if len(ids)))[:_NAMED]
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


def reads_of(checkpoint: Checkpoint, pieces: Iterable[IdPiece]) -> list[Read]:
    """Return what reads the ids of some pieces, which may be large."""
    cuts = (cut for piece in pieces for cut in cut_piece(checkpoint, piece, PIECE_BYTES // 2))
    return [partial(_read_ids, checkpoint, cut) for cut in cuts]


def _read_ids(checkpoint: Checkpoint, piece: IdPiece) -> bulk.I64:
    return read_piece(checkpoint, piece).ids


def check_reads(
    table: str,
    reads: Sequence[Read],
    order: IdOrder,
    *,
    step: int = 1,
    at_once: int = IN_JOB,
    path: str | None = None,
    version: Version | None = None,
) -> None:
    """Raise CorruptError when an id of a table occurs twice, of a file or of a version.

    All ids are of one residue modulo `step`; ids that ascend are not read again. At most `at_once` ids are in memory:
    by default in a process that leaves it to its job.
    """
    if not order.ascending:
        _raise_repeated(table, Search(at_once).repeated(reads, order, step=step), path, version)


def _raise_repeated(table: str, repeated: Repeated, path: str | None, version: Version | None) -> None:
    """Raise CorruptError when ids repeat: ElasticDL restores only one row per id."""
    count, some = repeated
    if count:
        more = f" (and {count - 1} more)" if count > 1 else ""
        hint = f"try: {command('verify', version.ref)}" if version else None
        where = path or (version.path if version else None)
        raise CorruptError(
            f"table {table!r}: id {some[0]} occurs twice{more}", code="duplicate-id", path=where, hint=hint
        )


class Unit(NamedTuple):
    """Pieces of ids that can be equal, and the order of all of them."""

    places: list[IdsAt]
    order: IdOrder


class _Searched(CheckpointHolder):
    """An opened checkpoint with a search in it."""

    def __init__(self, checkpoint: Checkpoint, at_once: int) -> None:
        super().__init__(checkpoint)
        self.search = Search(at_once)


def _find_twice(opened: _Searched, task: Sequence[Unit], _: Advance, *, workers: int, across: bool) -> list[Repeated]:
    """Return what repeats in each of some units; with `across`, what several shards have."""
    found, checkpoint = [], opened.checkpoint
    for unit in task:
        pieces = [place.piece(checkpoint) for place in unit.places]
        if across:
            of_shards = groupby(pieces, key=lambda piece: piece.shard.file.ps_id)
            reads = [reads_of(checkpoint, some) for _, some in of_shards]
            found.append(opened.search.across(reads, unit.order.rows))
        else:
            found.append(opened.search.repeated(reads_of(checkpoint, pieces), unit.order, workers=workers))
    return found


def search_units(
    checkpoint: Checkpoint, job: Job, units: Sequence[Unit], *, at_once: int | None = None, across: bool = False
) -> Iterator[tuple[int, Repeated]]:
    """Yield (number of a unit, what repeats in it) for all units, in any order.

    `at_once` are the ids that a worker may have in memory, at 8 bytes each: by default 128 MiB in all workers, and
    within the memory of the job.
    """
    executor = job.executor
    if at_once is None:
        at_once = max(2 * SORTED_AT_ONCE // executor.threads, LEAST_AT_ONCE)
        if job.memory_bytes is not None:
            at_once = min(at_once, max(job.memory_bytes // (_BYTES_PER_ID * executor.threads), LEAST_AT_ONCE))
    # All workers look at one that is large: they have memory for more of its ids, and use it again for the next.
    threads = executor.task_threads
    least = 0 if len(units) < threads else _ALONE_FROM
    large = [number for number, unit in enumerate(units) if threads > 1 and unit.order.rows > least]
    others = sorted(set(range(len(units))) - set(large))
    task_bytes = executor.task_bytes(total_id_bytes(checkpoint))
    source = HeldValue(CheckpointValue.of(checkpoint), partial(_Searched, at_once=at_once))
    opened = _Searched(checkpoint, at_once)
    for numbers, workers in ((others, 1), (large, threads)):
        if numbers:
            work = FunctionWork(source, partial(_find_twice, workers=workers, across=across))
            sized = ((units[n], sum(place.end - place.start for place in units[n].places)) for n in numbers)
            tasks = together(sized, task_bytes, most=_MOST_UNITS)
            with job.silent().run(work, opened, tasks, in_turn=workers > 1) as results:
                yield from zip(numbers, chain.from_iterable(results), strict=True)


def near_job(checkpoint: Checkpoint, job: Job) -> Job:
    """Return the job for ids that need no request: they take a core, and memory, and wait for nothing."""
    return job.limited(min(job.workers, default_workers())) if checkpoint.has_near_ids else job


def check_unique(checkpoint: Checkpoint, job: Job, places: Sequence[IdsAt], orders: Sequence[IdOrder]) -> None:
    """Raise CorruptError when an id occurs twice in a table; `places` are whole tables, with the orders of their ids.

    Ids that do not ascend are read again.
    """
    units = [unit for unit in _units(checkpoint, places, orders) if not unit.order.ascending]
    for number, repeated in search_units(checkpoint, near_job(checkpoint, job), units):
        first = units[number].places[0].piece(checkpoint)
        _raise_repeated(first.entry.name, repeated, first.shard.file.path, checkpoint.version)


def _units(checkpoint: Checkpoint, places: Sequence[IdsAt], orders: Sequence[IdOrder]) -> Iterable[Unit]:
    """Return the pieces of tables that can have equal ids: those of each shard, or all if a row is misplaced."""
    names = [checkpoint.shards[place.shard].tables[place.table].name for place in places]
    misplaced = {name for name, order in zip(names, orders, strict=True) if not order.placed}
    units: dict[tuple[str, int], Unit] = {}
    for name, place, order in zip(names, places, orders, strict=True):
        key = name, -1 if name in misplaced else place.shard
        own, seen = units.get(key, ([], NO_IDS))
        if own and own[-1][:3] == place[:3] and own[-1].end == place.start:  # one, so a task stays small
            own[-1] = own[-1]._replace(end=place.end)
        else:
            own.append(place)
        units[key] = Unit(own, seen.followed_by(order))
    return units.values()


@dataclass(slots=True)
class Ids:
    """The ids of one table in one shard, or of a piece of them: their order, and the odd ones, with the lowest."""

    order: IdOrder = NO_IDS
    misplaced: int = 0
    negative: int = 0
    examples: list[int] = field(default_factory=list)
    negative_examples: list[int] = field(default_factory=list)
    kept: list[bulk.I64] = field(default_factory=list)
    fault: CorruptError | None = None

    def add(self, following: Ids) -> None:
        """Add the piece that follows."""
        self.fault = self.fault or following.fault
        self.order = self.order.followed_by(following.order)
        self.misplaced += following.misplaced
        self.negative += following.negative
        self.examples = sorted(self.examples + following.examples)[:_NAMED]
        self.negative_examples = sorted(self.negative_examples + following.negative_examples)[:_NAMED]
        self.kept += following.kept


def ids_work(checkpoint: Checkpoint, *, keep: bool = False) -> FunctionWork[Checkpoint, Sequence[IdsAt], list[Ids]]:
    """Return the pass over ids; a task is some pieces, and a fault is part of a result.

    With `keep`, small tables keep their ids, to be searched at once.
    """
    return FunctionWork(CheckpointValue.of(checkpoint), partial(_read_all_ids, keep=keep))


def _read_all_ids(checkpoint: Checkpoint, task: Sequence[IdsAt], advance: Advance, *, keep: bool) -> list[Ids]:
    return [_read_place(checkpoint, place, advance, keep=keep) for place in task]


def _read_place(checkpoint: Checkpoint, place: IdsAt, advance: Advance, *, keep: bool) -> Ids:
    found = Ids()
    try:
        for piece in cut_piece(checkpoint, place.piece(checkpoint), PIECE_BYTES):
            ids = read_piece(checkpoint, piece).ids
            order, negative, rule = order_of(ids), _NONE, checkpoint.placement(piece.entry.name)
            wrong = misplaced(rule, ids, piece.shard.file.ps_num, piece.shard.file.ps_id)
            if order.lowest < 0:
                negative = np.flatnonzero(ids < 0)
            odd = (ids[wrong[:_NAMED]].tolist(), ids[negative[:_NAMED]].tolist())
            kept = [ids] if keep and piece.entry.rows <= KEPT_ROWS and len(ids) else []
            if not rule.says_shard or len(wrong):  # an id may be in two shards
                order = replace(order, placed=False)
            found.add(Ids(order, len(wrong), len(negative), *odd, kept))
            advance(piece.end - piece.start)
    except CorruptError as error:
        found.fault = error
    return found


def check_unique_ids(checkpoint: Checkpoint, job: Job) -> None:
    """Read all ids of a checkpoint; CorruptError when one occurs twice in a table, or ids and rows differ in number."""
    total = total_id_bytes(checkpoint)
    job.reporter.start("reading ids", total)
    task_bytes, orders = job.executor.task_bytes(total), list[IdOrder]()
    places = list(ids_at(checkpoint, task_bytes, values=False))
    with job.run(ids_work(checkpoint), checkpoint, in_tasks(places, task_bytes)) as results:
        for found in chain.from_iterable(results):
            if found.fault is not None:
                raise found.fault
            orders.append(found.order)
    number_rows(checkpoint, places, [order.rows for order in orders])
    check_unique(checkpoint, job, places, orders)
