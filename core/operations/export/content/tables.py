"""The rows of a table on their way out: to their places in an output, or as batches for a library.

A look at all ids comes first: how many rows a table has, and where it can be cut. The rows are in the order of their
ids, for which the table is cut into parts that fit into memory, or as they are stored: shard after shard, each row
where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.parallel import Advance, Executor, Threads, default_workers, run_all, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.proof.values import Bundles, ValueOptions, read_values
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.pieces import DenseAt, IdsAt, PieceAt, dense_at, ids_at, in_tasks, number_rows
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.row_batches import row_batches
from edl_ckpt.core.sorting.partition import (
    Areas,
    PartitionedTable,
    TablePart,
    TakeRows,
    Wanted,
    parts_needed,
    ranges_of_sample,
    readers_of,
    sample_step,
)

_MOST_WORKERS: Final = 4
_COPY_BYTES: Final = 4 << 20
_ID_BYTES: Final = 8
Done = Callable[[int, int], None]
"""Is called with the first row and the number of rows that are written for good."""
Name = tuple[str, bool]
"""The name of a variable or a table, and whether it is a table's."""


@dataclass(frozen=True, slots=True, eq=False)
class TableIds:
    """The rows of a table that go out: its pieces, numbered, and a sample of their ids if they need several parts.

    With `wanted`, only these rows of the pieces go out. Tensors have the table's `title` in their names.
    """

    title: str
    pieces: Sequence[IdPiece]
    rows: int
    sample: bulk.I64
    wanted: Wanted | None = None
    places: Sequence[IdsAt] = ()
    """Those of the pieces, of a whole table."""

    @property
    def are_in_order(self) -> bool:
        """Say whether they are row numbers that rise from piece to piece: then nothing is to be sorted."""
        ends = 0
        for piece in self.pieces:
            first = piece.run.first + (piece.start - piece.run.start) // _ID_BYTES
            if piece.run.is_stored or first < ends:
                return False
            ends = first + piece.rows
        return True


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What is known of the ids of each table: its pieces, numbered, the lowest and highest id of each, and a sample."""

    places: dict[str, list[IdsAt]] = field(default_factory=dict)
    bounds: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    samples: dict[str, bulk.I64] = field(default_factory=dict)

    def within(self, name: str, low: int, high: int) -> tuple[int, int]:
        """Return the numbers of the pieces between which all ids in a range are."""
        lowest, highest = np.array(self.bounds[name], np.int64).reshape(-1, 2).T
        some = np.flatnonzero((lowest <= high) & (highest >= low) & (lowest <= highest))
        return (int(some[0]), int(some[-1]) + 1) if len(some) else (0, 0)

    def ids(self, checkpoint: Checkpoint) -> dict[str, TableIds]:
        """Return the ids of all tables, by their names."""
        tables = {}
        for name, places in self.places.items():
            pieces = [place.piece(checkpoint) for place in places]
            rows = sum(piece.rows for piece in pieces)
            tables[name] = TableIds(name, pieces, rows, self.samples[name], places=places)
        return tables


class _Look(NamedTuple):
    """How many ids a piece has, the lowest and highest, and a sample."""

    rows: int
    bounds: tuple[int, int]
    sample: bulk.I64


def _look(
    checkpoint: Checkpoint, task: tuple[IdsAt, ...], _: Advance, *, steps: Mapping[str, int], most: int
) -> list[_Look]:
    """Look at some pieces, whose samples have at most so many ids together."""
    found = []
    for place in task:
        piece = place.piece(checkpoint)
        ids, step = read_piece(checkpoint, piece).ids, steps[piece.entry.name]
        if not step or not len(ids):
            found.append(_Look(len(ids), (1, 0), np.empty(0, np.int64)))
            continue
        sample = ids[:: max(step, -(-len(ids) * len(task) // most))].copy()  # a view would keep all ids in memory
        found.append(_Look(len(ids), (int(ids.min()), int(ids.max())), sample))
    return found


def look(checkpoint: Checkpoint, executor: Executor, steps: Mapping[str, int], task_bytes: int = 0) -> LookedAt:
    """Return what tasks see of all ids; CorruptError where there are more or fewer ids than rows.

    A sample has every `steps`-th id of a piece; for 0 a table has neither a sample nor bounds. With `task_bytes` a
    piece has that many bytes of ids and rows.
    """
    names = checkpoint.table_names
    places = list(ids_at(checkpoint, task_bytes, values=bool(task_bytes)))
    work = FunctionWork(
        CheckpointValue.of(checkpoint), partial(_look, steps=steps, most=executor.result_bytes // _ID_BYTES)
    )
    tasks = in_tasks(places, task_bytes) if task_bytes else ((place,) for place in places)
    with closing(executor.run(work, checkpoint, tasks, lambda _: None)) as results:
        looks = [look for some in results for look in some]
    places = number_rows(checkpoint, places, [look.rows for look in looks])
    found = LookedAt({name: [] for name in names}, {name: [] for name in names})
    samples = {name: [np.empty(0, np.int64)] for name in names}
    for place, seen in zip(places, looks, strict=True):
        name = place.entry(checkpoint).name
        found.places[name].append(place)
        found.bounds[name].append(seen.bounds)
        samples[name].append(seen.sample)
    found.samples.update({name: np.concatenate(some) for name, some in samples.items()})
    return found


def look_here(checkpoint: Checkpoint, part_bytes: int) -> LookedAt:
    """Look at all ids in threads of this process, with samples of the tables that are sorted in parts."""
    steps = {}
    for name in checkpoint.table_names:
        rows, size = rows_claimed(checkpoint, name), sum(e.values.size_bytes for _, e in checkpoint.entries(name))
        steps[name] = sample_step(rows, parts_needed(size + _ID_BYTES * rows, part_bytes))
    return look(checkpoint, Threads(default_workers(remote=checkpoint.is_far)), steps)


def rows_claimed(checkpoint: Checkpoint, name: str) -> int:
    """Return the rows of a table by its headers."""
    return sum(entry.rows for _, entry in checkpoint.entries(name))


def read_rest(
    checkpoint: Checkpoint, tables: Mapping[str, Sequence[IdsAt]], done: Container[Name], job: Job, task_bytes: int = 0
) -> ContentSketch:
    """Return the sums of all variables, and of tables at their places, that are not `done`."""
    rest: list[PieceAt] = [
        at for at in dense_at(checkpoint, task_bytes) if (at.entry(checkpoint).name, False) not in done
    ]
    for table, places in tables.items():
        rest += places if (table, True) not in done else ()
    if not rest:
        return ContentSketch()
    sizes = (at.size if isinstance(at, DenseAt) else at.rows * at.entry(checkpoint).row_bytes for at in rest)
    job.reporter.start("fingerprint", sum(sizes))
    return read_values(checkpoint, rest, job, Bundles(ValueOptions(), task_bytes)).sketch


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of a checkpoint: the rows that go out, cut into parts, and their sums as they were read and as meant.

    `cast` returns rows, uint8 [n, row_bytes], as they are written, with `dim` elements of `dtype`, from their ids and
    what they were; several threads call it.
    """

    checkpoint: Checkpoint
    name: str
    ids: TableIds
    parts: int
    dtype: DType | None
    dim: int
    cast: TakeRows | None = None
    is_stored_order: bool = False
    reporter: Reporter = WARNINGS
    read: ContentSketch = field(default_factory=ContentSketch)
    _cast_sums: ContentSketch = field(default_factory=ContentSketch)

    @property
    def meant(self) -> ContentSketch:
        """Return the sums of all rows that were taken as they are written."""
        return self.read if self.cast is None else self._cast_sums

    def take(self, ids: bulk.I64, rows: bulk.U8) -> bulk.U8:
        """Add rows as they were read; return them as they are written. Several threads call it."""
        self.read.add_rows(self.name, ids, rows)
        if self.cast is None:
            return rows
        kept = self.cast(ids, rows)
        self._cast_sums.add_rows(self.name, ids, kept)
        return kept

    def fill(self, areas: Areas, done: Done) -> None:
        """Write all ids and rows; several threads call `done`."""
        if self.is_stored_order:
            self._copy(areas, done)
            return
        with self._cut(areas=areas) as cut:
            cut.sort_in_place(done)

    def batches(self, directory: str) -> Iterator[TablePart]:
        """Yield all rows in parts; when they are sorted, a temporary file in a directory has them meanwhile."""
        if self.is_stored_order:
            yield from self._stored_parts()
            return
        with self._cut(directory=directory) as cut:
            yield from cut.all_parts()

    def _cut(self, *, areas: Areas | None = None, directory: str | None = None) -> PartitionedTable:
        return PartitionedTable(
            self.checkpoint,
            self.name,
            self.ids.pieces,
            parts=self.parts,
            assign=ranges_of_sample(self.ids.sample, self.parts),
            directory=directory,
            areas=areas,
            take=self.take,
            form=(self.dtype, self.dim),
            wanted=self.ids.wanted,
            reporter=self.reporter,
        )

    def _copy(self, areas: Areas, done: Done) -> None:
        """Write every piece after those before it."""
        firsts = accumulate((piece.rows for piece in self.ids.pieces), initial=0)
        writing = Lock()

        def copy(numbered: tuple[int, IdPiece]) -> None:
            start, piece = numbered
            ids = read_piece(self.checkpoint, piece).ids
            areas.ids.write(8 * start, ids.view(np.uint8))
            for some, values in row_batches(self.checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
                kept = self.take(ids[some], values)
                with writing:  # or two threads would spin for the kernel's lock of the file
                    areas.rows.write((start + some.start) * kept.shape[1], kept.reshape(-1))
                self.reporter.advance(len(kept) * (8 + kept.shape[1]))
            done(start, len(ids))

        run_all(copy, zip(firsts, self.ids.pieces, strict=False), readers_of(self.checkpoint, self.ids.pieces))

    def _stored_parts(self) -> Iterator[TablePart]:
        def read(piece: IdPiece) -> list[TablePart]:
            ids = read_piece(self.checkpoint, piece).ids
            batches = row_batches(self.checkpoint, piece, len(ids), _COPY_BYTES)
            return [
                TablePart(ids[some], self.take(ids[some], values).copy(), self.dtype, self.dim)
                for some, values in batches
            ]

        workers = min(readers_of(self.checkpoint, self.ids.pieces), _MOST_WORKERS)
        for parts in run_parallel(read, self.ids.pieces, workers):
            for part in parts:
                self.reporter.advance(part.values.nbytes + part.ids.nbytes)
                yield part
