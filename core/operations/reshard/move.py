"""The pass over the values of a reshard: each is read once, looked at once, and written at its offset.

Ids move as the varint bytes they are. A task is a piece of a dense variable, a piece of a large table, or several small
tables that follow each other: those are put together with all that stands between them, so that each target takes one
write. Where a piece of a large table goes follows from the pieces before it in its stretch, which take their places in
turn; so nothing is kept for each piece.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES, IdBlock, check_row_count, raise_bad_ids, read_rows
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.checkpoint.places import IdsAt, RowMarks, dense_at
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import (
    PIECE_BYTES,
    DensePiece,
    IdPiece,
    cut_piece,
    dense_pieces,
    read_dense,
    read_piece,
)
from edl_ckpt.core.checkpoint.trust import Trust
from edl_ckpt.core.commit.part_plan import DenseBytes, Moved
from edl_ckpt.core.errors import EdlCkptError, LockedError
from edl_ckpt.core.format import bulk, routing
from edl_ckpt.core.format.model import ShardIndex, TableEntry
from edl_ckpt.core.format.routing import PART_NUMBERS, Part
from edl_ckpt.core.format.shard_layout import write_groups
from edl_ckpt.core.moving.passes import MoveTask, Pass, Read, Stretch
from edl_ckpt.core.moving.sparse import PieceCounts, SparsePair
from edl_ckpt.core.operations.reshard.direct import LOOK_BYTES, Rows, exceeds_page_cache, move_directly
from edl_ckpt.core.operations.reshard.order import moved_by, moved_together, piece_order
from edl_ckpt.core.operations.reshard.plan import ReshardPlan, Route, row_marks
from edl_ckpt.core.operations.reshard.settings import ReshardSettings
from edl_ckpt.core.packing import together
from edl_ckpt.core.parallel import RESULT_BYTES, Executor
from edl_ckpt.core.progress import Reporter

_TASK_BYTES: Final = 64 << 10
"""About the most bytes of a task of several stretches, which has these for each target of each:"""
_TARGET_BYTES: Final = 48
_NEAR_BYTES = 4 << 10
"""The most bytes between two tables in a shard that are read along with them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """One piece of a stretch, the `number`-th of it."""

    piece: IdPiece
    number: int
    turns: _Turns


_Pieces: TypeAlias = DensePiece | _Piece | tuple[str, ...]
"""What a thread moves at a time: the last are small tables."""


class _Turns:
    """The places of the pieces of one stretch, which each piece takes after those before it."""

    def __init__(self, stretch: IdPiece, counts: PieceCounts, route: Route) -> None:
        self._row = stretch.first_row
        self._end_row = stretch.first_row + stretch.rows
        self._values_at, self._ids_at = route.values_at.copy(), route.ids_at.copy()
        self._values_end = route.values_at + counts.rows * stretch.entry.row_bytes
        self._ids_end = route.ids_at + counts.id_bytes
        self._row_bytes = stretch.entry.row_bytes
        self._next = 0
        self._failed = sys.maxsize
        self._changed = threading.Condition()

    def take(self, task: _Piece, rows: bulk.I64, id_bytes: bulk.I64) -> tuple[int, bulk.I64, bulk.I64]:
        """Return (first row, offsets of rows, offsets of ids) of a piece; LockedError when the stretch has no room.

        `rows` and `id_bytes` are those of each target, int64 [to_ps]. Waits for the pieces before it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._next == task.number or self._failed < task.number)
            if self._failed < task.number:
                raise EdlCkptError("a piece of the table before this one failed", path=task.piece.shard.file.path)
            row, values_at, ids_at = self._row, self._values_at, self._ids_at
            self._row = row + int(rows.sum())
            self._values_at, self._ids_at = values_at + rows * self._row_bytes, ids_at + id_bytes
            ends = (self._values_at, self._values_end), (self._ids_at, self._ids_end)
            if self._row > self._end_row or any((at > end).any() for at, end in ends):
                raise _changed_ids(task.piece)
            self._next += 1
            self._changed.notify_all()
            return row, values_at, ids_at

    def fail(self, number: int) -> None:
        """Let the pieces behind one that failed not wait for it; those before it go on, so its error is the first."""
        with self._changed:
            self._failed = min(self._failed, number)
            self._changed.notify_all()


class Move(Pass[Checkpoint, _Pieces, IdsAt]):
    """The pass over the values of a checkpoint; in another process its plan has neither counts nor routes.

    Those grow with the version: a task has the counts and the route of each of its stretches.
    """

    doing = "resharding"

    def __init__(
        self,
        plan: ReshardPlan,
        settings: ReshardSettings,
        checkpoint: Checkpoint,
        reporter: Reporter,
        trust: Trust | None = None,
    ) -> None:
        super().__init__(plan.layouts, checkpoint, reporter)
        self._plan = plan
        self._settings = settings
        self.trust = trust
        self.workers = settings.workers
        self.parts = settings.parts
        self.part_memory_bytes = settings.part_memory_bytes
        self.proof_batch_bytes = settings.proof_batch_bytes
        self.proof_piece_bytes = min(settings.piece_bytes, PIECE_BYTES)
        self._once = exceeds_page_cache(plan.size_bytes + plan.survey.source.size_bytes)
        self._small = {counts.table: counts for counts in plan.survey.small}
        self.small = self._small.keys()

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        return value_bytes(self.source)

    def value(self) -> tuple[CheckpointValue, Callable[[Checkpoint, Reporter], Move]]:
        """Return the checkpoint as a value, and what begins the pass in another process."""
        light = replace(self._plan, survey=replace(self._plan.survey, counts=(), pieces=(), kept={}), routes=())
        return CheckpointValue.of(self.source), partial(Move, light, replace(self._settings, parts=None))

    def moved(self) -> Moved:
        """Return what moves, for the plan of parts."""
        return moved_by(self._plan)

    def content(self) -> Fingerprint:
        """Return the fingerprint of the values that were read; CorruptError when the source's seal has another one."""
        read = fingerprint_of(self.source, self.sketch)
        if self.trust is not None:
            self.trust.confirm(read.text)
        return read

    def marks(self) -> Mapping[str, RowMarks]:
        """Return where the rows of each stretch begin in the targets."""
        return row_marks(self._plan)

    def pieces(self) -> Iterator[_Pieces]:
        """Yield small tables, then each target from front to back, few targets at a time: few parts are open."""
        dense = sorted(dense_pieces(self.source, self._settings.batch_bytes), key=self._place)
        groups = moved_together(self._plan)
        yield from self._small_tables()
        for group in range(groups):
            yield from self._group(group, groups, dense)

    def tasks(self, executor: Executor) -> Iterator[MoveTask[IdsAt]]:
        """Yield all tasks; a result has the sketches of a variable, or of some tables.

        Stretches of one task follow each other: they are of few tables and go to the same targets.
        """
        plan, checkpoint = self._plan, self.source
        at_once, limit = _small_at_once(plan), executor.task_bytes(value_bytes(checkpoint) + plan.survey.id_bytes)
        yield from (MoveTask(reads=(Read(names),)) for names in self._small_tables(most=at_once))
        for dense in dense_at(checkpoint, executor.task_bytes(value_bytes(checkpoint))):
            yield MoveTask((DenseBytes(dense.piece(checkpoint).entry.name, dense.start, dense.size),))
        most = min(at_once, max(_TASK_BYTES * moved_together(plan) // (_TARGET_BYTES * plan.to_ps), 1))
        yield from (MoveTask(reads=tuple(reads)) for reads in together(self._stretches(), limit, most=most))

    def _stretches(self) -> Iterator[tuple[Read[IdsAt], int]]:
        """Yield each stretch as it is sent, in the order in which they move, with the bytes of its ids and rows."""
        for number in piece_order(self._plan):
            piece = self._plan.survey.pieces[number]
            yield Read(self.stretch(number)), piece.end - piece.start + piece.rows * piece.entry.row_bytes

    def stretch(self, number: int) -> Stretch[IdsAt]:
        """Return a stretch as a task names it, by its number in the survey."""
        plan, shards = self._plan, self.source.shards
        piece, counts, route = plan.survey.pieces[number], plan.survey.counts[number], plan.routes[number]
        shard_at = next(k for k, shard in enumerate(shards) if shard.file.ps_id == piece.shard.file.ps_id)
        tables = shards[shard_at].tables
        table = next(k for k, entry in enumerate(tables) if entry.name == piece.entry.name)
        run = tables[table].ids.index(piece.run)
        ids = IdsAt(shard_at, table, run, piece.start, piece.end, piece.first_row, piece.rows)
        targets = np.flatnonzero(counts.id_bytes)
        rows = SparsePair.of(counts.rows, counts.id_bytes, targets)
        return Stretch(ids, rows, SparsePair.of(route.values_at, route.ids_at, targets))

    def write_between(self) -> None:
        """Write what stands between values, but for that among small tables."""
        layouts = self.layouts
        large = [name for name in self.source.table_names if name not in self._small]
        places = [zip(layouts.values_at(n).tolist(), layouts.ids_at(n).tolist(), strict=True) for n in large]
        heads = [zip(layouts.heads(name), at, strict=True) for name, at in zip(large, places, strict=True)]
        for ps_id, file in enumerate(self.files):
            own = [next(each) for each in heads]
            tables = [(at - len(head), head) for pair, ats in own for head, at in zip(pair, ats, strict=True) if head]
            file.write_between([*layouts.front(ps_id).between, *sorted(tables)])

    def _group(self, group: int, groups: int, dense: Sequence[DensePiece]) -> Iterator[DensePiece | _Piece]:
        """Yield the variables, and the pieces of large tables, that belong to shards of one remainder."""
        survey = self._plan.survey
        yield from (piece for piece in dense if self._place(piece)[0] % groups == group)
        for number in piece_order(self._plan):
            stretch = survey.pieces[number]
            if stretch.shard.file.ps_id % groups == group:
                turns = _Turns(stretch, survey.counts[number], self._plan.routes[number])
                cuts = cut_piece(self.source, stretch, self._settings.piece_bytes)
                yield from (_Piece(piece, place, turns) for place, piece in enumerate(cuts))

    def _small_tables(self, *, most: int = sys.maxsize) -> Iterator[tuple[str, ...]]:
        """Yield small tables that follow each other in the order of the targets, which is that of their numbers.

        They are as many at a time as one worker may have in memory, and `most` of them.
        """
        for names in self._neighbours():
            for first in range(0, len(names), most):
                yield tuple(names[first : first + most])

    def _neighbours(self) -> Iterator[list[str]]:
        layouts, last = self.layouts, -1
        sizes = np.diff(layouts.tables_at, axis=0).sum(axis=1)  # ids and heads may be far more than the values
        some: list[tuple[str, int]] = []
        for name in sorted(self._small, key=layouts.number):
            if layouts.number(name) != last + 1:
                yield from together(some, self._settings.gather_bytes)
                some = []
            last = layouts.number(name)
            some.append((name, int(sizes[last])))
        yield from together(some, self._settings.gather_bytes)

    def _place(self, piece: DensePiece) -> tuple[int, int]:
        """Return the target shard of a piece of a variable, and its offset there."""
        owner, offset = self.layouts.dense_at(piece.entry.name)
        return owner, offset + piece.start

    def do(self, piece: _Pieces) -> None:
        """Move the values of a piece."""
        if isinstance(piece, DensePiece):
            self._move_dense(piece)
        elif isinstance(piece, tuple):
            self._move_small(piece)
        else:
            try:
                self._move_piece(piece)
            except BaseException:
                piece.turns.fail(piece.number)
                raise

    def move_dense(self, dense: DenseBytes) -> None:
        """Move bytes of a variable, some at a time."""
        self._move_dense(DensePiece(*self.source.find_variable(dense.name), dense.start, dense.size))

    def move_rows(self, rows: Stretch[IdsAt] | tuple[str, ...], *, values: bool = True) -> None:
        """Move some small tables, or a stretch, one piece after the other; without `values` only its ids."""
        if not isinstance(rows, Stretch):
            self._move_small(rows)
            return
        stretch = rows.place.piece(self.source)
        counts = PieceCounts(stretch.entry.name, *rows.counts.full(self._plan.to_ps))
        turns = _Turns(stretch, counts, Route(*rows.route.full(self._plan.to_ps)))
        for number, piece in enumerate(cut_piece(self.source, stretch, self._settings.piece_bytes)):
            self._move_piece(_Piece(piece, number, turns), values=values)

    def _move_dense(self, piece: DensePiece) -> None:
        step = max(self._settings.batch_bytes // bulk.CHUNK_BYTES, 1) * bulk.CHUNK_BYTES
        for start in range(piece.start, max(piece.start + piece.size, piece.start + 1), step):
            size = min(step, piece.start + piece.size - start)
            self._move_bytes(DensePiece(piece.shard, piece.entry, start, size))

    def _move_bytes(self, piece: DensePiece) -> None:
        data = read_dense(self.source, piece)
        self.sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, data)
        owner, offset = self._place(piece)
        self.files[owner].write(offset, data.data)
        self.reporter.advance(piece.size)

    def _move_piece(self, task: _Piece, *, values: bool = True) -> None:
        """Write the ids of a piece, then its rows in batches."""
        block = read_piece(self.source, task.piece)
        owner = bulk.owners(block.ids, self._plan.to_ps)
        rows, id_bytes = bulk.tally(owner, block.lengths, self._plan.to_ps)
        first_row, values_at, ids_at = task.turns.take(task, rows, id_bytes)
        write_groups(self.files, bulk.group_varints(block.data, block.lengths, owner, id_bytes), id_bytes, ids_at)
        row_bytes = task.piece.entry.row_bytes
        if not row_bytes:
            self.sketch.add_rows(task.piece.entry.name, block.ids, np.empty((len(block.ids), 0), np.uint8))
            return
        if not values:
            return
        sketch = bulk.new_sketch(row_bytes)
        gathered = np.empty(min(self._step(row_bytes), len(block.ids)) * row_bytes, np.uint8)
        values_at = values_at.copy()
        reader, entry = self.source.reader(task.piece.shard), task.piece.entry
        moved, advance = Rows(first_row, block.ids, owner, rows), self.reporter.advance
        if first_row + len(block.ids) > entry.rows:
            check_row_count(reader, entry, first_row + len(block.ids), at_least=True)
        by_kernel = move_directly(
            reader, entry, moved, self.files, values_at, sketch, gathered, advance, once=self._once
        )
        if not by_kernel:
            self._move_in_steps(task.piece, first_row, block, owner, values_at, sketch, gathered)
        self.sketch.add_sketch(task.piece.entry.name, sketch)

    def _move_in_steps(
        self,
        piece: IdPiece,
        first_row: int,
        block: IdBlock,
        owner: bulk.U16,
        values_at: bulk.I64,
        sketch: bulk.U32,
        gathered: bulk.U8,
    ) -> None:
        """Read the rows of a piece, put them in order, and write them, as many at a time as are gathered."""
        row_bytes = piece.entry.row_bytes
        for some, batch in self._steps(piece, first_row, len(block.ids)):
            sizes = bulk.tally(owner[some], block.lengths[some], self._plan.to_ps)[0] * row_bytes
            if batch is None:
                self._gather(piece, first_row, block, owner, some, sizes, sketch, gathered)
            else:
                routing.move_rows(sketch, block.ids[some], owner[some], batch, np.cumsum(sizes) - sizes, gathered)
            write_groups(self.files, gathered, sizes, values_at)
            values_at += sizes
            self.reporter.advance(int(sizes.sum()))

    def _step(self, row_bytes: int) -> int:
        """Return how many rows are gathered at a time."""
        return max(1, max(self._settings.gather_bytes, self._settings.batch_bytes) // row_bytes)

    def _steps(self, piece: IdPiece, first_row: int, rows: int) -> Iterator[tuple[slice, bulk.U8 | None]]:
        """Yield the rows of a piece, as many at a time as are gathered; from far storage with their values.

        One request brings the values of several steps, and all requests of a piece are of about one size.
        """
        reader, row_bytes = self.source.reader(piece.shard), piece.entry.row_bytes
        step = self._step(row_bytes)
        if not reader.block_bytes:
            yield from ((slice(start, min(start + step, rows)), None) for start in range(0, rows, step))
            return
        is_bounded = self._settings.batch_bytes < VALUE_BATCH_BYTES  # then a request takes no more memory than a step
        most = step if is_bounded else max(step, reader.block_bytes // row_bytes)
        block = -(-rows // max(round(rows / most), 1))
        # Always of one size, so that the memory of one piece is used again for the next.
        buffer = np.empty((max(most + most // 2, block), row_bytes), np.uint8)
        for first in range(0, rows, block or 1):
            last = min(first + block, rows)
            values = read_rows(reader, piece.entry, first_row + first, buffer[: last - first])
            for start in range(first, last, step):
                stop = min(start + step, last)
                yield slice(start, stop), values[start - first : stop - first]

    def _gather(
        self,
        piece: IdPiece,
        first_row: int,
        block: IdBlock,
        owner: bulk.U16,
        some: slice,
        sizes: bulk.I64,
        sketch: bulk.U32,
        gathered: bulk.U8,
    ) -> None:
        """Read some rows of a near piece into `gathered`, ordered by owner, and add them to a sketch."""
        reader, row_bytes = self.source.reader(piece.shard), piece.entry.row_bytes
        step = max(1, LOOK_BYTES // row_bytes)
        places = np.cumsum(sizes) - sizes
        straight = int(sizes.max(initial=0)) == int(sizes.sum())  # all go to one target: merging 8 into 4, say
        buffer = np.empty((0 if straight else min(step, some.stop - some.start), row_bytes), np.uint8)
        for start in range(some.start, some.stop, step):
            now = slice(start, min(start + step, some.stop))
            if straight:
                own = gathered[(start - some.start) * row_bytes : (now.stop - some.start) * row_bytes]
                read = read_rows(reader, piece.entry, first_row + start, own.reshape(-1, row_bytes))
                bulk.sketch_rows(sketch, block.ids[now], read)
            else:
                read = read_rows(reader, piece.entry, first_row + start, buffer[: now.stop - start])
                routing.move_rows(sketch, block.ids[now], owner[now], read, places, gathered)

    def _move_small(self, tables: Sequence[str]) -> None:
        """Put small tables together for each target, with all that stands between them, and write them."""
        layouts = self.layouts
        first, last = layouts.number(tables[0]), layouts.number(tables[-1])
        starts, sizes = layouts.tables_at[first], layouts.tables_at[last + 1] - layouts.tables_at[first]
        shift = np.cumsum(sizes) - sizes - starts  # from an offset in a target to the place in `out`
        out = np.empty(int(sizes.sum()), np.uint8)
        values_at = np.stack([layouts.values_at(name) + shift for name in tables])
        ids_at = np.stack([layouts.ids_at(name) + shift for name in tables])
        layouts.put_heads(slice(first, last + 1), values_at, ids_at, out)
        found = [(k, shard, e) for k, name in enumerate(tables) for shard, e in self.source.entries(name) if e.ids]
        data, parts, sums = self._read_small(tables, found)
        bad = routing.move_parts(sums, data, data, parts, values_at, ids_at, out)
        if bad >= 0:
            raise_bad_ids(self.source.reader(found[bad][1]), found[bad][2])
        self._check_full(tables, found, parts, values_at - shift, ids_at - shift)
        write_groups(self.files, out, sizes, starts)
        own = np.unique(parts[:, Part.TABLE], return_index=True)[1]
        self.sketch.add_parts([tables[k] for k in parts[own, Part.TABLE].tolist()], sums, parts[own])
        self.reporter.advance(int((parts[:, Part.ROWS] * parts[:, Part.ROW_BYTES]).sum()))

    def _check_full(
        self,
        tables: Sequence[str],
        found: Sequence[tuple[int, ShardIndex, TableEntry]],
        parts: bulk.I64,
        values_at: bulk.I64,
        ids_at: bulk.I64,
    ) -> None:
        """Raise LockedError unless the rows and ids of each table went as far as those that the survey counted."""
        row_bytes = dict(parts[:, [Part.TABLE, Part.ROW_BYTES]].tolist())
        for number, name in enumerate(tables):
            counts, layouts = self._small[name], self.layouts
            values_end = layouts.values_at(name) + counts.rows * row_bytes.get(number, 0)
            ids_end = layouts.ids_at(name) + counts.id_bytes
            if not (np.array_equal(values_at[number], values_end) and np.array_equal(ids_at[number], ids_end)):
                shard, entry = next((shard, entry) for k, shard, entry in found if k == number)
                raise _changed_ids(IdPiece(shard, entry, entry.ids[0], entry.offset, entry.ids[0].end))

    def _read_small(
        self, tables: Sequence[str], found: Sequence[tuple[int, ShardIndex, TableEntry]]
    ) -> tuple[bulk.U8, bulk.I64, bulk.U32]:
        """Return (the bytes of parts, the parts in them, room for the sketches of the tables).

        Parts that lie close behind each other in a shard are read together.
        """
        spans: list[tuple[ShardIndex, int, int]] = []
        before = np.zeros(len(found), np.int64)  # what must be added to an offset to get the place in the bytes
        size = 0
        for number in sorted(range(len(found)), key=lambda n: (found[n][1].file.ps_id, found[n][2].offset)):
            _, shard, entry = found[number]
            if not spans or spans[-1][0] is not shard or not 0 <= entry.offset - spans[-1][2] <= _NEAR_BYTES:
                spans.append((shard, entry.offset, entry.offset))
            _, start, end = spans[-1]
            spans[-1] = (shard, start, entry.ids[0].end)
            size += entry.ids[0].end - end
            before[number] = size - entry.ids[0].end
        data = np.empty(size, np.uint8)
        at = 0
        for shard, start, end in spans:
            self.source.reader(shard).read_into(start, data[at : at + end - start].data)
            at += end - start
        parts = np.zeros((len(found), PART_NUMBERS), np.int64)
        rows = [
            (e.ids[0].start, e.ids[0].end - e.ids[0].start, e.rows, k, max(e.values.start, e.offset), e.row_bytes)
            for k, _, e in found
        ]
        parts[:, : Part.SUMS] = np.array(rows, np.int64).reshape(-1, Part.SUMS)
        parts[:, [Part.IDS, Part.VALUES]] += before[:, None]
        widths = {number: row_bytes for _, _, _, number, _, row_bytes in rows}
        sums_at = np.cumsum([0] + [routing.sketch_size(widths.get(k, 0)) for k in range(len(tables))])
        parts[:, Part.SUMS] = sums_at[parts[:, Part.TABLE]]
        return data, parts, np.zeros(int(sums_at[-1]), np.uint32)


def _small_at_once(plan: ReshardPlan) -> int:
    """Return how many small tables have sketches that are a small result."""
    widest = max((table.row_bytes for table in plan.survey.tables), default=0)
    return max(RESULT_BYTES // (4 * routing.sketch_size(widest)), 1)


def _changed_ids(piece: IdPiece) -> LockedError:
    return LockedError(
        f"table {piece.entry.name!r}: its ids have changed since they were counted",
        path=piece.shard.file.path,
        offset=piece.start,
        hint="another process is writing the shard, or the storage returns wrong bytes; try again",
    )
