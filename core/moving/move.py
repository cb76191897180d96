"""How values move: each is read once, looked at once, and written at its offset.

What is moved at a time are pieces of dense variables, a piece of a large table, or several small tables that follow
each other: those are put together with all that stands between them, so that each target takes one write. Where a
piece of a large table goes follows from the pieces before it in its stretch, which take their places in turn; so
nothing is kept for each piece.

The rows of a piece go from a file of the local disk to others by the compiled kernel alone: between a read, the look at
what was read, and the writes, Python does nothing and no thread waits for its turn. On two cores that was a third of
the time of the pass. Other storage, and the few rows of a small piece, go through the reader and the sinks.
"""

from __future__ import annotations

import math
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import EdlCkptError, LockedError
from edl_ckpt.core.base.memory import page_cache_bytes
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.converting.rows import Cut
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.kernel.routing import Part
from edl_ckpt.core.moving.extents import taken_of_matrix, taken_rows
from edl_ckpt.core.moving.file_values import Cast, FileRows, FileValues, read_bytes
from edl_ckpt.core.moving.goal import ID_BYTES, Goal, Rule, ShardGoal, TableSinks, cuts_in
from edl_ckpt.core.moving.input import Input, Stretch
from edl_ckpt.core.moving.meaning import Meaning
from edl_ckpt.core.moving.parts import DenseBytes
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.sums import SummedValues
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdBlock
from edl_ckpt.core.reading.casts import cast_bytes
from edl_ckpt.core.reading.pieces import DIRECT_BYTES, IdsAt
from edl_ckpt.core.sources.elasticdl.target import write_groups
from edl_ckpt.core.storage.interface import OnDisk, Sinks, is_on_disk

_LOOK_BYTES: Final = 256 << 10
"""Bytes of values that are read at a time, and looked at while they are in the L2 cache."""
_AHEAD_BYTES: Final = 4 << 20
"""Bytes behind those of a call that the disk begins to read."""
_CACHE_SHARE: Final = 0.75
"""The part of the memory that source and target may have in the page cache."""
CALL_BYTES: Final = 16 << 20
"""Bytes that the kernel moves in one call: an interrupted command waits for no longer."""


class MovedRows(NamedTuple):
    """Rows that follow each other in a file, and where those of them go that go out."""

    file: FileRows
    first: int
    stored: int
    """How many follow each other."""
    kept: npt.NDArray[np.bool_] | None
    """Which of these rows go out, bool [stored]; None for all. What follows is of those only."""
    block: IdBlock
    owner: bulk.U16
    """The target of each, uint16 [n]."""
    counts: bulk.I64
    """How many go to each target, int64 [to_ps]."""
    sinks: Sinks
    """The files of the targets."""

    @property
    def is_plain(self) -> bool:
        """Return True where all of them go out, as they are."""
        return self.kept is None and self.file.cast is None

    def among(self, chosen: slice) -> MovedRows:
        """Return some of them that follow each other; where not all go out, none."""
        owner = self.owner[chosen]
        counts = np.bincount(owner, minlength=len(self.counts)).astype(np.int64)
        first, stored = self.first + chosen.start, chosen.stop - chosen.start
        block = IdBlock(self.block.ids[chosen])
        return MovedRows(self.file, first, stored, None, block, owner, counts, self.sinks)


@dataclass(frozen=True, slots=True, eq=False)
class PieceInTurn:
    """One piece of a stretch, the `number`-th of it."""

    ids: IdsAt
    number: int
    turns: Turns


Movable: TypeAlias = list[DenseBytes] | PieceInTurn | tuple[str, ...]
"""What a thread moves at a time: the last are small tables."""


class Turns:
    """The places of the pieces of one stretch, which each piece takes after those before it."""

    def __init__(self, stretch: Stretch, goal: Goal, files: Sinks, rows: FileRows) -> None:
        self.table, self.rows = stretch.table, rows
        self.rule: Rule = goal.rules.of(stretch.table)
        self.buckets = to_ps = goal.rules.buckets
        self.sinks = TableSinks(files, None) if self.rule.by_number else goal.sinks(stretch.table, files)
        self._row, self._end_row = stretch.ids.first_row, stretch.ids.first_row + stretch.ids.rows
        row_counts, id_bytes = stretch.counts.full(to_ps)
        self._values_at, self._ids_at = stretch.route.full(to_ps)
        self._values_end, self._ids_end = self._values_at + row_counts * rows.moved_bytes, self._ids_at + id_bytes
        self._next = 0
        self._failed = sys.maxsize
        self._changed = threading.Condition()

    def take(self, number: int, count: int, rows: bulk.I64, id_bytes: bulk.I64) -> tuple[int, bulk.I64, bulk.I64]:
        """Return (first row, offsets of rows, offsets of ids) of a piece; LockedError when the stretch has no room.

        The piece has `count` rows in its file. `rows` and `id_bytes` are those of each target, int64 [to_ps]. Waits for
        the pieces before it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._next == number or self._failed < number)
            if self._failed < number:
                raise EdlCkptError("a piece of the table before this one failed", path=self.rows.reader.path)
            row, values_at, ids_at = self._row, self._values_at, self._ids_at
            self._row = row + count
            self._values_at, self._ids_at = values_at + rows * self.rows.moved_bytes, ids_at + id_bytes
            ends = (self._values_at, self._values_end), (self._ids_at, self._ids_end)
            if self._row > self._end_row or any((offsets > end).any() for offsets, end in ends):
                raise _changed_ids(self.table, self.rows.reader.path)
            self._next += 1
            self._changed.notify_all()
            return row, values_at, ids_at

    def fail(self, number: int) -> None:
        """Let the pieces after one that failed not wait for it; those before it go on, so its error is the first."""
        with self._changed:
            self._failed = min(self._failed, number)
            self._changed.notify_all()


@dataclass(frozen=True, slots=True, eq=False)
class MoveTerms:
    """What all tasks of a move share; it does not grow with the rows."""

    goal: Goal
    variables: Mapping[str, int]
    """The bytes of each dense variable."""
    settings: ReshardSettings
    once: bool
    """The source leaves the page cache after its rows have moved."""
    meaning: Meaning = field(default_factory=Meaning)
    sums: SummedValues = field(default_factory=SummedValues)

    def summed_bytes(self, variable: str) -> int:
        """Return the bytes that one sketch of a variable is of: those of a row of a matrix, else all."""
        return self.meaning.row_bytes.get(variable) or self.variables[variable]


class Mover:
    """Moves values from an opened source into files; `sketch` has the sums of what it has read."""

    def __init__(
        self,
        terms: MoveTerms,
        source: Input,
        files: Sinks,
        reporter: Reporter,
        crcs: Mapping[tuple[int, int], Crc32] | None = None,
        *,
        skips: bool = False,
    ) -> None:
        """Take what all tasks share, and the `crcs` of tensors, by the file and the offset of each cut that has one.

        With `skips`, rows of which no file takes any are not read; then `sketch` lacks them.
        """
        self.terms = terms
        self._skips = skips
        self.goal = terms.goal
        self.source = source
        self.files = files
        self.reporter = reporter
        self.sketch = ContentSketch()
        self.meaning = terms.meaning
        self.tensors = ContentSketch()
        """The sums of tensors that are neither variables nor matrices."""
        self._crcs = crcs or {}
        self._memory = ThreadMemory()
        self.overflowed = 0
        """Values that became infinite by a cast."""
        self._lock = threading.Lock()

    def do(self, piece: Movable, *, values: bool = True) -> None:
        """Move the values of a piece; without `values` only the ids of a piece in its turn."""
        if isinstance(piece, list):
            for dense in piece:
                self.move_dense(dense)
        elif isinstance(piece, tuple):
            self.move_small(piece)
        else:
            try:
                self._move_piece(piece, values=values)
            except BaseException:
                piece.turns.fail(piece.number)
                raise

    def move_dense(self, dense: DenseBytes) -> None:
        """Move bytes of a variable, as many at a time as a batch has; bytes that the source lacks are zeros."""
        name, row_bytes = dense.name, self.meaning.row_bytes.get(dense.name, 0)
        unit = math.lcm(bulk.CHUNK_BYTES, row_bytes or 1)
        step = max(self.terms.settings.batch_bytes // unit, 1) * unit
        values, cuts = self.source.dense(name), self.goal.cuts(name)
        for start in range(dense.start, max(dense.start + dense.size, dense.start + 1), step):
            size = min(step, dense.start + dense.size - start)
            data = self._read_dense(values, start, size)
            if row_bytes:
                ids = np.arange(start // row_bytes, (start + size) // row_bytes, dtype=np.int64)
                self.sketch.add_rows(name, ids, data.reshape(-1, row_bytes))
            else:
                sketch = self.tensors if name in self.meaning.plain else self.sketch
                sketch.add_dense(name, self.terms.variables[name], start, data)
            self.put(cuts, start, data)
            self.reporter.advance(size)

    def _read_dense(self, values: FileValues, start: int, size: int) -> bulk.U8:
        """Return bytes of a variable as they go out."""
        cast = values.cast
        first, count = (start, size) if cast is None else (cast.before(start), cast.before(size))
        stored = count if values.stored_bytes is None else max(min(values.stored_bytes - first, count), 0)
        buffer = self._memory.take(count)
        data = read_bytes(values.reader, values.start + first, buffer[:stored])
        if stored < count:
            buffer[stored:] = 0
            data = buffer
        return data if cast is None else self.cast(data, cast)

    def put(self, cuts: Sequence[Cut], offset: int, data: bulk.U8) -> None:
        """Write bytes that begin at an offset of a tensor to where its cuts say."""
        end = offset + len(data)
        number = max(bisect_right(cuts, offset, key=_start_of) - 1, 0) if len(cuts) > 1 else 0
        while number and (cuts[number - 1].end > offset or cuts[number - 1].start == cuts[number].start):
            number -= 1  # copies of the same bytes stand beside each other
        for cut in cuts[number:]:
            if cut.start >= end and cut.start > offset:
                return
            low, high = max(cut.start, offset), min(cut.end, end)
            if low < high or not len(data):
                piece = data[low - offset : high - offset].data
                self.files[cut.file].write(cut.offset + low - cut.start, piece)
                if (cut.file, cut.offset) in self._crcs:
                    self._crcs[cut.file, cut.offset].add(low - cut.start, piece)

    def move_stretch(self, stretch: Stretch, *, values: bool = True) -> None:
        """Move a stretch, one piece after the other; without `values` only its ids."""
        for piece in self.pieces_of(stretch):
            self._move_piece(piece, values=values)

    def pieces_of(self, stretch: Stretch) -> Iterator[PieceInTurn]:
        """Yield the pieces of a stretch, in the order in which they take their places."""
        turns = Turns(stretch, self.goal, self.files, self.source.rows_of(stretch.ids))
        for number, ids in enumerate(self.source.cut(stretch.ids, self.terms.settings.piece_bytes)):
            yield PieceInTurn(ids, number, turns)

    def _move_piece(self, piece: PieceInTurn, *, values: bool = True) -> None:
        """Write the ids of a piece, then its rows in batches."""
        read, turns = self.source.read_ids(piece.ids), piece.turns
        table = turns.table
        kept = self.source.kept(piece.ids, read.ids)
        block = read if kept is None else IdBlock(read.ids[kept])
        owner, counts, id_bytes = turns.rule.tally(block, turns.buckets)
        first_row, values_at, ids_at = turns.take(piece.number, len(read.ids), counts, id_bytes)
        if turns.sinks.ids is not None:
            write_groups(turns.sinks.ids, _grouped_ids(turns.rule, block, owner, counts, id_bytes), id_bytes, ids_at)
        rows = MovedRows(turns.rows, first_row, len(read.ids), kept, block, owner, counts, turns.sinks.rows)
        row_bytes = rows.file.moved_bytes
        if not row_bytes:
            self.sketch.add_rows(table, block.ids, np.empty((len(block.ids), 0), np.uint8))
            return
        if self._skips and values:
            rows, values_at = self._taken(table, rows, values_at)
            block = rows.block
        if not values or (self._skips and not len(block.ids)):
            return
        sketch, values_at = bulk.new_sketch(row_bytes), values_at.copy()
        if turns.rule.by_number:
            self._move_matrix(table, rows, sketch)
            self.sketch.add_sketch(table, sketch)
            return
        gathered = np.empty(min(self._step(row_bytes), len(block.ids)) * row_bytes, np.uint8)
        if not rows.is_plain:
            self._move_changed(rows, values_at, sketch, gathered)
        elif not self._move_directly(rows, values_at, sketch, gathered):
            self._move_in_steps(rows, values_at, sketch, gathered)
        if len(block.ids):
            self.sketch.add_sketch(table, sketch)

    def _taken(self, table: str, rows: MovedRows, values_at: bulk.I64) -> tuple[MovedRows, bulk.I64]:
        """Return the rows of a piece from the first to the last that a file takes, and where they begin in each."""
        row_bytes, count = rows.file.moved_bytes, len(rows.block.ids)
        if count and self.goal.rules.of(table).by_number:
            first = int(rows.block.ids[0])
            cuts = cuts_in(self.goal.cuts(table), first * row_bytes, count * row_bytes)
            chosen = taken_of_matrix(self.files, cuts, first, count, row_bytes)
        else:
            chosen = taken_rows(rows.sinks, rows.owner, rows.counts, values_at, row_bytes)
        if rows.kept is not None:  # their rows in the file are not those that go out
            return (rows if chosen.start < chosen.stop else rows.among(slice(0, 0))), values_at
        before = np.bincount(rows.owner[: chosen.start], minlength=len(values_at)) * row_bytes
        return rows.among(chosen), values_at + before

    def cast(self, data: bulk.U8, cast: Cast) -> bulk.U8:
        """Return bytes of values, or rows of them, in another dtype; those that become infinite are counted."""
        flat, overflowed = cast_bytes(np.ascontiguousarray(data).reshape(-1), cast.dtype, cast.target)
        with self._lock:
            self.overflowed += overflowed
        return flat.reshape(*data.shape[:-1], cast.size_of(data.shape[-1]))

    def _move_changed(self, rows: MovedRows, values_at: bulk.I64, sketch: bulk.U32, gathered: bulk.U8) -> None:
        """Move the rows of a piece of which some stay behind, or whose values are cast; `values_at` moves on."""
        row_bytes, done = rows.file.moved_bytes, 0
        for chosen, batch in self._steps(rows):
            kept = None if rows.kept is None else rows.kept[chosen]
            if kept is not None and not kept.any():
                continue
            stored = batch
            if stored is None:
                buffer = np.empty((chosen.stop - chosen.start, rows.file.row_bytes), np.uint8)
                stored = rows.file.read(rows.first + chosen.start, buffer)
            values = stored if kept is None else stored[kept]
            if rows.file.cast is not None:
                values = self.cast(values, rows.file.cast)
            own = slice(done, done + len(values))
            done = own.stop
            sizes = np.bincount(rows.owner[own], minlength=len(values_at)).astype(np.int64) * row_bytes
            places = np.cumsum(sizes) - sizes
            ids = rows.block.ids[own]
            routing.move_rows(sketch, ids, rows.owner[own], np.ascontiguousarray(values), places, gathered)
            write_groups(rows.sinks, gathered, sizes, values_at)
            values_at += sizes
            self.reporter.advance(values.nbytes)

    def _move_matrix(self, table: str, rows: MovedRows, sketch: bulk.U32) -> None:
        """Move rows whose ids, one after the other, are their numbers in a matrix."""
        cuts, row_bytes = self.goal.cuts(table), rows.file.moved_bytes
        for chosen, batch in self._steps(rows):
            values = batch
            if values is None:
                buffer = np.empty((chosen.stop - chosen.start, rows.file.row_bytes), np.uint8)
                values = rows.file.read(rows.first + chosen.start, buffer)
            if rows.file.cast is not None:
                values = self.cast(values, rows.file.cast)
            bulk.sketch_rows(sketch, rows.block.ids[chosen], values)
            self.put(cuts, int(rows.block.ids[chosen.start]) * row_bytes, values.reshape(-1))
            self.reporter.advance(values.nbytes)

    def _move_directly(self, rows: MovedRows, values_at: bulk.I64, sketch: bulk.U32, gathered: bulk.U8) -> bool:
        """Move the rows of a piece by the kernel; False where that cannot, or for few rows.

        `values_at`, int64 [to_ps], moves on. Rows are gathered in `gathered`, uint8 [bytes], before they are written.
        Raises what the reader and the files raise.
        """
        reader = rows.file.reader
        row_bytes = rows.file.row_bytes
        count = len(rows.block.ids)
        if count * row_bytes < DIRECT_BYTES or not (is_on_disk(reader) and routing.can_move_file_rows()):
            return False
        targets: dict[int, OnDisk] = {}
        for target in np.flatnonzero(rows.counts).tolist():
            sink = rows.sinks[target]
            if not is_on_disk(sink):
                return False
            targets[target] = sink
        descriptors = np.full(len(rows.counts), -1, np.int32)
        descriptors[list(targets)] = [file.descriptor for file in targets.values()]
        buffers = np.empty(max(_LOOK_BYTES // row_bytes, 1) * row_bytes, np.uint8), gathered
        step = max(CALL_BYTES, len(gathered)) // row_bytes or 1
        for start in range(0, count, step):
            chosen, before = slice(start, min(start + step, count)), values_at.copy()
            offset, size = rows.file.start + (rows.first + start) * row_bytes, (chosen.stop - start) * row_bytes
            reader.will_need(offset, min(size + _AHEAD_BYTES, rows.file.end - offset))
            source, ids = (reader.descriptor, offset, row_bytes), rows.block.ids[chosen]
            failed = routing.move_file_rows(sketch, ids, rows.owner[chosen], source, descriptors, values_at, buffers)
            if failed is not None:
                where = reader if failed.target < 0 else targets[failed.target]
                raise where.failed(failed.error, offset)
            if self.terms.once:
                reader.will_not_need(offset, size)
            reader.add_moved(size)
            moved = values_at - before
            for target, written in targets.items():
                written.add_moved(int(moved[target]))
            self.reporter.advance(size)
        return True

    def _move_in_steps(self, rows: MovedRows, values_at: bulk.I64, sketch: bulk.U32, gathered: bulk.U8) -> None:
        """Read the rows of a piece, put them in order, and write them, as many at a time as are gathered."""
        for chosen, batch in self._steps(rows):
            owner = rows.owner[chosen]
            counts = bulk.tally(owner, rows.block.lengths[chosen], len(values_at))[0]
            sizes, ordered = counts * rows.file.row_bytes, gathered
            if batch is None:
                ordered = _gather(rows, chosen, sizes, sketch, gathered)
            else:
                routing.move_rows(sketch, rows.block.ids[chosen], owner, batch, np.cumsum(sizes) - sizes, gathered)
            write_groups(rows.sinks, ordered, sizes, values_at)
            values_at += sizes
            self.reporter.advance(int(sizes.sum()))

    def _step(self, row_bytes: int) -> int:
        """Return how many rows of so many bytes are gathered at a time."""
        return max(1, max(self.terms.settings.gather_bytes, self.terms.settings.batch_bytes) // row_bytes)

    def _steps(self, rows: MovedRows) -> Iterator[tuple[slice, bulk.U8 | None]]:
        """Yield the rows of a piece, as many at a time as are gathered; from far storage with their values.

        One request brings the values of several steps, and all requests of a piece are of about one size.
        """
        block_bytes, row_bytes, count = rows.file.reader.block_bytes, rows.file.row_bytes, rows.stored
        step = self._step(max(row_bytes, rows.file.moved_bytes))
        if not block_bytes:
            yield from ((slice(start, min(start + step, count)), None) for start in range(0, count, step))
            return
        # With smaller batches, a request takes no more memory than a step.
        is_bounded = self.terms.settings.batch_bytes < VALUE_BATCH_BYTES
        most = step if is_bounded else max(step, block_bytes // row_bytes)
        block = -(-count // max(round(count / most), 1))
        # Always of one size, so that the memory of one piece is used again for the next.
        buffer = np.empty((max(most + most // 2, block), row_bytes), np.uint8)
        for first in range(0, count, block or 1):
            last = min(first + block, count)
            values = rows.file.read(rows.first + first, buffer[: last - first])
            for start in range(first, last, step):
                stop = min(start + step, last)
                yield slice(start, stop), values[start - first : stop - first]

    def move_small(self, tables: Sequence[str]) -> None:
        """Put small tables together for each target, with all that stands between them, and write them."""
        goal = self.goal
        assert isinstance(goal, ShardGoal)  # noqa: S101 - only shards have small tables together
        layouts = goal.layouts
        first, last = layouts.number(tables[0]), layouts.number(tables[-1])
        starts, sizes = layouts.tables_at[first], layouts.tables_at[last + 1] - layouts.tables_at[first]
        shift = np.cumsum(sizes) - sizes - starts  # from an offset in a target to the place in `out`
        out = np.empty(int(sizes.sum()), np.uint8)
        values_at = np.stack([layouts.values_at(name) + shift for name in tables])
        ids_at = np.stack([layouts.ids_at(name) + shift for name in tables])
        layouts.put_heads(slice(first, last + 1), values_at, ids_at, out)
        small = self.source.small
        assert small is not None  # noqa: S101 - these are some of them
        data, parts = small.read(tables)
        widths = dict(parts[:, [Part.TABLE, Part.ROW_BYTES]].tolist())
        sums_at = np.cumsum([0] + [routing.sketch_size(widths.get(k, 0)) for k in range(len(tables))])
        parts[:, Part.SUMS] = sums_at[parts[:, Part.TABLE]]
        sums = np.zeros(int(sums_at[-1]), np.uint32)
        bad = routing.move_parts(sums, data, data, parts, values_at, ids_at, out)
        if bad >= 0:
            small.raise_bad_part(tables, bad)
        for number, name in enumerate(tables):
            rows, id_bytes = goal.small[name].rows, goal.small[name].id_bytes
            values_end = layouts.values_at(name) + rows * widths.get(number, 0) + shift
            ids_end = layouts.ids_at(name) + id_bytes + shift
            if not (np.array_equal(values_at[number], values_end) and np.array_equal(ids_at[number], ids_end)):
                raise _changed_ids(name, small.path_of(name))
        write_groups(self.files, out, sizes, starts)
        numbers, ends = np.unique(parts[:, Part.TABLE], return_index=True)
        self.sketch.add_parts([tables[k] for k in numbers.tolist()], sums, parts[ends])
        self.reporter.advance(int((parts[:, Part.ROWS] * parts[:, Part.ROW_BYTES]).sum()))


def _start_of(cut: Cut) -> int:
    return cut.start


def _grouped_ids(rule: Rule, block: IdBlock, owner: bulk.U16, counts: bulk.I64, id_bytes: bulk.I64) -> bulk.U8:
    """Return the ids of a piece as they are written, ordered by owner."""
    if rule.as_varints:
        return bulk.group_varints(block.data, block.lengths, owner, id_bytes)
    grouped = np.empty(block.ids.nbytes, np.uint8)
    bulk.group_rows(np.ascontiguousarray(block.ids).view(np.uint8).reshape(-1, ID_BYTES), owner, counts, grouped)
    return grouped


def _gather(rows: MovedRows, chosen: slice, sizes: bulk.I64, sketch: bulk.U32, gathered: bulk.U8) -> bulk.U8:
    """Read some rows of a near piece, add them to a sketch, and return them ordered by owner, in `gathered`.

    Rows in memory that all go to one target are returned where they are.
    """
    row_bytes, count = rows.file.row_bytes, chosen.stop - chosen.start
    step, view = max(1, _LOOK_BYTES // row_bytes), None
    places = np.cumsum(sizes) - sizes
    straight = int(sizes.max(initial=0)) == int(sizes.sum())  # all go to one target: merging 8 into 4, say
    if straight:
        view = rows.file.view(rows.first + chosen.start, count)
        gathered = gathered[: count * row_bytes].reshape(-1, row_bytes) if view is None else view
    buffer = np.empty((0 if straight else min(step, count), row_bytes), np.uint8)
    for start in range(chosen.start, chosen.stop, step):
        now = slice(start, min(start + step, chosen.stop))
        if straight:
            inside = gathered[start - chosen.start : now.stop - chosen.start]
            if view is None:
                rows.file.read(rows.first + start, inside)
            bulk.sketch_rows(sketch, rows.block.ids[now], inside)
        else:
            read = rows.file.read(rows.first + start, buffer[: now.stop - start])
            routing.move_rows(sketch, rows.block.ids[now], rows.owner[now], read, places, gathered)
    return gathered.reshape(-1)


def _changed_ids(table: str, path: str) -> LockedError:
    return LockedError(
        f"table {table!r}: its ids have changed since they were counted",
        path=path,
        hint="another process is writing the file, or the storage returns wrong bytes; try again",
    )


def exceeds_page_cache(size_bytes: int) -> bool:
    """Say whether so many bytes, of source and target, will hardly be in the page cache at a time.

    If so, the pages of the source are dropped after use, so that the target stays cached until it is read back.
    """
    present = page_cache_bytes()
    return 0 < present * _CACHE_SHARE < size_bytes
