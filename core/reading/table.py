"""A table of an open version: rows in batches, all of them at once, or those of some ids.

A row with id i lies in shard `i % ps_num`, so rows of some ids are searched there first. Of the values only those rows
are read, and rows that lie less than a page apart at once.

Rows of a table, and the part of a version that one parameter server has after a restore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Ids, as_array, as_ids, dtype_name, torch_tensor
from edl_ckpt.core.base.errors import CorruptError, NameNotFoundError, UsageError
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.parallel import default_workers, run_all
from edl_ckpt.core.base.words import abridged, counted, describe, escaped, meant
from edl_ckpt.core.kernel.bulk import I64, order_ids
from edl_ckpt.core.kernel.placement import owners
from edl_ckpt.core.model.tables import ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.reading.blocks import as_dtype, id_blocks, numpy_dtype, read_rows, read_runs, read_vectors
from edl_ckpt.core.sources.elasticdl.initial_rows import initial_rows
from edl_ckpt.core.sources.systems import system_named

if TYPE_CHECKING:
    from edl_ckpt.core.reading.reader import Checkpoint


Shape = tuple[tuple[int, ...], np.dtype[Any]]


class Rows(NamedTuple):
    """Rows of one table: int64 [n] ids and [n, dim] vectors."""

    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.generic]

    def __repr__(self) -> str:
        return describe("Rows", f"{' x '.join(map(str, self.vectors.shape))} {dtype_name(self.vectors)}")


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one parameter server after a restore."""

    version: int
    variables: Mapping[str, npt.NDArray[np.generic]]
    tables: Mapping[str, Rows]
    infos: Mapping[str, TableInfo]
    _orders: dict[str, npt.NDArray[np.intp]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The places of each table's rows by ascending id, once rows of it were asked for."""

    def __repr__(self) -> str:
        rows = sum(len(table.ids) for table in self.tables.values())
        variables, tables = counted(len(self.variables), "variable"), counted(len(self.tables), "table")
        return describe("Part", f"of version {self.version}", variables, tables, counted(rows, "row"))

    def rows_for(self, table: str, ids: Ids, *, seed: int = 0) -> npt.NDArray[np.generic]:
        """Return the rows of int64 [n] ids of a table, [n, dim]: trained ones, and initial ones for all other ids.

        An initial row depends on (seed, table, id) alone, so an id gets the same one whatever the number of servers. An
        id of another server is not known here, so it gets its initial row too. Raises NameNotFoundError for an unknown
        table, and the errors of `initial_rows`.
        """
        if table not in self.tables:
            hint = meant(table, self.tables, "tables") or "tables there: none"
            raise NameNotFoundError(f"no table {table!r} in the part of a server", hint=hint)
        known, vectors = self.tables[table]
        wanted = as_ids(ids)
        result = np.empty((len(wanted), vectors.shape[1]), vectors.dtype)
        trained = np.zeros(len(wanted), np.bool_)
        if len(known):
            order = self._orders.get(table)
            if order is None:
                order = self._orders[table] = np.argsort(known, kind="stable")
            place = np.searchsorted(known, wanted, "right", sorter=order) - 1
            row = order[np.maximum(place, 0)]
            trained = known[row] == wanted
            result[trained] = vectors[row[trained]]
        if not trained.all():
            result[~trained] = initial_rows(self.infos[table], wanted[~trained], seed=seed, dtype=vectors.dtype)
        return result


class PartLike(Protocol):
    """Arrays to restore into: variables by name, and vectors by table, alone or as `Rows` whose ids are filled too."""

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return arrays by the names of variables."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """Return arrays [n, dim], or `Rows`, by the names of tables."""


Given: TypeAlias = tuple[dict[str, npt.NDArray[Any]], ...]
"""What `check_fits` found good: the arrays of variables, of the vectors of tables, and of their ids, by name."""


def check_fits(out: PartLike | None, variables: Mapping[str, Shape], tables: Mapping[str, Shape]) -> Given:
    """Return the arrays to restore into; UsageError with all mismatches unless each has the right shape and dtype.

    What `out` lacks, the result lacks. What it has and the part has not is a mismatch.
    """
    if out is None:
        return {}, {}, {}
    if not (isinstance(getattr(out, "variables", None), Mapping) and isinstance(getattr(out, "tables", None), Mapping)):
        raise UsageError(f"out is {type(out).__name__}, expected an object with mappings `variables` and `tables`")
    rows = {name: value for name, value in out.tables.items() if isinstance(value, Rows)}
    vectors = {**out.tables, **{name: value.vectors for name, value in rows.items()}}
    counts = {name: (shape[:1], np.dtype(np.int64)) for name, (shape, _) in tables.items()}
    faults: list[str] = []
    ids = {name: value.ids for name, value in rows.items() if name in tables}
    given = (
        dict(_fitting("variable", out.variables, variables, faults)),
        dict(_fitting("table", vectors, tables, faults)),
        dict(_fitting("ids of table", ids, counts, faults)),
    )
    if faults:
        raise UsageError(f"cannot restore into these arrays, and nothing was filled: {'; '.join(faults)}")
    return given


def _fitting(
    kind: str, given: Mapping[str, Any], expected: Mapping[str, Shape], faults: list[str]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the arrays that fit, by name, as numpy arrays of the same memory; append what is wrong with the others."""
    for name, value in given.items():
        if name not in expected:
            faults.append(f"{kind} {name!r} is not in the part")
            continue
        array = as_array(value, f"{kind} {name!r}")
        shape, dtype = expected[name]
        if (array.shape, array.dtype) != (shape, dtype):
            got = f"{dtype_name(array)} {list(array.shape)}"
            faults.append(f"{kind} {name!r} is {got}, expected {dtype.name} {list(shape)}")
        elif not (array.flags.c_contiguous and array.flags.writeable):
            faults.append(f"{kind} {name!r} is read-only, or not in C order")
        elif array.size and not np.may_share_memory(array, as_array(value)):
            faults.append(f"{kind} {name!r} has memory that numpy can only copy")
        else:
            yield name, array


PIECE_BYTES: Final = 8 << 20
"""Bytes of values in one task of reading a whole table: on S3 one request."""
_FEW_IDS: Final = 16
_MISSING_SHOWN: Final = 5
_OUTSIDE_SHOWN: Final = 3
_NO_MATRIX: Final = "a matrix has a row for each id from 0 on; `to_numpy` has only the ids that there are"


class TensorRows(NamedTuple):
    """Rows of one table as PyTorch has them: tensors int64 [n] ids and [n, dim] vectors."""

    ids: Any
    vectors: Any

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.vectors.shape))
        return describe("TensorRows", f"{shape} {str(self.vectors.dtype).removeprefix('torch.')}")


class TableView:
    """A table of an open checkpoint; `for batch in view` reads it in batches of at most `batch_rows` rows.

    Batches come in stored order, that of shards, then of rows: ids int64 [n], vectors [n, dim]. `to_numpy` and its like
    sort by id, and `to_matrix` has row i at i. Values are read when they are asked for, so the checkpoint must be open.
    """

    __slots__ = ("_batch_rows", "_checkpoint", "name")

    def __init__(self, checkpoint: Checkpoint, name: str, *, batch_rows: int) -> None:
        batch_rows = whole_number("batch_rows", batch_rows, least=1)
        checkpoint.entries(name)
        self._checkpoint, self.name, self._batch_rows = checkpoint, name, batch_rows

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(entry.rows for _, entry in self._checkpoint.entries(self.name))

    @property
    def dim(self) -> int:
        """Return the elements of a row; for a table without rows, those that its info names."""
        dim = max((entry.dim for _, entry in self._checkpoint.entries(self.name)), default=0)
        info = self._checkpoint.infos.get(self.name)
        return dim or (info.dim if info else 0)

    @property
    def dtype(self) -> str:
        """Return the name of the element type in the checkpoint: numpy's name, or 'bfloat16'."""
        return self._checkpoint.written_dtype(self.name).name

    @property
    def initializer(self) -> str:
        """Return the initializer of rows for new ids; '' for a table without an info."""
        info = self._checkpoint.infos.get(self.name)
        return info.initializer if info else ""

    @property
    def shown_initializer(self) -> str:
        """Return the initializer where the system of the checkpoint keeps one, else ''."""
        system = self._checkpoint.version.layout.system
        return self.initializer if system_named(system).has_initializers else ""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of ids and values in the checkpoint."""
        return sum(entry.size_bytes for _, entry in self._checkpoint.entries(self.name))

    def __len__(self) -> int:
        return self.rows

    def __contains__(self, id_: object) -> bool:
        """Say whether the table has a row of an id."""
        return isinstance(id_, int | np.integer) and bool(self._find(as_ids([int(id_)])).hits[0])

    def __iter__(self) -> Iterator[Rows]:
        for shard, entry in self._checkpoint.entries(self.name):
            for first, block in id_blocks(self._checkpoint, shard, entry):
                for start in range(0, len(block), self._batch_rows):
                    ids = block[start : start + self._batch_rows]
                    yield Rows(ids, read_vectors(self._checkpoint, shard, entry, first + start, len(ids)))

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 - as numpy calls it
    ) -> npt.NDArray[Any]:
        """Return all vectors [n, dim] in ascending order of their ids, for `np.asarray(table)`; they are read anew."""
        if copy is False:
            raise ValueError("the values of a table are read from its files: copy=False cannot be")
        return np.asarray(self.to_numpy().vectors, dtype)

    def to_numpy(self, ids: Ids | None = None) -> Rows:
        """Return all rows in ascending order of their ids, or those of `ids` in the order of `ids`.

        ids int64 [n], vectors [n, dim]; bfloat16, which numpy lacks, becomes float32 of the same values. All rows are
        read into their places: beside the result, memory is 16 bytes a row and 8 MiB a thread. Of an id that several
        rows have, all rows come, in stored order; of `ids`, the last row counts, as in a restore by ElasticDL. Raises
        NameNotFoundError, which is a KeyError, for ids without a row, and EdlCkptError when the result needs more
        memory than this machine has.
        """
        return self._rows(ids, bits=False)

    def to_matrix(self, rows: int | None = None, *, fill: float = 0.0) -> npt.NDArray[Any]:
        """Return the table as [rows, dim]: row i is the vector of id i, and `fill` where no row has that id.

        `rows` is the highest id and one by default. The dtype is that of `to_numpy`; of an id that several rows have,
        the last row counts. `torch.nn.Embedding.from_pretrained` takes such a matrix. Raises UsageError for ids outside
        of 0 to rows - 1 and for a `fill` that a table of whole numbers cannot have, and EdlCkptError when the matrix
        needs more memory than this machine has.
        """
        count = None if rows is None else whole_number("rows", rows, least=0)
        kind = self._kind(bits=False)
        value = _fill_value(fill, kind)
        ids = self._ids(8)
        count = int(ids.max(initial=-1)) + 1 if count is None else count
        outside = ids[(ids < 0) | (ids > min(count - 1, np.iinfo(np.int64).max))]
        if len(outside):
            some = ", ".join(map(str, np.sort(outside)[:_OUTSIDE_SHOWN].tolist()))
            raise UsageError(
                f"table {self.name!r}: {counted(len(outside), 'id')} outside of 0 to {count - 1}: {some}",
                path=self._checkpoint.version.ref,
                hint=_NO_MATRIX,
            )
        size_bytes = count * (self.dim * kind.itemsize + 1)
        check_memory(size_bytes, f"a matrix of {counted(count, 'row')}", self._checkpoint.version.ref, hint=_NO_MATRIX)
        seen = np.zeros(count, np.bool_)
        seen[ids] = True
        matrix = np.zeros((count, self.dim), kind)
        if value:
            matrix[~seen] = value
        self._read_values(matrix, ids, bits=False, in_turn=int(seen.sum()) < len(ids))
        return matrix

    def to_torch(self, ids: Ids | None = None) -> TensorRows:
        """Return rows as `to_numpy` does, as tensors of PyTorch; bfloat16 stays what it is."""
        library("torch", "torch")
        rows = self._rows(ids, bits=True)
        return TensorRows(torch_tensor(rows.ids), torch_tensor(rows.vectors))

    def to_arrow(self, ids: Ids | None = None) -> Any:
        """Return rows as `to_numpy` does, as a pyarrow.Table: `id` int64, `vector` a list of a fixed size."""
        arrow = library("pyarrow", "arrow")
        rows = self._rows(ids, bits=False)
        values, dim = arrow.array(rows.vectors.reshape(-1)), rows.vectors.shape[1]
        if dim:
            column = arrow.FixedSizeListArray.from_arrays(values, dim)
        else:  # Arrow has no list of the fixed size 0
            column = arrow.ListArray.from_arrays(arrow.array(np.zeros(len(rows.ids) + 1, np.int32)), values)
        return arrow.table({"id": arrow.array(rows.ids), "vector": column})

    def to_pandas(self, ids: Ids | None = None) -> Any:
        """Return rows as `to_numpy` does, as a pandas.DataFrame: the index is `id`, the columns are 0 to dim - 1."""
        pandas = library("pandas", "pandas")
        rows = self._rows(ids, bits=False)
        return pandas.DataFrame(rows.vectors, index=pandas.Index(rows.ids, name="id"), copy=False)

    def _rows(self, ids: Ids | None, *, bits: bool) -> Rows:
        if ids is None:
            return self._all(bits=bits)
        asked = as_ids(ids)
        if not len(asked):
            return Rows(asked, np.empty((0, self.dim), self._kind(bits=bits)))
        wanted, places = np.unique(asked, return_inverse=True)
        found = self._find(wanted, bits=bits)
        absent = wanted[found.hits == 0].tolist()
        if absent:
            raise NameNotFoundError(
                f"table {self.name!r} has no row for {counted(len(absent), 'id')}: {abridged(absent, _MISSING_SHOWN)}",
                path=self._checkpoint.version.ref,
                hint="`look_up` returns the rows of the other ids, and names the missing ones",
            )
        return Rows(asked, found.vectors[places])

    def _find(self, wanted: I64, *, bits: bool = False) -> FoundRows:
        """Search ids where they belong, and those that are not there in the other shards, as a restore would."""
        found = find_rows(self._checkpoint, self.name, wanted, bits=bits)
        absent = np.flatnonzero(found.hits == 0)
        if len(absent) and len(self._checkpoint.entries(self.name)) > 1:
            again = find_rows(self._checkpoint, self.name, wanted[absent], everywhere=True, bits=bits)
            found.vectors[absent], found.hits[absent] = again.vectors, again.hits
        return found

    def _kind(self, *, bits: bool) -> np.dtype[Any]:
        """Return numpy's dtype of the vectors."""
        return numpy_dtype(self._checkpoint.written_dtype(self.name), bits=bits)

    def _all(self, *, bits: bool) -> Rows:
        kind = self._kind(bits=bits)
        ids = self._ids(16 + self.dim * kind.itemsize)
        place = _sort(ids)
        vectors = np.empty((len(ids), self.dim), kind)
        self._read_values(vectors, place, bits=bits)
        return Rows(ids, vectors)

    def _ids(self, row_bytes: int) -> I64:
        """Return all ids in stored order; EdlCkptError where this machine has no memory for `row_bytes` a row."""
        check_memory(self.rows * row_bytes, f"table {self.name!r}", self._checkpoint.version.ref)
        ids, dim = np.empty(self.rows, np.int64), self.dim
        parts = list(self._parts())
        for shard, entry, _ in parts:
            if entry.rows and entry.dim != dim:
                raise CorruptError(f"table {self.name!r} has rows of {entry.dim} and of {dim}", path=shard.file.path)

        def read(part: tuple[ShardIndex, TableEntry, int]) -> None:
            shard, entry, begin = part
            for first, block in id_blocks(self._checkpoint, shard, entry):
                ids[begin + first : begin + first + len(block)] = block

        run_all(read, parts, default_workers(remote=self._checkpoint.is_far))
        return ids

    def _parts(self) -> Iterator[tuple[ShardIndex, TableEntry, int]]:
        """Yield the rows of each shard, with the number of the first of them among all rows."""
        first = 0
        for shard, entry in self._checkpoint.entries(self.name):
            yield shard, entry, first
            first += entry.rows

    def _read_values(
        self, vectors: npt.NDArray[Any], place: npt.NDArray[np.integer] | None, *, bits: bool, in_turn: bool = False
    ) -> None:
        """Read all rows into vectors [n, dim], each to its place, int [rows]; None for stored order.

        With `in_turn`, of rows with one place the last one stays.
        """

        def read(piece: tuple[ShardIndex, TableEntry, int, range]) -> None:
            """Fill the places of some rows of a shard; if possible without a copy."""
            shard, entry, first, rows = piece
            some = slice(first + rows.start, first + rows.stop)
            fits = place is None and vectors.itemsize * vectors.shape[1] == entry.row_bytes
            out = vectors[some].view(np.uint8) if fits else np.empty((len(rows), entry.row_bytes), np.uint8)
            data = read_rows(self._checkpoint, shard, entry, rows.start, out)
            if data is not out or not fits:  # bfloat16 grows to float32; mapped files give views
                values = as_dtype(data.reshape(-1), entry.dtype, bits=bits).reshape(len(rows), entry.dim)
                vectors[some if place is None else place[some]] = values

        pieces: list[tuple[ShardIndex, TableEntry, int, range]] = []
        for shard, entry, first in self._parts():
            step = max(PIECE_BYTES // max(entry.row_bytes, 1), 1)
            starts = range(0, entry.rows, step)
            pieces += [(shard, entry, first, range(at, min(at + step, entry.rows))) for at in starts]
        run_all(read, pieces, 1 if in_turn else default_workers(remote=self._checkpoint.is_far))

    def __repr__(self) -> str:
        kind = f"{counted(self.rows, 'row')} of {self.dim} {self.dtype}"
        return describe("TableView", escaped(self.name), kind, escaped(self.shown_initializer))

    def _repr_html_(self) -> str:
        facts = (f"{counted(self.rows, 'row')} of {self.dim} {self.dtype}", self.shown_initializer)
        entries = self._checkpoint.entries(self.name)
        rows = ((str(shard.file.ps_id), entry.rows, Bytes(entry.size_bytes)) for shard, entry in entries)
        return card("TableView", self.name, facts, [table(("shard", "rows", "size"), rows, len(entries), "shard")])


def _sort(ids: I64) -> npt.NDArray[np.integer] | None:
    """Sort int64 [n] in place; return where each of them is then, or None if they were in order. Equal ones keep it."""
    if not (ids[1:] < ids[:-1]).any():
        return None
    order: npt.NDArray[np.integer]
    if len(ids) >> 32:  # more than the kernel can number
        order = np.argsort(ids, kind="stable")
        ids.sort()
    else:
        order = order_ids(ids)
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    return place


def _fill_value(fill: object, kind: np.dtype[Any]) -> Any:
    """Return a number as an element of a dtype; UsageError for what is no number, or none of these whole numbers."""
    with suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        number = np.float64(float(fill))  # type: ignore[arg-type]
        value = number.astype(kind)
        if value == number or (kind.kind == "f" and np.isfinite(value) == np.isfinite(number)):
            return value
    raise UsageError(f"fill must be a number that {kind.name} has, got {fill!r}")


class FoundRows(NamedTuple):
    """What a search for ids found: [n, dim] vectors, zeros where nothing was found, and how many rows int64 [n]."""

    vectors: npt.NDArray[Any]
    hits: I64


def find_rows(
    checkpoint: Checkpoint, table: str, wanted: I64, *, everywhere: bool = False, bits: bool = False
) -> FoundRows:
    """Search a table for different ids, each in the shard that it belongs to, or `everywhere` in all open shards.

    Of several rows with one id, the last one counts. `bits` keeps bfloat16 as it is. Raises NameNotFoundError for an
    unknown table, EdlCkptError when the rows need more memory than this machine has, CorruptError for damage.
    """
    rule, ps_num = checkpoint.placement(table), checkpoint.version.ps_num or 1
    owner = None if everywhere else owners(rule, wanted, ps_num)
    found = FoundRows(no_vectors(checkpoint, table, len(wanted), bits=bits), np.zeros(len(wanted), np.int64))
    for shard, entry in checkpoint.entries(table):
        mine = np.arange(len(wanted)) if owner is None else np.flatnonzero(owner == shard.file.ps_id)
        if owner is not None and not len(mine):
            continue
        order = mine[np.argsort(wanted[mine])]
        hit, row = _search(checkpoint, shard, entry, wanted[order])
        if not len(row):
            continue
        np.add.at(found.hits, order[hit], 1)
        place, last = np.unique(order[hit][::-1], return_index=True)
        starts = entry.values.start + row[::-1][last] * entry.row_bytes
        data = read_runs(checkpoint.reader(shard, entry.values), starts, entry.row_bytes)
        found.vectors[place] = as_dtype(data.reshape(-1), entry.dtype, bits=bits).reshape(len(data), entry.dim)
    return found


def no_vectors(checkpoint: Checkpoint, table: str, count: int, *, bits: bool = False) -> npt.NDArray[Any]:
    """Return zeros [count, dim] for rows of a table; EdlCkptError when these need more memory than there is."""
    entries = checkpoint.entries(table)
    # Only the info of a table without rows claims a dim: no array gets that size.
    dim, row_bytes = max(((entry.dim, entry.row_bytes) for _, entry in entries), default=(0, 0))
    check_memory(2 * count * row_bytes, f"{counted(count, 'row')} of table {table!r}", checkpoint.version.ref)
    return np.zeros((count, dim), numpy_dtype(checkpoint.table_dtype(table), bits=bits))


def _search(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, ordered: I64) -> tuple[I64, I64]:
    """Search a shard for ascending ids; return the number of the id, and the row, of each hit: int64 [n]."""
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    numbers, rows = zip(nothing, *_hits(checkpoint, shard, entry, ordered), strict=True)
    return np.concatenate(numbers), np.concatenate(rows)


def _hits(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, ordered: I64) -> Iterator[tuple[I64, I64]]:
    """Yield the hits of each block of ids; where ids are row numbers, those of each run, without a search."""
    if not any(run.is_stored for run in entry.ids):
        before = 0
        for run in entry.ids:
            count = run.size_bytes // run.encoding.itemsize
            hits = np.flatnonzero((ordered >= run.first) & (ordered < run.first + count))
            yield hits, ordered[hits] - run.first + before
            before += count
        return
    for first, ids in id_blocks(checkpoint, shard, entry):
        if len(ordered) <= _FEW_IDS:  # comparing with each takes less than a search
            hits = np.flatnonzero(np.isin(ids, ordered))
        else:
            hits = np.flatnonzero(ordered[np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)] == ids)
        yield np.searchsorted(ordered, ids[hits]), hits + first
