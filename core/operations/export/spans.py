"""Tasks of an export for other processes: rows and bytes that are written to their places, then read back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES, read_rows
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.places import DenseAt, IdsAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, DensePiece, IdPiece, read_dense, read_piece
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import duplicate_id
from edl_ckpt.core.format.model import DType
from edl_ckpt.core.operations.export.casts import cast_bytes
from edl_ckpt.core.operations.export.runs import Found, NothingOpened, Runs, TableForm, in_order
from edl_ckpt.core.parallel import Advance
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.words import command


class Span(NamedTuple):
    """Rows [first, last) of a table, by its number, in the order in which they are written.

    They come from its runs, or from some pieces: then each is given with the number of its first row, and all of them
    are sorted unless the table is written as it is stored.
    """

    table: int
    first: int
    last: int
    pieces: tuple[tuple[int, IdsAt], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Tables on their way out as a value: their forms, and the runs of those that have any, by their numbers."""

    forms: Sequence[TableForm]
    runs: Mapping[int, Runs]
    is_sorted: bool

    def rows(self, checkpoint: Checkpoint, span: Span, found: Found) -> tuple[bulk.I64, bulk.U8, bulk.U32 | None]:
        """Return the ids of a span, int64 [n], rows as they are written, uint8 [n, width], and their order, if any.

        What is read of the checkpoint itself is added to `found`.
        """
        if not span.pieces:
            with self.runs[span.table].opened() as reader:
                return reader.rows(span.first, span.last)
        form, count = self.forms[span.table], span.last - span.first
        ids, rows = np.empty(count, np.int64), np.empty((count, form.width), np.uint8)
        for number, place in span.pieces:
            piece = place.piece(checkpoint)
            first, last = max(span.first, number), min(span.last, number + place.rows)
            own = slice(first - span.first, last - span.first)
            ids[own] = read_piece(checkpoint, piece).ids[first - number : last - number]
            for at, values in _some_rows(checkpoint, piece, piece.first_row + first - number, last - first):
                some = slice(own.start + at, own.start + at + len(values))
                rows[some] = found.take(form, ids[some], values)
        if not self.is_sorted:
            return ids, rows, None
        return ids, rows, self._ordered(checkpoint, form, ids)

    def ids(self, checkpoint: Checkpoint, span: Span) -> bulk.I64:
        """Return the ids of a span alone, int64 [n]; nothing is added up."""
        if not span.pieces:
            with self.runs[span.table].opened() as reader:
                return reader.ids(span.first, span.last)
        ids = np.empty(span.last - span.first, np.int64)
        for number, place in span.pieces:
            first, last = max(span.first, number), min(span.last, number + place.rows)
            own = read_piece(checkpoint, place.piece(checkpoint)).ids[first - number : last - number]
            ids[first - span.first : last - span.first] = own
        if self.is_sorted:
            self._ordered(checkpoint, self.forms[span.table], ids)
        return ids

    def _ordered(self, checkpoint: Checkpoint, form: TableForm, ids: bulk.I64) -> bulk.U32:
        """Put ids in order, and return where each of them was; CorruptError for one that is there twice."""
        order = bulk.order_ids(ids)
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            version = checkpoint.version
            hint = f"try: {command('verify', version.ref)}"
            raise duplicate_id(form.name, int(ids[twice[0]]), len(twice), path=version.path, hint=hint)
        return order


def _some_rows(checkpoint: Checkpoint, piece: IdPiece, first: int, count: int) -> Iterator[tuple[int, bulk.U8]]:
    """Yield (rows before these, rows) of a shard from one row on, in batches; the next one may take the memory."""
    reader, width = checkpoint.reader(piece.shard), piece.entry.row_bytes
    step = max(max(VALUE_BATCH_BYTES, reader.block_bytes) // max(width, 1), 1)
    buffer = np.empty((min(step, count), width), np.uint8)
    for start in range(0, count, step):
        yield start, read_rows(reader, piece.entry, first + start, buffer[: min(step, count - start)])


class ArrayAt(NamedTuple):
    """The place of an array: the number of the file, and the offset there."""

    file: int
    offset: int


class DenseForm(NamedTuple):
    """Where a variable is written, and in which dtype."""

    place: ArrayAt
    target: DType


WriteTask = tuple[DenseAt | Span, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WriteWork:
    """Writing arrays to their places; a task is pieces of variables, and spans of tables.

    `places` are those of the ids and the rows of each table, by its number. Variables without a place are only read.
    """

    source: CheckpointValue
    tables: Tables
    places: Mapping[int, tuple[ArrayAt, ArrayAt]]
    dense: Mapping[str, DenseForm]
    targets: StagedTargets

    def open(self) -> Checkpoint:
        """Open the checkpoint in another process."""
        return self.source.open()

    def do(self, opened: Checkpoint, task: WriteTask, advance: Advance) -> Found:
        """Write everything in a task, with its files open meanwhile."""
        found = Found()
        with self.targets.opened(self._files(opened, task)) as files:
            for part in task:
                if isinstance(part, DenseAt):
                    self._write_dense(opened, part.piece(opened), files, found, advance)
                else:
                    self._write_rows(opened, part, files, found, advance)
        return found

    def _files(self, opened: Checkpoint, task: WriteTask) -> Collection[int]:
        """Return the numbers of the files that a task writes."""
        numbers = set[int]()
        for part in task:
            if isinstance(part, Span):
                numbers.update(place.file for place in self.places[part.table])
            elif (form := self.dense.get(part.piece(opened).entry.name)) is not None:
                numbers.add(form.place.file)
        return numbers

    def _write_rows(
        self, opened: Checkpoint, span: Span, files: Sequence[Sink], found: Found, advance: Advance
    ) -> None:
        ids, rows, order = self.tables.rows(opened, span, found)
        width = rows.shape[1]
        ids_at, rows_at = self.places[span.table]
        files[ids_at.file].write(ids_at.offset + 8 * span.first, ids.data)
        begin = rows_at.offset + width * span.first
        if order is None:
            files[rows_at.file].write(begin, rows.reshape(-1).data)
        else:
            for start, some in in_order(rows, order):
                files[rows_at.file].write(begin + start * width, some.reshape(-1).data)
        advance(len(ids) * (8 + width))

    def _write_dense(
        self, opened: Checkpoint, piece: DensePiece, files: Sequence[Sink], found: Found, advance: Advance
    ) -> None:
        form, dtype, name = self.dense.get(piece.entry.name), piece.entry.dtype, piece.entry.name
        for start in range(piece.start, max(piece.start + piece.size, piece.start + 1), PIECE_BYTES):
            size = min(PIECE_BYTES, piece.start + piece.size - start)
            data = read_dense(opened, DensePiece(piece.shard, piece.entry, start, size))
            found.source.add_dense(name, piece.entry.size_bytes, start, data)
            if form is None:
                continue
            written, overflowed = cast_bytes(data, dtype, form.target)
            at = form.place.offset + start // dtype.itemsize * form.target.itemsize
            files[form.place.file].write(at, written.data)
            if form.target != dtype:
                found.overflowed += overflowed
                total = piece.entry.size_bytes // dtype.itemsize * form.target.itemsize
                found.written.add_dense(name, total, at - form.place.offset, written)
            advance(len(written))


class DenseBack(NamedTuple):
    """Bytes [start, start + size) of a variable as they were written; the place is that of its first byte."""

    name: str
    size_bytes: int
    place: ArrayAt
    start: int
    size: int


class RowsBack(NamedTuple):
    """Rows [first, last) of a table as they were written."""

    name: str
    width: int
    ids: ArrayAt
    rows: ArrayAt
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BackWork:
    """Reading back what was written; the sums of a task are those of its bytes."""

    paths: Sequence[str]

    def open(self) -> NothingOpened:
        """Open nothing: each task opens its files anew, and sees what other machines wrote."""
        return NothingOpened()

    def do(self, opened: NothingOpened, task: tuple[DenseBack | RowsBack, ...], advance: Advance) -> ContentSketch:  # noqa: ARG002
        """Read some bytes back."""
        sketch = ContentSketch()
        for part in task:
            if isinstance(part, DenseBack):
                self._add_dense(part, sketch, advance)
            else:
                self._add_rows(part, sketch, advance)
        return sketch

    def _add_dense(self, part: DenseBack, sketch: ContentSketch, advance: Advance) -> None:
        file = PreallocatedFile(self.paths[part.place.file], None)
        try:
            for start in range(part.start, max(part.start + part.size, part.start + 1), PIECE_BYTES):
                data = np.empty(min(PIECE_BYTES, part.start + part.size - start), np.uint8)
                file.read_into(part.place.offset + start, data.data)
                sketch.add_dense(part.name, part.size_bytes, start, data)
                advance(len(data))
        finally:
            file.close()

    def _add_rows(self, part: RowsBack, sketch: ContentSketch, advance: Advance) -> None:
        step = max(VALUE_BATCH_BYTES // max(part.width, 8), 1)
        ids, rows = np.empty(step, np.int64), np.empty((step, part.width), np.uint8)
        id_file = PreallocatedFile(self.paths[part.ids.file], None)
        try:
            row_file = PreallocatedFile(self.paths[part.rows.file], None)
            try:
                for start in range(part.first, part.last, step):
                    count = min(step, part.last - start)
                    id_file.read_into(part.ids.offset + 8 * start, ids[:count].view(np.uint8).data)
                    at = part.rows.offset + part.width * start
                    row_file.read_into(at, rows[:count].reshape(-1).data)
                    sketch.add_rows(part.name, ids[:count], rows[:count])
                    advance(count * (8 + part.width))
            finally:
                row_file.close()
        finally:
            id_file.close()
