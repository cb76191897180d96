"""The content of an export: the selected variables and tables of a checkpoint, as tensors that are read once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.blocks import as_dtype
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.partition import PART_BYTES, PartitionedTable, TablePart, by_range, parts_needed
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import IdPiece, count_rows, id_pieces, read_piece
from edl_ckpt.core.errors import UnsupportedError, UsageError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.initial_rows import initial_rows
from edl_ckpt.core.format.model import DTYPES, DenseEntry, DType, ShardIndex
from edl_ckpt.core.operations.export.casts import cast_floats
from edl_ckpt.core.operations.export.interface import ContentCounts, ExportContent, TableNote, TableRows, Tensor
from edl_ckpt.core.operations.export.selection import Selection
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.words import counted

_DENSE_BYTES: Final = 4 << 20
_MATRIX_ROWS: Final = 8192
_BATCH_ELEMENTS: Final = 1 << 20
_INT64: Final = DTYPES["int64"]


@dataclass(slots=True)
class ContentReader:
    """Reads the selected content of a checkpoint; a context manager. `overflowed` counts casts that became infinite.

    `sketch` is that of all values that were read: it proves afterwards that the whole checkpoint was read, unchanged.
    """

    checkpoint: Checkpoint
    selection: Selection
    metadata: Mapping[str, str]
    directory: str
    part_bytes: int = PART_BYTES
    reporter: Reporter = SILENT
    overflowed: int = 0
    sketch: ContentSketch = field(default_factory=ContentSketch)
    _pieces: dict[str, list[IdPiece]] = field(default_factory=dict)
    _cut: tuple[str, PartitionedTable] | None = None

    def __enter__(self) -> Self:
        for piece in count_rows(self.checkpoint, id_pieces(self.checkpoint), default_workers()):
            self._pieces.setdefault(piece.entry.name, []).append(piece)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_cut()

    def content(self) -> ExportContent:
        """Return what a format writes; NotFoundError when a glob matches nothing."""
        variables = self.selection.choose_variables(self.checkpoint.variable_names)
        tables = self.selection.choose_tables(self.checkpoint.table_names)
        tensors = [self._dense(name) for name in variables]
        notes: dict[str, TableNote] = {}
        for name in tables:
            if self.selection.dense_rows is not None:
                tensors.append(self._matrix(name))
            else:
                tensors += self._ids_and_vectors(name)
                notes[name] = self._note(name)
        _check_unique([t.name for t in tensors])
        self.reporter.start("exporting", sum(t.size_bytes for t in tensors))
        counts = ContentCounts(len(variables), len(tables), sum(map(self._row_count, tables)))
        return ExportContent(tensors, [self._rows(name) for name in tables], counts, notes, self.metadata)

    def _note(self, name: str) -> TableNote:
        info = self.checkpoint.infos.get(name)
        dtype = self._target(self.checkpoint.written_dtype(name))
        rows = self._row_count(name)
        return TableNote(
            f"{name}.ids",
            f"{name}.vectors",
            info.initializer if info else "",
            self._dim(name),
            dtype.name if rows else "",
        )

    def _target(self, dtype: DType | None) -> DType:
        """Return the dtype that is written for a dtype that was read."""
        return self.selection.target_dtype(dtype or DTYPES["float32"])

    def _row_count(self, name: str) -> int:
        return sum(piece.rows for piece in self._pieces.get(name, ()))

    def _dim(self, name: str) -> int:
        info = self.checkpoint.infos.get(name)
        return info.dim if info else max((e.dim for _, e in self.checkpoint.entries(name)), default=0)

    def _dense(self, name: str) -> Tensor:
        shard, entry = self.checkpoint.find_variable(name)
        return Tensor(name, self._target(entry.dtype), entry.shape, lambda: self._dense_chunks(shard, entry))

    def _dense_chunks(self, shard: ShardIndex, entry: DenseEntry) -> Iterator[bulk.U8]:
        for start in range(0, max(entry.size_bytes, 1), _DENSE_BYTES):
            data = np.empty(min(_DENSE_BYTES, entry.size_bytes - start), np.uint8)
            if len(data):
                self.checkpoint.reader(shard).read_into(entry.values.start + start, data.data)
            self.sketch.add_dense(entry.name, entry.size_bytes, start, data)
            self.reporter.advance(len(data))
            yield self._cast(data, entry.dtype)

    def _cast(self, data: bulk.U8, dtype: DType | None) -> bulk.U8:
        """Return bytes of elements in the dtype that is written."""
        target = self._target(dtype)
        if dtype is None or target == dtype or not len(data):
            return data
        values = as_dtype(data, dtype)
        out, overflowed = cast_floats(values, target.name)
        self.overflowed += overflowed
        return out

    def _open_cut(self, name: str) -> PartitionedTable:
        """Return a table cut into ranges of ids; only one table is cut at a time."""
        if self._cut is None or self._cut[0] != name:
            self._close_cut()
            pieces = self._pieces.get(name, [])
            size = sum(e.size_bytes for _, e in self.checkpoint.entries(name)) + 16 * self._row_count(name)
            parts = parts_needed(size, self.part_bytes)
            assign = by_range(self.checkpoint, pieces, parts)
            cut = PartitionedTable(self.checkpoint, name, pieces, parts=parts, assign=assign, directory=self.directory)
            self._cut = (name, cut.__enter__())
        return self._cut[1]

    def _close_cut(self) -> None:
        if self._cut is not None:
            self._cut[1].__exit__(None, None, None)
            self._cut = None

    def _ids_and_vectors(self, name: str) -> list[Tensor]:
        rows, dtype = self._row_count(name), self._target(self.checkpoint.written_dtype(name))
        return [
            Tensor(f"{name}.ids", _INT64, (rows,), lambda: self._id_chunks(name)),
            Tensor(f"{name}.vectors", dtype, (rows, self._dim(name)), lambda: self._vector_chunks(name)),
        ]

    def _id_chunks(self, name: str) -> Iterator[bulk.U8]:
        for part in self._open_cut(name).all_parts(values=False):
            yield part.ids.view(np.uint8)
            self.reporter.advance(part.ids.nbytes)

    def _parts(self, name: str) -> Iterator[TablePart]:
        for part in self._open_cut(name).all_parts():
            if len(part.ids):
                self.sketch.add_rows(name, part.ids, part.values)
            self.reporter.advance(part.values.nbytes)
            yield part

    def _vector_chunks(self, name: str) -> Iterator[bulk.U8]:
        for part in self._parts(name):
            yield self._cast(part.values.reshape(-1), part.dtype)

    def _rows(self, name: str) -> TableRows:
        def batches() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]]:
            for part in self._parts(name):
                step = max(_BATCH_ELEMENTS // max(part.dim, 1), 1)
                for start in range(0, len(part.ids), step):
                    some = slice(start, start + step)
                    yield part.ids[some], self._cast_rows(part, some)

        return TableRows(name, self._row_count(name), self._dim(name), batches)

    def _cast_rows(self, part: TablePart, some: slice) -> npt.NDArray[np.generic]:
        """Return rows in the dtype asked for; bfloat16, which numpy lacks, as the same values in float32."""
        rows, target = part.rows(some), self._target(part.dtype)
        if part.dtype is None or target == part.dtype:
            return rows
        data, overflowed = cast_floats(rows, target.name)
        self.overflowed += overflowed
        return as_dtype(data, target).reshape(rows.shape)

    def _matrix(self, name: str) -> Tensor:
        """Return a table as [N, dim]: row i is that of id i."""
        asked = self.selection.dense_rows
        low, high, outside = 0, -1, 0
        for piece in self._pieces.get(name, ()):
            ids = read_piece(self.checkpoint, piece).ids
            low, high = min(low, int(ids.min(initial=0))), max(high, int(ids.max(initial=-1)))
            limit = np.iinfo(np.int64).max if asked == "auto" else int(asked or 0)
            outside += int(np.count_nonzero((ids < 0) | (ids >= limit)))
        count = high + 1 if asked == "auto" else int(asked or 0)
        if outside:
            which = f"{counted(outside, 'id')} {'is' if outside == 1 else 'are'}"
            raise UsageError(
                f"table {name!r}: {which} outside of 0 to {count - 1} (lowest {low}, highest {high})",
                hint="a matrix has no rows for such ids; export ids and vectors, without --dense-rows",
            )
        dtype = self._target(self.checkpoint.written_dtype(name))
        return Tensor(name, dtype, (count, self._dim(name)), lambda: self._matrix_chunks(name, count))

    def _matrix_chunks(self, name: str, count: int) -> Iterator[bulk.U8]:
        dtype = self.checkpoint.written_dtype(name)
        row_bytes = self._dim(name) * dtype.itemsize
        start = 0
        for part in self._parts(name):
            while start < count and (not len(part.ids) or start <= part.ids[-1]):
                if not len(part.ids):
                    break
                stop = min(start + _MATRIX_ROWS, int(part.ids[-1]) + 1)
                rows = self._rows_without_id(name, dtype, start, stop)
                inside = slice(*np.searchsorted(part.ids, [start, stop]))
                rows[part.ids[inside] - start] = part.values[inside]
                yield self._cast(rows.reshape(-1), dtype)
                start = stop
        while start < count:
            stop = min(start + _MATRIX_ROWS, count)
            yield self._cast(self._rows_without_id(name, dtype, start, stop).reshape(-1), dtype)
            start = stop
        if not row_bytes:
            yield np.empty(0, np.uint8)

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


def _check_unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UnsupportedError(f"two tensors would be named {name!r}", hint="choose with --table and --variable")
        seen.add(name)


def estimated_bytes(content: ExportContent) -> int:
    """Return the bytes of all tensors, and of the largest one again for its temporary file."""
    sizes = [tensor.size_bytes for tensor in content.tensors]
    return sum(sizes) + max(sizes, default=0) + math.ceil(0.001 * sum(sizes))
