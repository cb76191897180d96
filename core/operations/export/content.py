"""What is exported of a checkpoint: which variables and tables, in which dtype, as ids and vectors or as a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.partition import PART_BYTES, PartitionedTable, TablePart, by_range, parts_needed
from edl_ckpt.core.checkpoint.reader import Checkpoint, as_dtype
from edl_ckpt.core.checkpoint.scan import IdPiece, count_rows, id_pieces, read_piece
from edl_ckpt.core.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DTYPES, DenseEntry, DType, ShardIndex
from edl_ckpt.core.operations.export.interface import ExportContent, TableNote, TableRows, Tensor
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter

CASTS: Final = ("float16", "bfloat16", "float32")
_FLOATS: Final = {"float16", "bfloat16", "float32", "float64"}
_DENSE_BYTES: Final = 4 << 20
_MATRIX_ROWS: Final = 8192
_BATCH_ELEMENTS: Final = 1 << 20
_INT64: Final = DTYPES["int64"]
_INITIALIZERS: Final[Mapping[str, Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]]] = {
    "uniform": lambda random, shape: random.uniform(-0.05, 0.05, shape),
    "normal": lambda random, shape: random.normal(0.0, 0.05, shape),
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
}
"""Keras' defaults, which ElasticDL's servers use: RandomUniform(-0.05, 0.05), RandomNormal(0, 0.05)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to export: globs of names (none: all), a dtype to cast floats to, tables as matrices of `dense_rows` rows.

    `dense_rows` is a number, 'auto' for the highest id and one, or None. `fill` is what rows never trained are:
    'zeros', or 'initializer' for the table's own, drawn with `seed`.
    """

    tables: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    dtype: str | None = None
    dense_rows: int | str | None = None
    fill: str = "zeros"
    seed: int = 0

    @property
    def is_lossless(self) -> bool:
        """Return True when everything is exported as it is."""
        return self == Selection(fill=self.fill, seed=self.seed)


@dataclass(slots=True)
class Exported:
    """The content of a checkpoint under a selection, a context manager; `overflowed` counts casts that became infinite.

    `sketch` is of all values that went out unchanged, which proves afterwards that nothing was lost on the way.
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
        if self.selection.dtype is not None and self.selection.dtype not in CASTS:
            raise UsageError(f"dtype must be one of {', '.join(CASTS)}, got {self.selection.dtype!r}")
        if self.selection.fill not in {"zeros", "initializer"}:
            raise UsageError(f"fill must be zeros or initializer, got {self.selection.fill!r}")
        for piece in count_rows(self.checkpoint, id_pieces(self.checkpoint), default_workers()):
            self._pieces.setdefault(piece.entry.name, []).append(piece)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_cut()

    def content(self) -> ExportContent:
        """Return what a format writes; NotFoundError when a glob matches nothing."""
        variables = _matching(
            self.checkpoint.variable_names, self.selection.variables, "variable", self.selection.tables
        )
        tables = _matching(self.checkpoint.table_names, self.selection.tables, "table", self.selection.variables)
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
        return ExportContent(tensors, [self._rows(name) for name in tables], notes, self.metadata)

    def _note(self, name: str) -> TableNote:
        info = self.checkpoint.infos.get(name)
        dtype = self._target(self.checkpoint.table_dtype(name))
        rows = self._row_count(name)
        return TableNote(
            f"{name}.ids",
            f"{name}.vectors",
            info.initializer if info else "",
            self._dim(name),
            dtype.name if rows else "",
        )

    def _target(self, dtype: DType | None) -> DType:
        """Return the dtype that is written for one that was read."""
        held = dtype or DTYPES["float32"]
        return DTYPES[self.selection.dtype] if self.selection.dtype and held.name in _FLOATS else held

    def _row_count(self, name: str) -> int:
        return sum(piece.rows for piece in self._pieces.get(name, ()))

    def _dim(self, name: str) -> int:
        info = self.checkpoint.infos.get(name)
        return info.dim if info else max((e.dim for _, e in self.checkpoint.entries(name)), default=0)

    def _dense(self, name: str) -> Tensor:
        shard, entry = next((s, v) for s in self.checkpoint.shards for v in s.variables if v.name == name)
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
        """Return a table cut into ranges of ids; one table is held at a time."""
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
        rows, dtype = self._row_count(name), self._target(self.checkpoint.table_dtype(name))
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
            raise UsageError(
                f"table {name!r}: {outside} ids are outside of 0 to {count - 1} (they go from {low} to {high})",
                hint="a matrix has no place for them; export ids and vectors, without --dense-rows",
            )
        dtype = self._target(self.checkpoint.table_dtype(name))
        return Tensor(name, dtype, (count, self._dim(name)), lambda: self._matrix_chunks(name, count))

    def _matrix_chunks(self, name: str, count: int) -> Iterator[bulk.U8]:
        held = self.checkpoint.table_dtype(name) or DTYPES["float32"]
        row_bytes = self._dim(name) * held.itemsize
        start = 0
        for part in self._parts(name):
            while start < count and (not len(part.ids) or start <= part.ids[-1]):
                if not len(part.ids):
                    break
                stop = min(start + _MATRIX_ROWS, int(part.ids[-1]) + 1)
                rows = self._untrained(name, held, start, stop)
                inside = slice(*np.searchsorted(part.ids, [start, stop]))
                rows[part.ids[inside] - start] = part.values[inside]
                yield self._cast(rows.reshape(-1), held)
                start = stop
        while start < count:
            stop = min(start + _MATRIX_ROWS, count)
            yield self._cast(self._untrained(name, held, start, stop).reshape(-1), held)
            start = stop
        if not row_bytes:
            yield np.empty(0, np.uint8)

    def _untrained(self, name: str, dtype: DType, start: int, stop: int) -> bulk.U8:
        """Return rows nobody trained, uint8 [stop - start, row_bytes]: the same for a seed, however they are cut."""
        dim = self._dim(name)
        info = self.checkpoint.infos.get(name)
        kind = info.initializer if info and self.selection.fill == "initializer" else "zeros"
        if kind == "zeros" or not dim:
            return np.zeros((stop - start, dim * dtype.itemsize), np.uint8)
        values = draw(kind, name, dim, start, stop, self.selection.seed)
        if dtype.name == "bfloat16":
            return cast_floats(values, "bfloat16")[0].reshape(stop - start, -1)
        typed = values.astype(np.dtype(dtype.name).newbyteorder("<"))
        return np.ascontiguousarray(typed).view(np.uint8).reshape(stop - start, -1)


def draw(kind: str, name: str, dim: int, start: int, stop: int, seed: int) -> npt.NDArray[np.float64]:
    """Return rows [start, stop) of what an initializer gives, float64 [n, dim]; UnsupportedError for an unknown one."""
    function = _INITIALIZERS.get(kind.lower())
    if function is None:
        try:
            return np.full((stop - start, dim), float(kind))
        except ValueError:
            raise UnsupportedError(
                f"table {name!r}: nobody here knows the initializer {kind!r}", hint="try: --fill zeros"
            ) from None
    block, blocks = 1024, []
    salt = list(name.encode())
    for first in range(start // block * block, stop, block):
        random = np.random.default_rng([seed & 0xFFFFFFFF, first, *salt])
        rows = function(random, (block, dim))
        blocks.append(rows[max(start - first, 0) : stop - first])
    return np.concatenate(blocks)


def cast_floats(values: npt.NDArray[np.generic], dtype: str) -> tuple[bulk.U8, int]:
    """Return floats in another dtype as bytes, rounded to nearest even, and how many finite ones became infinite.

    >>> cast_floats(np.array([1.0, 1e9]), "float16")[1]
    1
    """
    with np.errstate(all="ignore"):
        finite = np.isfinite(values.astype(np.float64))
        if dtype != "bfloat16":
            out = values.astype(np.dtype(dtype).newbyteorder("<"))
            return np.ascontiguousarray(out).reshape(-1).view(np.uint8), int(
                np.count_nonzero(finite & ~np.isfinite(out))
            )
        single = np.ascontiguousarray(values.astype(np.float32))
        bits = single.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        rounded = np.where(np.isnan(single), bits >> 16 | 0x40, rounded).astype("<u2")
        infinite = (rounded & 0x7FFF) == 0x7F80
    return rounded.reshape(-1).view(np.uint8), int(np.count_nonzero(finite & infinite))


def _matching(names: Sequence[str], globs: Sequence[str], kind: str, other_globs: Sequence[str]) -> list[str]:
    """Return the names that some glob matches, all when there are none, and none when only others were asked for."""
    if not globs:
        return [] if other_globs else list(names)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise NotFoundError(f"no {kind} matches {glob!r}", hint=f"{kind}s there: {', '.join(names[:8])}")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


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
