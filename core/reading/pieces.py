"""Tables and variables in pieces, which several workers read independently of each other, here or in other processes.

A piece lies in one shard. A task for another process names it by numbers, where a piece itself has an index. Several
small ones are one task, and so are many bytes where a task costs more than a thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np

from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import packed
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.model.tables import DenseEntry, Encoding, TableEntry
from edl_ckpt.core.reading.blocks import IdPiece, Sums, check_row_count, count_ids, cuts
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.interface import RangeReader

PIECE_BYTES: Final = 1 << 20
"""Bytes of ids, or of a dense variable, in one task."""
SMALL_BYTES: Final = 256 << 10
"""The size up to which the part of a table in a shard is small: then a few calls for each would cost more than it."""
DIRECT_BYTES: Final = 1 << 20
"""Bytes of values that the kernel has in one call; fewer, in a whole piece, are not worth it."""
_LEAST_TASK_BYTES: Final = 256 << 10
"""A thread too takes small pieces together: each alone would cost it more than their bytes."""
_DENSE_BYTES: Final = 8 * bulk.CHUNK_BYTES
"""Pieces of variables begin at multiples of it: at whole sketch chunks, also when float64 becomes float16."""
_VARINT: Final = Encoding.VARINT
"""A member of a class of constants takes time to look up, and each small part is asked."""


class IdsAt(NamedTuple):
    """Ids of a table: the numbers of the shard, of the table in it and of the run; rows as in `IdPiece`."""

    shard: int
    table: int
    run: int
    start: int
    end: int
    first_row: int = -1
    rows: int = 0

    def entry(self, checkpoint: Checkpoint) -> TableEntry:
        """Return the table in the shard."""
        return checkpoint.shards[self.shard].tables[self.table]

    def piece(self, checkpoint: Checkpoint) -> IdPiece:
        """Return the piece itself."""
        shard, entry = checkpoint.shards[self.shard], self.entry(checkpoint)
        return IdPiece(shard, entry, entry.ids[self.run], self.start, self.end, self.first_row, self.rows)


class DenseAt(NamedTuple):
    """Bytes of a dense variable: the numbers of the shard and of the variable in it."""

    shard: int
    variable: int
    start: int
    size: int

    def entry(self, checkpoint: Checkpoint) -> DenseEntry:
        """Return the variable in the shard."""
        return checkpoint.shards[self.shard].variables[self.variable]

    def reader(self, checkpoint: Checkpoint) -> RangeReader:
        """Return what reads its file."""
        return checkpoint.reader(checkpoint.shards[self.shard], self.entry(checkpoint).values)


PieceAt: TypeAlias = IdsAt | DenseAt


class RowMarks(NamedTuple):
    """Some rows of a table whose places a plan knows: int64 [marks] each, ascending by shard, then by row."""

    shards: bulk.I64
    """The `ps_id` of the shard."""
    ids_at: bulk.I64
    """The offset of the id of the row in the file."""
    rows: bulk.I64
    """The number of the row in the shard."""

    @classmethod
    def of(cls, shards: bulk.I64, id_bytes: bulk.I64, rows: bulk.I64, first_at: bulk.I64) -> Self:
        """Return marks at the beginnings of some runs of rows: each is in a shard, behind those before it there.

        `first_at` are the offsets of the first id of each shard: int64 [ps_num].

        >>> marks = RowMarks.of(*(np.array(some) for some in ([0, 1, 0], [9, 8, 7], [4, 4, 3], [100, 200])))
        >>> [numbers.tolist() for numbers in marks]
        [[0, 0, 1], [100, 109, 200], [0, 4, 0]]
        """
        order = np.argsort(shards, kind="stable")
        shards, sizes = shards[order], np.stack((id_bytes[order], rows[order]))
        before = np.cumsum(sizes, axis=1) - sizes
        before -= before[:, np.searchsorted(shards, shards)]
        return cls(shards, first_at[shards] + before[0], before[1])


def total_id_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all ids."""
    return sum(run.end - run.start for shard in checkpoint.shards for table in shard.tables for run in table.ids)


def ids_at(
    checkpoint: Checkpoint, task_bytes: int, *, values: bool, piece_bytes: int = PIECE_BYTES, above: int = 0
) -> Iterator[IdsAt]:
    """Yield the ids of all tables, by table, shard and row, in pieces of a task at most.

    With `values`, the values of the rows count for the size of a task too. However the ids are cut, the pieces of
    `piece_bytes` that `cut_piece` makes of these are the same. Parts that are small at `above` times are left out.
    """
    for shard_at, table in _entries(checkpoint, above):
        shard = checkpoint.shards[shard_at]
        entry = shard.tables[table]
        for number, run in enumerate(entry.ids):
            whole = IdPiece(shard, entry, run, run.start, run.end)
            first = next(iter(cut_piece(checkpoint, whole, piece_bytes)), whole)
            step = max(first.end - first.start, 1)
            if task_bytes and not run.tagged:
                own_bytes = max(sum(run.end - run.start for run in entry.ids), 1)
                wanted = task_bytes * own_bytes // (own_bytes + values * entry.values.size_bytes)
                step *= max(wanted // step, 1)
            for start in range(run.start, run.end, step):
                yield IdsAt(shard_at, table, number, start, min(start + step, run.end))


def marked_at(checkpoint: Checkpoint, marks: Mapping[str, RowMarks], task_bytes: int) -> Iterator[IdsAt]:
    """Yield what `ids_at` yields with values, cut at marks, so that the rows are numbered without reading an id.

    A table without marks is one piece in each shard. Ids are packed, as edl-ckpt writes them.
    """
    for shard_at, table in _entries(checkpoint):
        shard = checkpoint.shards[shard_at]
        entry = shard.tables[table]
        if not entry.ids:
            continue
        (run,) = entry.ids
        if entry.name not in marks:
            yield IdsAt(shard_at, table, 0, run.start, run.end, 0, entry.rows)
            continue
        marked = marks[entry.name]
        own = slice(*np.searchsorted(marked.shards, (shard.file.ps_id, shard.file.ps_id + 1)).tolist())
        ids_at, rows = marked.ids_at[own], marked.rows[own]
        id_bytes = run.end - run.start
        wanted = max(task_bytes * id_bytes // (id_bytes + entry.values.size_bytes), 1)
        first = np.unique((ids_at - run.start) // wanted, return_index=True)[1]
        starts, first_rows = ids_at[first].tolist(), rows[first].tolist()
        counts = np.diff(rows[first], append=entry.rows).tolist()
        pieces = zip(starts, [*starts[1:], run.end], first_rows, counts, strict=True)
        yield from (IdsAt(shard_at, table, 0, *piece) for piece in pieces)


def _entries(checkpoint: Checkpoint, above: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the shard, and of the table in it, of all parts of tables that are not small, by table."""
    numbers: dict[str, list[tuple[int, int]]] = {}
    for number, shard in enumerate(checkpoint.shards):
        for table, entry in enumerate(shard.tables):
            if not is_small(entry, above):
                numbers.setdefault(entry.name, []).append((number, table))
    return (pair for name in sorted(numbers) for pair in numbers[name])


def dense_at(checkpoint: Checkpoint, task_bytes: int, *, piece_bytes: int = PIECE_BYTES) -> Iterator[DenseAt]:
    """Yield every dense variable, in pieces of whole sketch chunks; an empty one gives one empty piece."""
    for number, shard in enumerate(checkpoint.shards):
        wanted = max(piece_bytes, task_bytes, checkpoint.reader(shard).block_bytes)
        step = max(wanted // _DENSE_BYTES, 1) * _DENSE_BYTES
        for variable, entry in enumerate(shard.variables):
            for start in range(0, max(entry.size_bytes, 1), step):
                yield DenseAt(number, variable, start, min(step, entry.size_bytes - start))


def in_tasks(places: Iterable[IdsAt], task_bytes: int) -> Iterator[tuple[IdsAt, ...]]:
    """Yield pieces of ids that follow each other in tasks of about `task_bytes` of ids."""
    measured = ((place, place.end - place.start, "", 0) for place in places)
    yield from packed(measured, max(task_bytes, _LEAST_TASK_BYTES))


def number_rows(
    checkpoint: Checkpoint,
    places: Iterable[IdsAt],
    counts: Iterable[int],
    *,
    above: int = 0,
    without: Container[str] = (),
) -> list[IdsAt]:
    """Return all ids of a checkpoint with their rows numbered, from the number of rows of each piece.

    The pieces lack parts that are small at `above` times, or whole tables, where the caller says so.

    Raises CorruptError where an entry has more or fewer ids than rows.
    """
    numbered: list[IdsAt] = []
    totals: defaultdict[tuple[int, int], int] = defaultdict(int)
    for place, rows in zip(places, counts, strict=True):
        numbered.append(place._replace(first_row=totals[place[:2]], rows=rows))
        totals[place[:2]] += rows
    for number, shard in enumerate(checkpoint.shards):
        for table, entry in enumerate(shard.tables):
            if entry.name not in without and not is_small(entry, above):
                check_row_count(shard, entry, totals[number, table])
    return numbered


def _count_ids(checkpoint: Checkpoint, task: tuple[IdsAt, ...], _: Advance, *, piece_bytes: int) -> list[int]:
    cuts = (cut_piece(checkpoint, place.piece(checkpoint), piece_bytes) for place in task)
    return [sum(count_ids(checkpoint, cut) for cut in some) for some in cuts]


def count_rows(
    checkpoint: Checkpoint, places: Iterable[IdsAt], job: Job, *, piece_bytes: int = PIECE_BYTES, above: int = 0
) -> list[IdsAt]:
    """Return all ids of a checkpoint, but those in small parts, with their rows counted; raises as `number_rows`."""
    listed = list(places)
    tasks = in_tasks(listed, job.executor.task_bytes(sum(place.end - place.start for place in listed)))
    work = FunctionWork(CheckpointValue.of(checkpoint), partial(_count_ids, piece_bytes=piece_bytes))
    with job.silent().run(work, checkpoint, tasks) as counts:
        return number_rows(checkpoint, listed, chain.from_iterable(counts), above=above)


def in_sketched_tasks(
    checkpoint: Checkpoint, places: Iterable[PieceAt], task_bytes: int
) -> Iterator[tuple[PieceAt, ...]]:
    """Yield pieces in tasks of about `task_bytes` of values and ids, whose sketches are a small result too."""

    def measured(place: PieceAt) -> tuple[PieceAt, int, str, int]:
        if isinstance(place, DenseAt):
            variable = place.entry(checkpoint)
            width = variable.size_bytes
            result = width if width <= bulk.CHUNK_BYTES else 4 * sketch_size(width)  # one chunk is kept as it is
            return place, place.size, f"d{variable.name}", result
        entry = place.entry(checkpoint)
        id_bytes = sum(run.end - run.start for run in entry.ids)
        size = place.end - place.start
        size += entry.values.size_bytes * size // max(id_bytes, 1)
        return place, size, f"t{entry.name}", 4 * sketch_size(entry.row_bytes)

    yield from packed(map(measured, places), max(task_bytes, _LEAST_TASK_BYTES))


def is_small(entry: TableEntry, times: int = 1) -> bool:
    """Say whether the part of a table in a shard is small: rows, and behind them their ids, a byte or more for each.

    It may be so many times as large as what is small for every caller; with 0 no part is small.
    """
    if len(entry.ids) != 1:
        return False
    (run,), values = entry.ids, entry.values
    if run.end - entry.offset > SMALL_BYTES * times or not 0 < entry.rows <= run.end - run.start:
        return False
    return run.encoding is _VARINT and run.file == values.file == 0 and values.end <= run.start


def cut_piece(checkpoint: Checkpoint, piece: IdPiece, piece_bytes: int) -> Iterator[IdPiece]:
    """Cut a piece into smaller ones, whose rows are not counted; unpacked ids stay together."""
    block_bytes, values = checkpoint.reader(piece.shard, piece.entry.values).block_bytes, piece.entry.values
    for_a_block = sum(run.end - run.start for run in piece.entry.ids) * block_bytes // max(values.size_bytes, 1)
    step = piece_bytes // for_a_block * for_a_block if 0 < for_a_block <= piece_bytes else piece_bytes
    whole = piece.start, piece.end  # nearly every piece is one: there may be thousands
    for start, end in [whole] if piece.end - piece.start <= step else cuts(piece.run, *whole, step):
        yield IdPiece(piece.shard, piece.entry, piece.run, start, end)


def read_dense(checkpoint: Checkpoint, place: DenseAt, sums: Sums | None = None) -> bulk.U8:
    """Return the bytes of a variable at a place, uint8 [size], and add them to checksums."""
    data = np.empty(place.size, np.uint8)
    if place.size:
        reader, at = place.reader(checkpoint), place.entry(checkpoint).values.start + place.start
        reader.read_into(at, data.data)
        if sums is not None:
            sums.add(reader, at, data.data)
    return data
