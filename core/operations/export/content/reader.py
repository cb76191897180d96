"""The content of an export: the selected variables and tables of a checkpoint, as tensors.

Every value of the checkpoint is read once, the selected ones for the output and the others for the fingerprint. What
was written is read back and must have the same sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import default_workers, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.converting.name_map import ROWS
from edl_ckpt.core.operations.export.content.batches import in_batches
from edl_ckpt.core.operations.export.content.casting import Casting
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.content.matrix import IdMatrix
from edl_ckpt.core.operations.export.content.tables import TableSource, read_rest
from edl_ckpt.core.operations.export.content.variables import (
    SmallVariable,
    Span,
    read_span,
    spans,
    write_piece,
    write_together,
)
from edl_ckpt.core.operations.export.interface import (
    STORED,
    ContentCounts,
    ExportContent,
    TableRows,
    Tensor,
    batch_rows,
)
from edl_ckpt.core.operations.export.output.numbers import RowNumbers
from edl_ckpt.core.operations.export.output.places import Place, compare_rows
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of
from edl_ckpt.core.sorting.partition import PART_BYTES, Areas, TablePart, parts_needed

_VIEW_BYTES: Final = 8 << 20
"""Bytes of a file that are read back at a time: mapped pages count as memory."""
_FEW_PIECES: Final = 64


class ContentReader:
    """Reads the selected content of a checkpoint; `casting` counts what casts change.

    `confirm` is called with the fingerprint of the whole checkpoint, once all of it was read, and may raise an error.
    Without it, only the content is read, and its sums are in `source`: then it is a part of what others read.
    """

    def __init__(
        self,
        forms: ContentForms,
        metadata: Mapping[str, str],
        directory: str,
        *,
        confirm: Callable[[str], None] | None = None,
        part_bytes: int = PART_BYTES,
        reporter: Reporter = WARNINGS,
    ) -> None:
        """Take what goes out, texts about the whole, and a directory for temporary files."""
        self.forms, self.metadata, self.reporter = forms, metadata, reporter
        self.checkpoint, self.selection = forms.checkpoint, forms.selection
        self.casting = Casting(forms)
        self.fingerprint: Fingerprint | None = None
        """That of the checkpoint; None until `finish`."""
        self.source = ContentSketch()
        """The sums of all variables and tables that were read to their end."""
        self._directory, self._confirm, self._part_bytes = directory, confirm, part_bytes

    @property
    def _workers(self) -> int:
        return default_workers(remote=self.checkpoint.is_far)

    def content(self, variables: Sequence[str] | None = None, tables: Sequence[str] | None = None) -> ExportContent:
        """Return what a format writes, or some of it, by names; NotFoundError when a glob matches nothing."""
        if variables is None or tables is None:
            variables = self.selection.written_variables(self.checkpoint)
            tables = self.selection.choose_tables(self.checkpoint.table_names, self.checkpoint.slots)
        in_pairs = tables if self.selection.dense_rows is None else []
        forms, matrices = self.forms, dict[str, Tensor]()
        if self.selection.dense_rows is not None:
            matrices = {name: self._matrix(name).tensor() for name in tables}
        tensors = [*map(forms.dense, variables), *matrices.values()]
        for name in in_pairs:
            tensors += forms.pair(name)
        notes = {forms.title(name): forms.note(name) for name in in_pairs}
        _check_unique([t.name for t in tensors])
        counts = ContentCounts(len(variables), len(tables), sum(self.forms.ids[name].rows for name in tables))
        fill = partial(self._fill, variables, in_pairs, matrices)
        return ExportContent(tensors, list(map(self._rows, tables)), counts, notes, self.metadata, fill, self.finish)

    def finish(self) -> Mapping[str, str]:
        """Read what no tensor has, and return the metadata with the fingerprint of the checkpoint."""
        if self._confirm is None:
            return self.metadata
        if self.fingerprint is None:
            done = {(name, True) for name in self.source.tables} | {(n, False) for n in self.source.variable_names()}
            tables = {name: table.places for name, table in self.forms.ids.items()}
            self.source.add(read_rest(self.checkpoint, tables, done, Job.here(self._workers, reporter=self.reporter)))
            self.fingerprint = fingerprint_of(self.checkpoint, self.source)
            self._confirm(self.fingerprint.text)
        return {**self.metadata, "fingerprint": self.fingerprint.text}

    def _fill(
        self,
        variables: Sequence[str],
        pairs: Sequence[str],
        matrices: Mapping[str, Tensor],
        places: Mapping[str, Place],
    ) -> None:
        """Write the bytes of all tensors that have a place: variables, ids and vectors of tables, and matrices."""
        wanted = {name: places[new] for name in variables if (new := self.forms.names.get(name, name)) in places}
        if wanted:
            self._fill_dense(wanted)
        for name in pairs:
            ids, vectors = self.forms.keys(name)
            id_place = RowNumbers(name) if ids == ROWS else places.get(ids)
            if id_place is not None and vectors in places:
                self._fill_table(name, id_place, places[vectors])
        for name, matrix in matrices.items():
            if matrix.name in places:
                self._fill_matrix(name, matrix.shape[0], places[matrix.name])

    def _fill_dense(self, places: Mapping[str, Place]) -> None:
        """Read all variables, and write those that have a place."""
        source = ContentSketch()
        found = list(spans(self.checkpoint, places if self._confirm is None else None))

        def read(span: Span) -> list[SmallVariable]:
            pieces = read_span(self.checkpoint, span, source)
            small = [write_piece(piece, data, places, self.casting.elements) for piece, data in pieces]
            self.reporter.advance(2 * span.size_bytes)
            return [later for later in small if later is not None]

        # With hundreds of small pieces in a read, threads only wait for the interpreter.
        are_large = sum(len(span.pieces) for span in found) <= _FEW_PIECES * len(found)
        write_together(run_parallel(read, found, self._workers if are_large else 1))
        self.source.take_variables(source)

    def _matrix(self, name: str) -> IdMatrix:
        return IdMatrix(self.forms, self.casting, name)

    def _fill_matrix(self, name: str, rows: int, place: Place) -> None:
        at = 0
        with place.file as file:
            area = place.area(file)
            for chunk in self._matrix(name).chunks(self._parts(name, cast=False), rows):
                area.write(at, chunk)
                place.read_back(area, at, len(chunk))
                at += len(chunk)

    def _fill_table(self, name: str, ids: Place | RowNumbers, vectors: Place) -> None:
        """Write a table's ids and rows, read them back, and compare the sums of both."""
        table = self._table(name)
        written = ContentSketch()
        dtype, dim = self.forms.form(name)
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

    def _table(self, name: str, *, cast: bool = True) -> TableSource:
        """Return a table to be read once, in the dtype that is written, or as it is."""
        dtype, ids = self.checkpoint.table_dtype(name), self.forms.ids[name]
        parts = parts_needed(ids.rows * (8 + (dtype.itemsize if dtype else 0) * self.forms.dim(name)), self._part_bytes)
        form = self.forms.form(name) if dtype is not None and cast else (dtype, self.forms.dim(name))
        is_stored = self.selection.order == STORED or ids.are_in_order
        changed = None if dtype is None or form[0] == dtype else partial(self.casting.rows, name, dtype)
        return TableSource(self.checkpoint, name, ids, parts, *form, changed, is_stored, self.reporter)

    def _parts(self, name: str, *, cast: bool = True) -> Iterator[TablePart]:
        """Yield a table in parts; at the end, the sums of what was yielded are those of what was read."""
        table, yielded = self._table(name, cast=cast), ContentSketch()
        for part in table.batches(self._directory):
            if len(part.ids):
                yielded.add_rows(name, part.ids, part.values)
            self.reporter.advance(part.values.nbytes + part.ids.nbytes)
            yield part
        self.source.tables.update(table.read.tables)
        compare_rows(name, table.meant, yielded)

    def _rows(self, name: str) -> TableRows:
        dim = self.forms.dim(name)
        rows = lambda: in_batches(self._parts(name), batch_rows(dim))  # noqa: E731
        return TableRows(self.forms.title(name), self.forms.ids[name].rows, dim, rows)


def _check_unique(names: Sequence[str]) -> None:
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        hint = "choose with --table and --variable, or try: --rename OLD=NEW"
        raise UnsupportedError(f"two tensors would be named {name!r}", hint=hint)
