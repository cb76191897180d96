"""The content of an export: the selected variables and tables of a checkpoint, as tensors.

Every value of the checkpoint is read once, the selected ones for the output and the others for the fingerprint. What
was written is read back and must have the same sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import default_workers, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.converting.changes import ROWS
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.operations.export.content.quantizing import QuantizationErrors, quantized
from edl_ckpt.core.operations.export.content.tables import TableIds, TableSource, read_rest
from edl_ckpt.core.operations.export.content.variables import (
    SmallVariable,
    Span,
    read_span,
    spans,
    write_piece,
    write_together,
)
from edl_ckpt.core.operations.export.interface import (
    COMPACT,
    STORED,
    WEIGHT,
    Batch,
    ContentCounts,
    ExportContent,
    Selection,
    TableNote,
    TableRows,
    Tensor,
    batch_rows,
)
from edl_ckpt.core.operations.export.output.numbers import RowNumbers
from edl_ckpt.core.operations.export.output.places import Place, compare_rows
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.casts import cast_bytes, cast_floats
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import PART_BYTES, Areas, TablePart, parts_needed
from edl_ckpt.core.sources.elasticdl.initial_rows import initial_rows

_MATRIX_ROWS: Final = 8192
_VIEW_BYTES: Final = 8 << 20
"""Bytes of a file that are read back at a time: mapped pages count as memory."""
_FEW_PIECES: Final = 64
_INT64: Final = DTYPES["int64"]


@dataclass(slots=True)
class ContentReader:
    """Reads the selected content of a checkpoint. `overflowed` counts casts that became infinite.

    `confirm` is called with the fingerprint of the whole checkpoint, once all of it was read, and may raise an error.
    Without it, only the content is read, and its sums are in `source`: then it is a part of what others read.
    """

    checkpoint: Checkpoint
    selection: Selection
    metadata: Mapping[str, str]
    directory: str
    ids: Mapping[str, TableIds]
    """Of all tables, or of those in the content."""
    confirm: Callable[[str], None] | None = None
    part_bytes: int = PART_BYTES
    reporter: Reporter = WARNINGS
    names: Mapping[str, str] = field(default_factory=dict)
    """The new names of variables and tables, by the old ones."""
    matrix_ending: str = ""
    keeps_matrices: bool = False
    """True for a format of tensors: a table that is a matrix in its source goes out as that matrix."""
    overflowed: int = 0
    errors: dict[str, QuantizationErrors] = field(default_factory=dict)
    """Those of each table whose rows are quantized."""
    fingerprint: Fingerprint | None = None
    """That of the checkpoint; None until `finish`."""
    source: ContentSketch = field(default_factory=ContentSketch)
    """The sums of all variables and tables that were read to their end."""
    _matrices: dict[str, bool] = field(default_factory=dict)
    """What is known of tables: whether they are matrices of the source."""
    _lock: Lock = field(default_factory=Lock)

    @property
    def _workers(self) -> int:
        return default_workers(remote=self.checkpoint.is_far)

    def content(self, variables: Sequence[str] | None = None, tables: Sequence[str] | None = None) -> ExportContent:
        """Return what a format writes, or some of it, by names; NotFoundError when a glob matches nothing."""
        if variables is None or tables is None:
            variables = self.selection.written_variables(self.checkpoint)
            tables = self.selection.choose_tables(self.checkpoint.table_names, self.checkpoint.slots)
        in_pairs = tables if self.selection.dense_rows is None else []
        matrices = {} if self.selection.dense_rows is None else {name: self._matrix(name) for name in tables}
        tensors = [*map(self._dense, variables), *matrices.values()]
        for name in in_pairs:
            rows, (ids, vectors), (dtype, dim) = self.ids[name].rows, self._keys(name), self._form(name)
            tensors += [] if ids == ROWS else [Tensor(ids, _INT64, (rows,))]
            tensors.append(Tensor(vectors, dtype, (rows, dim)))
        notes = {self._title(name): self._note(name) for name in in_pairs}
        _check_unique([t.name for t in tensors])
        counts = ContentCounts(len(variables), len(tables), sum(self.ids[name].rows for name in tables))
        fill = partial(self._fill, variables, in_pairs, matrices)
        return ExportContent(tensors, list(map(self._rows, tables)), counts, notes, self.metadata, fill, self.finish)

    def finish(self) -> Mapping[str, str]:
        """Read what no tensor has, and return the metadata with the fingerprint of the checkpoint."""
        if self.confirm is None:
            return self.metadata
        if self.fingerprint is None:
            done = {(name, True) for name in self.source.tables} | {(n, False) for n in self.source.variable_names()}
            tables = {name: table.places for name, table in self.ids.items()}
            self.source.add(read_rest(self.checkpoint, tables, done, Job.here(self._workers, reporter=self.reporter)))
            self.fingerprint = fingerprint_of(self.checkpoint, self.source)
            self.confirm(self.fingerprint.text)
        return {**self.metadata, "fingerprint": self.fingerprint.text}

    def _fill(
        self,
        variables: Sequence[str],
        pairs: Sequence[str],
        matrices: Mapping[str, Tensor],
        places: Mapping[str, Place],
    ) -> None:
        """Write the bytes of all tensors that have a place: variables, ids and vectors of tables, and matrices."""
        wanted = {name: places[new] for name in variables if (new := self.names.get(name, name)) in places}
        if wanted:
            self._fill_dense(wanted)
        for name in pairs:
            ids, vectors = self._keys(name)
            id_place = RowNumbers(name) if ids == ROWS else places.get(ids)
            if id_place is not None and vectors in places:
                self._fill_table(name, id_place, places[vectors])
        for name, matrix in matrices.items():
            if matrix.name in places:
                self._fill_matrix(name, matrix.shape[0], places[matrix.name])

    def _fill_dense(self, places: Mapping[str, Place]) -> None:
        """Read all variables, and write those that have a place."""
        source = ContentSketch()
        found = list(spans(self.checkpoint, places if self.confirm is None else None))

        def read(span: Span) -> list[SmallVariable]:
            pieces = read_span(self.checkpoint, span, source)
            small = [write_piece(piece, data, places, self._cast) for piece, data in pieces]
            self.reporter.advance(2 * span.size_bytes)
            return [later for later in small if later is not None]

        # With hundreds of small pieces in a read, threads only wait for the interpreter.
        are_large = sum(len(span.pieces) for span in found) <= _FEW_PIECES * len(found)
        write_together(run_parallel(read, found, self._workers if are_large else 1))
        self.source.take_variables(source)

    def _fill_matrix(self, name: str, rows: int, place: Place) -> None:
        at = 0
        with place.file as file:
            area = place.area(file)
            for chunk in self._matrix_chunks(name, rows):
                area.write(at, chunk)
                place.read_back(area, at, len(chunk))
                at += len(chunk)

    def _fill_table(self, name: str, ids: Place | RowNumbers, vectors: Place) -> None:
        """Write a table's ids and rows, read them back, and compare the sums of both."""
        table, written, (dtype, dim) = self._table(name), ContentSketch(), self._form(name)
        width = dim * dtype.itemsize
        step = max(_VIEW_BYTES // max(width, 8), 1)
        with ids.opened() as id_place, vectors.opened() as row_place:

            def done(first: int, count: int) -> None:
                for start in range(first, first + count, step):
                    rows = min(step, first + count - start)
                    own = id_place.read_back(8 * start, 8 * rows).view(np.int64)
                    values = row_place.read_back(width * start, width * rows).reshape(rows, width)
                    written.add_rows(name, own if own.flags.aligned else own.copy(), values)
                self.reporter.advance(count * (8 + width))

            table.fill(Areas(id_place.area, row_place.area), done)
        self.source.tables.update(table.read.tables)
        compare_rows(name, table.meant, written)

    def _note(self, name: str) -> TableNote:
        info = self.checkpoint.infos.get(name)
        dtype = self._form(name)[0].name if self.ids[name].rows else ""
        keys, dim = self._keys(name), self._form(name)[1]
        if info is None:
            return TableNote(*keys, "", dim, dtype)
        owner = self._title(info.companion_of) if info.companion_of in self.ids else ""
        return TableNote(*keys, info.initializer, dim, dtype, owner, info.slot if owner else "")

    def _title(self, name: str) -> str:
        """Return the name of a table in the output: its new one, or that of one of its parts."""
        return self.names.get(name, self.ids[name].title)

    def _keys(self, name: str) -> tuple[str, str]:
        """Return the names of a table's two tensors; with `remap` its vectors have that of a matrix.

        Of a matrix of the source, the first one is ROWS: its ids are the numbers of its rows.
        """
        title = self._title(name)
        if self._is_matrix(name):
            return ROWS, title
        if not self.selection.is_matrix:
            return f"{title}.ids", f"{title}.vectors"
        keeps = name in self.names or title.endswith(self.matrix_ending)
        return f"{title.removesuffix(WEIGHT)}.ids", title if keeps else title + self.matrix_ending

    def _is_matrix(self, name: str) -> bool:
        """Say whether a table is a matrix in its source, with all rows from 0 on, and goes out as one."""
        chosen = self.selection
        if not self.keeps_matrices or chosen.is_matrix or chosen.quantize is not None or chosen.order == STORED:
            return False
        if name not in self._matrices:
            runs = [run for _, entry in self.checkpoint.entries(name) for run in entry.ids]
            self._matrices[name] = not any(run.is_stored for run in runs) and self._has_all_rows(name)
        return self._matrices[name]

    def _has_all_rows(self, name: str) -> bool:
        """Say whether ids that are numbers of rows are 0 to n - 1: no two rows of a matrix have one number."""
        rows, high = self.ids[name].rows, -1
        for piece in self.ids[name].pieces:
            high = max(high, int(read_piece(self.checkpoint, piece).ids.max(initial=-1)))
        return 0 < rows == high + 1

    def _target(self, dtype: DType | None) -> DType:
        """Return the dtype that is written for a dtype that was read."""
        return self.selection.target_dtype(dtype or DTYPES["float32"])

    def _form(self, name: str) -> tuple[DType, int]:
        """Return the dtype and the elements of a row that is written."""
        dtype, dim = self.checkpoint.written_dtype(name), self._dim(name)
        bits = self.selection.quantizes(dtype)
        return (self._target(dtype), dim) if bits is None else (DTYPES["uint8"], bits.width(dim))

    def _dim(self, name: str) -> int:
        info = self.checkpoint.infos.get(name)
        return info.dim if info else max((e.dim for _, e in self.checkpoint.entries(name)), default=0)

    def _dense(self, name: str) -> Tensor:
        entry = self.checkpoint.find_variable(name)[1]
        return Tensor(self.names.get(name, name), self._target(entry.dtype), entry.shape)

    def _cast(self, data: bulk.U8, dtype: DType | None) -> bulk.U8:
        """Return bytes of elements in the dtype that is written."""
        if dtype is None:
            return data
        out, overflowed = cast_bytes(data, dtype, self._target(dtype))
        if overflowed:
            with self._lock:
                self.overflowed += overflowed
        return out

    def _table(self, name: str, *, cast: bool = True) -> TableSource:
        """Return a table to be read once, in the dtype that is written, or as it is."""
        dtype, ids = self.checkpoint.table_dtype(name), self.ids[name]
        parts = parts_needed(ids.rows * (8 + (dtype.itemsize if dtype else 0) * self._dim(name)), self.part_bytes)
        form = self._form(name) if dtype is not None and cast else (dtype, self._dim(name))
        is_stored = self.selection.order == STORED or ids.are_in_order
        changed = None if dtype is None or form[0] == dtype else partial(self._cast_rows, name, dtype)
        return TableSource(self.checkpoint, name, ids, parts, *form, changed, is_stored, self.reporter)

    def _cast_rows(self, name: str, dtype: DType, ids: bulk.I64, rows: bulk.U8) -> bulk.U8:
        """Return rows as they are written."""
        bits = self.selection.quantizes(dtype)
        if bits is None:
            return self._cast(rows.reshape(-1), dtype).reshape(len(rows), -1)
        with self._lock:
            errors = self.errors.setdefault(self._title(name), QuantizationErrors())
        return quantized(name, ids, rows, dtype, bits, errors)

    def _parts(self, name: str, *, cast: bool = True) -> Iterator[TablePart]:
        """Yield a table in parts; at the end, the sums of what was yielded are those of what was read."""
        table, yielded = self._table(name, cast=cast), ContentSketch()
        for part in table.batches(self.directory):
            if len(part.ids):
                yielded.add_rows(name, part.ids, part.values)
            self.reporter.advance(part.values.nbytes + part.ids.nbytes)
            yield part
        self.source.tables.update(table.read.tables)
        compare_rows(name, table.meant, yielded)

    def _rows(self, name: str) -> TableRows:
        dim = self._dim(name)
        rows = lambda: in_batches(self._parts(name), batch_rows(dim))  # noqa: E731
        return TableRows(self._title(name), self.ids[name].rows, dim, rows)

    def _matrix(self, name: str) -> Tensor:
        """Return a table as [N, dim]: row i is that of id i."""
        asked = self.selection.dense_rows
        most = np.iinfo(np.int64).max
        low, high, outside, limit = int(most), -1, 0, most if asked == "auto" else int(asked or 0)
        for piece in self.ids[name].pieces:
            ids = read_piece(self.checkpoint, piece).ids
            low, high = int(ids.min(initial=low)), int(ids.max(initial=high))
            outside += int(np.count_nonzero((ids < 0) | (ids >= limit)))
        count = high + 1 if asked == "auto" else limit
        if outside:
            which = f"{counted(outside, 'id')} {'is' if outside == 1 else 'are'}"
            raise UsageError(
                f"table {name!r}: {which} outside of 0 to {count - 1} (lowest {low}, highest {high})",
                hint=f"a matrix has no rows for such ids; {COMPACT}",
            )
        dtype = self._target(self.checkpoint.written_dtype(name))
        return Tensor(self._keys(name)[1], dtype, (count, self._dim(name)))

    def _matrix_chunks(self, name: str, count: int) -> Iterator[bulk.U8]:
        start = 0
        for part in self._parts(name, cast=False):
            end = int(part.ids[-1]) + 1 if len(part.ids) else start
            yield from self._matrix_rows(name, start, end, part.ids, part.values)
            start = end
        yield from self._matrix_rows(name, start, count, np.empty(0, np.int64), np.empty((0, 0), np.uint8))

    def _matrix_rows(self, name: str, first: int, end: int, ids: bulk.I64, values: bulk.U8) -> Iterator[bulk.U8]:
        """Yield rows [first, end) of a matrix: those of some ids, which ascend, and others for the ids between them."""
        dtype = self.checkpoint.written_dtype(name)
        for start in range(first, end, _MATRIX_ROWS):
            stop = min(start + _MATRIX_ROWS, end)
            rows = self._rows_without_id(name, dtype, start, stop)
            if len(ids):
                inside = slice(*np.searchsorted(ids, [start, stop]))
                rows[ids[inside] - start] = values[inside]
            yield self._cast(rows.reshape(-1), dtype)

    def _rows_without_id(self, name: str, dtype: DType, start: int, stop: int) -> bulk.U8:
        """Return rows [start, stop) for ids that the table does not have, uint8 [stop - start, row_bytes]."""
        dim = self._dim(name)
        info = self.checkpoint.infos.get(name)
        if info is None or self.selection.fill != "initializer":
            return np.zeros((stop - start, dim * dtype.itemsize), np.uint8)
        is_bfloat16 = dtype.name == "bfloat16"
        drawn = np.float32 if is_bfloat16 else np.dtype(dtype.name).newbyteorder("<")
        try:
            rows = initial_rows(info, np.arange(start, stop), seed=self.selection.seed, dtype=drawn)
        except UnsupportedError as error:
            error.hint = "try: --fill zeros"
            raise
        data = cast_floats(rows, "bfloat16")[0] if is_bfloat16 else rows.reshape(-1).view(np.uint8)
        return data.reshape(stop - start, dim * dtype.itemsize)


def in_batches(parts: Iterable[TablePart], rows: int) -> Iterator[Batch]:
    """Yield the rows of parts in batches of so many rows; the last one may have fewer."""
    held: list[Batch] = []
    for part in parts:
        start, count = 0, len(part.ids)
        while start < count:
            stop = min(start + rows - sum(len(ids) for ids, _ in held), count)
            held.append((part.ids[start:stop], part.rows(slice(start, stop))))
            start = stop
            if sum(len(ids) for ids, _ in held) == rows:
                yield _joined(held)
                held = []
    if held:
        yield _joined(held)


def _joined(some: Sequence[Batch]) -> Batch:
    if len(some) == 1:
        return some[0]
    return np.concatenate([ids for ids, _ in some]), np.concatenate([rows for _, rows in some])


def _check_unique(names: Sequence[str]) -> None:
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        hint = "choose with --table and --variable, or try: --rename OLD=NEW"
        raise UnsupportedError(f"two tensors would be named {name!r}", hint=hint)
