"""The check that no id occurs twice in a table, of a version or of arrays.

A table that is well placed has equal ids in one shard only, so each shard is looked at alone. Only where rows are in
the wrong shard, all shards of the table are looked at together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance, default_workers
from edl_ckpt.core.base.words import command
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.proof.id_order import NO_IDS, IdOrder
from edl_ckpt.core.proof.id_pass import ids_work
from edl_ckpt.core.proof.repeated_ids import BYTES_PER_ID, SORTED_AT_ONCE, ReadIds, Repeated, Search
from edl_ckpt.core.reading.blocks import IdPiece, read_piece
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt, cut_piece, ids_at, in_tasks, number_rows, total_id_bytes
from edl_ckpt.core.reading.reader import Checkpoint

LEAST_AT_ONCE: Final = 1 << 16
IN_JOB: Final = 3 << 20
"""IdTally in memory, in a process that must leave the memory to its job: 48 MiB at most for marks, or to sort them."""
_ALONE_FROM: Final = 1 << 20
"""More ids than so many are looked at by all workers together."""
_MOST_UNITS: Final = 64
"""Units of one task."""


def reads_of(checkpoint: Checkpoint, pieces: Iterable[IdPiece]) -> list[ReadIds]:
    """Return what reads the ids of some pieces, which may be large."""
    cuts = (cut for piece in pieces for cut in cut_piece(checkpoint, piece, PIECE_BYTES // 2))
    return [partial(_read_ids, checkpoint, cut) for cut in cuts]


def _read_ids(checkpoint: Checkpoint, piece: IdPiece) -> bulk.I64:
    return read_piece(checkpoint, piece).ids


def check_reads(
    table: str,
    reads: Sequence[ReadIds],
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
    count, lowest = repeated
    if not count:
        return
    more = f" (and {count - 1} more)" if count > 1 else ""
    hint = f"try: {command('verify', version.ref)}" if version else None
    where = path or (version.path if version else None)
    raise CorruptError(
        f"table {table!r}: id {lowest[0]} occurs twice{more}", code="duplicate-id", path=where, hint=hint
    )


class SearchUnit(NamedTuple):
    """Pieces of ids of one table among which ids may be equal, and the order of all of them.

    Where rows are in their shards, these are the pieces of one shard.
    """

    places: list[IdsAt]
    order: IdOrder


class _SearchedCheckpoint(CheckpointHolder):
    """An opened checkpoint, with the search whose memory is used for one unit after the other."""

    def __init__(self, checkpoint: Checkpoint, at_once: int) -> None:
        super().__init__(checkpoint)
        self.search = Search(at_once)


def _find_twice(
    opened: _SearchedCheckpoint, task: Sequence[SearchUnit], _: Advance, *, workers: int, between_shards: bool
) -> list[Repeated]:
    """Return what repeats in each of some units; `between_shards`, what several shards of it share."""
    found = []
    checkpoint = opened.checkpoint
    for unit in task:
        pieces = [place.piece(checkpoint) for place in unit.places]
        if between_shards:
            by_shard = groupby(pieces, key=lambda piece: piece.shard.file.ps_id)
            reads = [reads_of(checkpoint, of_shard) for _, of_shard in by_shard]
            found.append(opened.search.shared(reads, unit.order.rows))
        else:
            found.append(opened.search.repeated(reads_of(checkpoint, pieces), unit.order, workers=workers))
    return found


def search_units(
    checkpoint: Checkpoint,
    job: Job,
    units: Sequence[SearchUnit],
    *,
    at_once: int | None = None,
    between_shards: bool = False,
) -> Iterator[tuple[int, Repeated]]:
    """Yield (number of a unit, what repeats in it) for all units, in any order.

    `at_once` are the ids that a worker may have in memory, at 8 bytes each; None for the default of `_ids_at_once`.
    `between_shards`, an id that one shard has twice counts once.
    """
    executor = job.executor
    if at_once is None:
        at_once = _ids_at_once(job)
    # All workers look at one that is large: they have memory for more of its ids, and use it again for the next.
    threads = executor.task_threads
    least = 0 if len(units) < threads else _ALONE_FROM
    large = [number for number, unit in enumerate(units) if threads > 1 and unit.order.rows > least]
    others = sorted(set(range(len(units))) - set(large))
    task_bytes = executor.task_bytes(total_id_bytes(checkpoint))
    source = HeldValue(CheckpointValue.of(checkpoint), partial(_SearchedCheckpoint, at_once=at_once))
    opened = _SearchedCheckpoint(checkpoint, at_once)
    for numbers, workers in ((others, 1), (large, threads)):
        if numbers:
            work = FunctionWork(source, partial(_find_twice, workers=workers, between_shards=between_shards))
            sized = ((units[n], sum(place.end - place.start for place in units[n].places)) for n in numbers)
            tasks = together(sized, task_bytes, most=_MOST_UNITS)
            with job.silent().run(work, opened, tasks, in_turn=workers > 1) as results:
                yield from zip(numbers, chain.from_iterable(results), strict=True)


def _ids_at_once(job: Job) -> int:
    """Return how many ids a worker may have in memory: 128 MiB in all workers, and within the memory of the job."""
    threads = job.executor.threads
    at_once = max(2 * SORTED_AT_ONCE // threads, LEAST_AT_ONCE)
    if job.memory_bytes is None:
        return at_once
    return min(at_once, max(job.memory_bytes // (BYTES_PER_ID * threads), LEAST_AT_ONCE))


def near_job(checkpoint: Checkpoint, job: Job) -> Job:
    """Return the job for ids that need no request: they take a core, and memory, and wait for nothing."""
    return job.limited(min(job.workers, default_workers())) if checkpoint.has_near_ids else job


def check_unique(checkpoint: Checkpoint, job: Job, places: Sequence[IdsAt], orders: Sequence[IdOrder]) -> None:
    """Raise CorruptError when an id occurs twice in a table; `places` are whole tables, with the orders of their ids.

    IdTally that do not ascend are read again.
    """
    units = [unit for unit in _units(checkpoint, places, orders) if not unit.order.ascending]
    for number, repeated in search_units(checkpoint, near_job(checkpoint, job), units):
        first = units[number].places[0].piece(checkpoint)
        _raise_repeated(first.entry.name, repeated, first.shard.file.path, checkpoint.version)


def _units(checkpoint: Checkpoint, places: Sequence[IdsAt], orders: Sequence[IdOrder]) -> Iterable[SearchUnit]:
    """Return the pieces of tables that can have equal ids: those of each shard, or all if a row is misplaced."""
    names = [checkpoint.shards[place.shard].tables[place.table].name for place in places]
    misplaced = {name for name, order in zip(names, orders, strict=True) if not order.placed}
    units: dict[tuple[str, int], SearchUnit] = {}
    for name, place, order in zip(names, places, orders, strict=True):
        key = name, -1 if name in misplaced else place.shard
        own, seen = units.get(key, ([], NO_IDS))
        continues_last = own and own[-1][:3] == place[:3] and own[-1].end == place.start
        if continues_last:  # one place instead of two, so a task stays small
            own[-1] = own[-1]._replace(end=place.end)
        else:
            own.append(place)
        units[key] = SearchUnit(own, seen.followed_by(order))
    return units.values()


def check_unique_ids(checkpoint: Checkpoint, job: Job) -> None:
    """Read all ids of a checkpoint; CorruptError when one occurs twice in a table, or ids and rows differ in number."""
    total = total_id_bytes(checkpoint)
    job.reporter.start("reading ids", total)
    task_bytes = job.executor.task_bytes(total)
    orders: list[IdOrder] = []
    places = list(ids_at(checkpoint, task_bytes, values=False))
    with job.run(ids_work(checkpoint), checkpoint, in_tasks(places, task_bytes)) as results:
        for found in chain.from_iterable(results):
            if found.fault is not None:
                raise found.fault
            orders.append(found.order)
    number_rows(checkpoint, places, [order.rows for order in orders])
    check_unique(checkpoint, job, places, orders)
