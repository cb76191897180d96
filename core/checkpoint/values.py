"""A pass over values as a work: their sketches, their odd ones, and the checksums of the bytes that are read for them.

All of these add up, so tasks may be done anywhere. In other processes each chunk belongs to the task in which it
begins. What that task does not read of it anyway, it reads for the checksum alone: at most a chunk at each of two ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES, check_placement
from edl_ckpt.core.checkpoint.elsewhere import CheckpointHolder, CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import (
    ContentSketch,
    Fingerprint,
    fingerprint_checkpoint,
    fingerprint_of,
    value_bytes,
)
from edl_ckpt.core.checkpoint.places import (
    DenseAt,
    IdsAt,
    PieceAt,
    RowMarks,
    dense_at,
    ids_at,
    in_sketched_tasks,
    in_tasks,
    marked_at,
)
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import (
    PIECE_BYTES,
    DensePiece,
    IdPiece,
    Looks,
    count_ids,
    cut_piece,
    number_rows,
    read_dense,
    read_piece,
    row_batches,
)
from edl_ckpt.core.checkpoint.summing import ChunkSums
from edl_ckpt.core.errors import CorruptError
from edl_ckpt.core.format.literals import Literals
from edl_ckpt.core.format.model import Extent
from edl_ckpt.core.format.odd_values import odd_values
from edl_ckpt.core.parallel import SMALL_READS, Advance, Executor
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.seal import Chunk
from edl_ckpt.core.words import counted

Bounds = Mapping[int, npt.NDArray[np.int64]]
"""Where the chunks of shards begin and end, int64 [chunks, 2], by the number of the shard."""


@dataclass(slots=True)
class Values:
    """What a task found: sketches; odd values of each (shard, is dense, name); checksums of whole chunks."""

    sketch: ContentSketch = field(default_factory=ContentSketch)
    odd: dict[tuple[int, bool, str], npt.NDArray[np.int64]] = field(default_factory=dict)
    sums: dict[int, dict[int, str]] = field(default_factory=dict)
    """By the number of the shard, and of the chunk in it."""

    def add(self, other: Values) -> None:
        """Add what another task found."""
        self.sketch.add(other.sketch)
        for key, counts in other.odd.items():
            self.odd[key] = self.odd.get(key, np.zeros(3, np.int64)) + counts


class OpenedValues(CheckpointHolder):
    """An opened checkpoint, and in the process of the operation the sums to which all bytes are added."""

    def __init__(self, checkpoint: Checkpoint, sums: ChunkSums | None = None) -> None:
        super().__init__(checkpoint)
        self.sums = sums
        self.looks = Looks()


@dataclass(frozen=True, slots=True)
class ValuesWork:
    """The pass: a task is some pieces. `bounds` are the chunks that tasks in other processes sum up."""

    source: CheckpointValue
    sketched: bool
    odd: bool
    bounds: Bounds = field(default_factory=dict)
    placed: bool = False
    """Whether each id must be in its own shard."""

    def open(self) -> OpenedValues:
        """Open the checkpoint in another process."""
        return OpenedValues(self.source.open())

    def do(self, opened: OpenedValues, task: tuple[PieceAt, ...], advance: Advance) -> Values:
        """Read some pieces once."""
        found = Values()
        own = _owned(opened.checkpoint, task, self.bounds) if opened.sums is None else {}
        sums = opened.sums or _sums_of(opened.checkpoint, own, self.bounds)
        for place in task:
            counts = np.zeros(3, np.int64)
            is_dense = isinstance(place, DenseAt)
            if isinstance(place, DenseAt):
                self._read_dense(opened.checkpoint, place.piece(opened.checkpoint), found.sketch, sums, counts, advance)
            else:
                self._read_rows(opened, place.piece(opened.checkpoint), found.sketch, sums, counts, advance)
            if counts.any():
                key = (place.shard, is_dense, place.piece(opened.checkpoint).entry.name)
                found.odd[key] = found.odd.get(key, np.zeros(3, np.int64)) + counts
        for shard, numbers in own.items():
            path = opened.checkpoint.reader(opened.checkpoint.shards[shard]).path
            assert sums is not None  # noqa: S101 - there are chunks
            found.sums[shard] = dict(zip(numbers, (chunk.sum for chunk in sums.finish(path)), strict=True))
        return found

    def _read_dense(
        self,
        checkpoint: Checkpoint,
        piece: DensePiece,
        sketch: ContentSketch,
        sums: ChunkSums | None,
        counts: npt.NDArray[np.int64],
        advance: Advance,
    ) -> None:
        step = max(PIECE_BYTES, checkpoint.reader(piece.shard).block_bytes)
        for start in range(piece.start, max(piece.start + piece.size, piece.start + 1), step):
            size = min(step, piece.start + piece.size - start)
            data = read_dense(checkpoint, DensePiece(piece.shard, piece.entry, start, size), sums)
            if self.sketched:
                sketch.add_dense(piece.entry.name, piece.entry.size_bytes, start, data)
            if self.odd:
                counts += odd_values(data, piece.entry.dtype)
            advance(size)

    def _read_rows(
        self,
        opened: OpenedValues,
        place: IdPiece,
        sketch: ContentSketch,
        sums: ChunkSums | None,
        counts: npt.NDArray[np.int64],
        advance: Advance,
    ) -> None:
        row, end, checkpoint = place.first_row, place.first_row + place.rows, opened.checkpoint
        for cut in cut_piece(checkpoint, place, PIECE_BYTES):
            ids = read_piece(checkpoint, cut, sums).ids
            if row + len(ids) > end:
                raise _miscounted(checkpoint, place)
            piece = IdPiece(cut.shard, cut.entry, cut.run, cut.start, cut.end, row, len(ids))
            row += len(ids)
            if self.placed:
                check_placement(checkpoint.reader(cut.shard), cut.shard.file, cut.entry, ids)
            for some, rows in row_batches(checkpoint, piece, len(ids), VALUE_BATCH_BYTES, sums, looks=opened.looks):
                if self.sketched:
                    sketch.add_rows(piece.entry.name, ids[some], rows)
                if self.odd:
                    counts += odd_values(rows.reshape(-1), piece.entry.dtype)
                advance(rows.nbytes)
        if row != end:
            raise _miscounted(checkpoint, place)


def read_values(
    checkpoint: Checkpoint,
    places: Iterable[IdsAt],
    executor: Executor,
    advance: Advance,
    *,
    task_bytes: int,
    sketched: bool = True,
    odd: bool = False,
    sums: ChunkSums | None = None,
    placed: bool = False,
) -> Values:
    """Read every variable, and the rows at some numbered places; return all that was found.

    The bytes that are read are added to `sums`, wherever they are read. `placed` is as in `sketch_checkpoint`.
    """
    numbers = {checkpoint.reader(shard).path: number for number, shard in enumerate(checkpoint.shards)}
    bounds = {} if sums is None or not executor.elsewhere else sums.bounds(numbers)
    work = ValuesWork(CheckpointValue.of(checkpoint), sketched=sketched, odd=odd, bounds=bounds, placed=placed)
    tasks = in_sketched_tasks(checkpoint, chain(dense_at(checkpoint, task_bytes), places), task_bytes)
    total = Values()
    with closing(executor.run(work, OpenedValues(checkpoint, sums), tasks, advance)) as results:
        for found in results:
            total.add(found)
            for shard, done in found.sums.items():
                assert sums is not None  # noqa: S101 - there are bounds
                sums.take(checkpoint.reader(checkpoint.shards[shard]).path, done)
    return total


@dataclass(frozen=True, slots=True)
class _CountWork:
    """The numbers of rows of pieces; a task is some of them."""

    source: CheckpointValue

    def open(self) -> Checkpoint:
        return self.source.open()

    def do(self, opened: Checkpoint, task: tuple[IdsAt, ...], advance: Advance) -> list[int]:  # noqa: ARG002
        return [
            sum(count_ids(opened, cut) for cut in cut_piece(opened, place.piece(opened), PIECE_BYTES)) for place in task
        ]


def read_back_by(
    checkpoint: Checkpoint,
    chunks: Iterable[Sequence[Chunk]],
    executor: Executor,
    sketch: ContentSketch,
    *,
    reporter: Reporter,
    literals: Mapping[str, Literals] | None = None,
    total_bytes: int | None = None,
    placed: bool = False,
    marks: Mapping[str, RowMarks] | None = None,
) -> list[list[Chunk]]:
    """Do what `read_back` does, with the values read wherever an executor reads them.

    Tasks are those of a version with `total_bytes` of values, of which these shards may be a part. `marks` are rows of
    its tables, by name: with them the rows need not be counted first, and must be where the marks are.
    """
    readers = {shard.file.ps_id: checkpoint.reader(shard) for shard in checkpoint.shards}
    sums = ChunkSums(zip(readers.values(), chunks, strict=True), literals)
    sums.add_rest(checkpoint.shards, readers, workers=SMALL_READS)  # of another machine: each read is a wait
    found = sketch_by(
        checkpoint, executor, reporter=reporter, sums=sums, total_bytes=total_bytes, placed=placed, marks=marks
    )
    sketch.add(found)
    return [sums.finish(reader.path) for reader in readers.values()]


def fingerprint_by(
    checkpoint: Checkpoint, executor: Executor, *, reporter: Reporter = WARNINGS, sums: ChunkSums | None = None
) -> Fingerprint:
    """Return what `fingerprint_checkpoint` returns, with the values read wherever an executor reads them."""
    if not executor.elsewhere:
        return fingerprint_checkpoint(checkpoint, workers=executor.threads, reporter=reporter, sums=sums)
    return fingerprint_of(checkpoint, sketch_by(checkpoint, executor, reporter=reporter, sums=sums))


def sketch_by(
    checkpoint: Checkpoint,
    executor: Executor,
    *,
    reporter: Reporter = WARNINGS,
    sums: ChunkSums | None = None,
    total_bytes: int | None = None,
    placed: bool = False,
    marks: Mapping[str, RowMarks] | None = None,
) -> ContentSketch:
    """Return the sketch of all values, read by other processes.

    `total_bytes` and `marks` are as in `read_back_by`, `placed` as in `sketch_checkpoint`.
    """
    task_bytes = executor.task_bytes(value_bytes(checkpoint) if total_bytes is None else total_bytes)
    if marks is None:
        numbered = _numbered(checkpoint, executor, task_bytes)
    else:
        numbered = list(marked_at(checkpoint, marks, task_bytes))
    return read_values(
        checkpoint, numbered, executor, reporter.advance, task_bytes=task_bytes, sums=sums, placed=placed
    ).sketch


def _numbered(checkpoint: Checkpoint, executor: Executor, task_bytes: int) -> list[IdsAt]:
    """Return the pieces of all tables, with their rows counted by other processes."""
    places = list(ids_at(checkpoint, task_bytes, values=True))
    work = _CountWork(CheckpointValue.of(checkpoint))
    id_bytes = sum(place.end - place.start for place in places)
    tasks = in_tasks(places, executor.task_bytes(id_bytes))
    with closing(executor.run(work, checkpoint, tasks, lambda _: None)) as counts:
        rows = [count for counts_of_task in counts for count in counts_of_task]
    pieces = number_rows(checkpoint, [place.piece(checkpoint) for place in places], rows)
    return [
        place._replace(first_row=piece.first_row, rows=piece.rows) for place, piece in zip(places, pieces, strict=True)
    ]


def _miscounted(checkpoint: Checkpoint, place: IdPiece) -> CorruptError:
    return CorruptError(
        f"table {place.entry.name!r} has more or fewer ids than the {counted(place.rows, 'row')} that were counted",
        code="id-row-mismatch",
        path=checkpoint.reader(place.shard).path,
        offset=place.start,
    )


def _sums_of(checkpoint: Checkpoint, own: Mapping[int, list[int]], bounds: Bounds) -> ChunkSums | None:
    """Return the sums of some chunks of a checkpoint; None without any."""
    if not own:
        return None
    return ChunkSums(
        (
            checkpoint.reader(checkpoint.shards[shard]),
            [Chunk("", "", number, *bounds[shard][number].tolist()) for number in numbers],
        )
        for shard, numbers in own.items()
    )


def _owned(checkpoint: Checkpoint, task: tuple[PieceAt, ...], bounds: Bounds) -> dict[int, list[int]]:
    """Return the numbers of the chunks of each shard that begin in a task; ascending."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for place in task:
        if place.shard in bounds:
            starts = bounds[place.shard][:, 0]
            for extent, is_first in _extents(checkpoint, place):
                first = int(np.searchsorted(starts, extent.start, "left"))
                if is_first:  # with what stands before the first value
                    first = max(int(np.searchsorted(starts, extent.start, "right")) - 1, 0)
                found[place.shard].update(range(first, int(np.searchsorted(starts, extent.end, "left"))))
    return {shard: sorted(numbers) for shard, numbers in found.items() if numbers}


def _extents(checkpoint: Checkpoint, place: PieceAt) -> Iterator[tuple[Extent, bool]]:
    """Yield the bytes that a piece reads, and whether its variable, or the run of its ids, begins there."""
    piece = place.piece(checkpoint)
    if isinstance(piece, DensePiece):
        at = piece.entry.values.start + piece.start
        yield Extent(at, at + piece.size), piece.start == 0
        return
    width, start = piece.entry.row_bytes, piece.entry.values.start
    yield Extent(start + piece.first_row * width, start + (piece.first_row + piece.rows) * width), piece.first_row == 0
    yield Extent(piece.start, piece.end), False
