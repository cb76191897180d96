"""A table of an open version: rows in batches, all of them at once, or those of some ids.

A row with id i lies in shard `i % ps_num`, so rows of some ids are searched there first. Of the values only those rows
are read, and rows that lie less than a page apart at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.arrays import Ids, as_ids
from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES, as_dtype, check_row_count, id_blocks, read_rows
from edl_ckpt.core.checkpoint.parts import Rows
from edl_ckpt.core.errors import CorruptError, NameNotFoundError
from edl_ckpt.core.format import placement
from edl_ckpt.core.format.bulk import I64
from edl_ckpt.core.format.model import ShardIndex, TableEntry
from edl_ckpt.core.libraries import library, torch_tensor
from edl_ckpt.core.memory import check_memory
from edl_ckpt.core.notebook import Bytes, card, table
from edl_ckpt.core.numbers import whole_number
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.words import abridged, counted, describe, escaped

if TYPE_CHECKING:
    from edl_ckpt.core.checkpoint.reader import Checkpoint

_PIECE_BYTES: Final = 8 << 20
"""Bytes of values in one task of reading a whole table: on S3 one request."""
_NEAR_BYTES: Final = 4096
_MISSING_SHOWN: Final = 5


class TensorRows(NamedTuple):
    """Rows of one table as PyTorch has them: tensors int64 [n] ids and [n, dim] vectors."""

    ids: Any
    vectors: Any

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.vectors.shape))
        return describe("TensorRows", f"{shape} {str(self.vectors.dtype).removeprefix('torch.')}")


class TableView:
    """A table of an open checkpoint; `for batch in view` reads it in batches of at most `batch_rows` rows.

    Batches come in the order of shards, then of rows: ids int64 [n], vectors [n, dim]. Values are read when they are
    asked for, so the checkpoint must be open.
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
            at = 0
            for block in id_blocks(self._checkpoint.reader(shard), entry):
                for start in range(0, len(block.ids), self._batch_rows):
                    ids = block.ids[start : start + self._batch_rows]
                    rows = self._read(shard, entry, at, at + len(ids))
                    at += len(ids)
                    yield Rows(ids, as_dtype(rows.reshape(-1), entry.dtype).reshape(len(ids), entry.dim))
            check_row_count(self._checkpoint.reader(shard), entry, at)

    def _read(
        self, shard: ShardIndex, entry: TableEntry, first: int, end: int, out: npt.NDArray[np.uint8] | None = None
    ) -> npt.NDArray[np.uint8]:
        """Return rows [first, end) of a shard as uint8 [n, row_bytes], in `out` if it is given."""
        reader = self._checkpoint.reader(shard)  # each time: a closed checkpoint says so
        if end > entry.rows:  # before memory is allocated for rows that do not exist
            check_row_count(reader, entry, end, at_least=True)
        rows = np.empty((end - first, entry.row_bytes), np.uint8) if out is None else out
        return read_rows(reader, entry, first, rows)

    def to_numpy(self, ids: Ids | None = None) -> Rows:
        """Return all rows in the order of batches, or those of `ids` in the order of `ids`.

        ids int64 [n], vectors [n, dim]; bfloat16, which numpy lacks, becomes float32 of the same values. Of an id that
        several rows have, the last row counts, as in a restore by ElasticDL. Raises NameNotFoundError, which is a
        KeyError, for ids without a row, and EdlCkptError when the result needs more memory than this machine has.
        """
        return self._rows(ids, bits=False)

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
            kind = as_dtype(np.empty(0, np.uint8), self._checkpoint.written_dtype(self.name), bits=bits).dtype
            return Rows(asked, np.empty((0, self.dim), kind))
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

    def _all(self, *, bits: bool) -> Rows:
        kind = as_dtype(np.empty(0, np.uint8), self._checkpoint.written_dtype(self.name), bits=bits).dtype
        rows, dim = self.rows, self.dim
        check_memory(rows * (8 + dim * kind.itemsize), f"table {self.name!r}", self._checkpoint.version.ref)
        whole = Rows(np.empty(rows, np.int64), np.empty((rows, dim), kind))
        tasks: list[Callable[[], None]] = []
        first = 0
        for shard, entry in self._checkpoint.entries(self.name):
            if entry.rows and entry.dim != dim:
                raise CorruptError(f"table {self.name!r} has rows of {entry.dim} and of {dim}", path=shard.file.path)
            tasks.append(partial(self._read_ids, shard, entry, whole.ids[first : first + entry.rows]))
            step = max(_PIECE_BYTES // max(entry.row_bytes, 1), 1)
            for at in range(0, entry.rows, step):
                some = whole.vectors[first + at : first + min(at + step, entry.rows)]
                tasks.append(partial(self._read_piece, shard, entry, at, some, bits=bits))
            first += entry.rows
        remote = open_store(self._checkpoint.version.location).properties.round_trips
        for _ in run_parallel(lambda task: task(), tasks, default_workers(remote=remote)):
            pass
        return whole

    def _read_piece(
        self, shard: ShardIndex, entry: TableEntry, first: int, vectors: npt.NDArray[Any], *, bits: bool
    ) -> None:
        """Fill vectors [n, dim] with the rows of a shard from `first` on; without a copy where the bytes are equal."""
        out = vectors.view(np.uint8) if vectors.itemsize * vectors.shape[1] == entry.row_bytes else None
        data = self._read(shard, entry, first, first + len(vectors), out)
        if data is not out:  # bfloat16 grows to float32; mapped files give views
            vectors[:] = as_dtype(data.reshape(-1), entry.dtype, bits=bits).reshape(vectors.shape)

    def _read_ids(self, shard: ShardIndex, entry: TableEntry, ids: I64) -> None:
        """Fill int64 [entry.rows] with the ids of a shard; CorruptError when there are more or fewer."""
        reader, at = self._checkpoint.reader(shard), 0
        for block in id_blocks(reader, entry):
            if at + len(block.ids) > entry.rows:
                check_row_count(reader, entry, at + len(block.ids), at_least=True)
            ids[at : at + len(block.ids)] = block.ids
            at += len(block.ids)
        check_row_count(reader, entry, at)

    def __repr__(self) -> str:
        kind = f"{counted(self.rows, 'row')} of {self.dim} {self.dtype}"
        return describe("TableView", escaped(self.name), kind, escaped(self.initializer))

    def _repr_html_(self) -> str:
        facts = (f"{counted(self.rows, 'row')} of {self.dim} {self.dtype}", self.initializer)
        entries = self._checkpoint.entries(self.name)
        rows = ((str(shard.file.ps_id), entry.rows, Bytes(entry.size_bytes)) for shard, entry in entries)
        return card("TableView", self.name, facts, [table(("shard", "rows", "size"), rows, len(entries), "shard")])


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
    owner = placement.row_owners(wanted, checkpoint.version.ps_num or 1)
    entries = checkpoint.entries(table)
    # Only the info of a table without rows claims a dim: no array gets that size.
    dim = max((entry.dim for _, entry in entries), default=0)
    row_bytes = max((entry.row_bytes for _, entry in entries), default=0)
    check_memory(
        2 * len(wanted) * row_bytes, f"{counted(len(wanted), 'row')} of table {table!r}", checkpoint.version.ref
    )
    kind = as_dtype(np.empty(0, np.uint8), checkpoint.table_dtype(table), bits=bits).dtype
    found = FoundRows(np.zeros((len(wanted), dim), kind), np.zeros(len(wanted), np.int64))
    for shard, entry in entries:
        mine = np.arange(len(wanted)) if everywhere else np.flatnonzero(owner == shard.file.ps_id)
        if everywhere or len(mine):
            _collect(checkpoint, shard, entry, wanted, mine, found, bits=bits)
    return found


def _collect(
    checkpoint: Checkpoint,
    shard: ShardIndex,
    entry: TableEntry,
    wanted: I64,
    mine: I64,
    found: FoundRows,
    *,
    bits: bool,
) -> None:
    """Search a shard for `wanted[mine]`; write the rows, and count those of each id."""
    reader = checkpoint.reader(shard)
    order = mine[np.argsort(wanted[mine])]
    ordered = wanted[order]
    places: list[I64] = []
    rows: list[I64] = []
    first = 0
    for block in id_blocks(reader, entry):
        at = np.searchsorted(ordered, block.ids)
        hits = np.flatnonzero(ordered[np.minimum(at, len(ordered) - 1)] == block.ids) if len(ordered) else at[:0]
        places.append(order[at[hits]])
        rows.append(hits + first)
        first += len(block.ids)
    check_row_count(reader, entry, first)
    if not rows:
        return
    place, row = np.concatenate(places), np.concatenate(rows)
    np.add.at(found.hits, place, 1)
    for some in close_together(row, entry.row_bytes):
        low, high = int(row[some.start]), int(row[some.stop - 1])
        buffer = np.empty((high - low + 1, entry.row_bytes), np.uint8)
        data = read_rows(reader, entry, low, buffer)[row[some] - low]
        found.vectors[place[some]] = as_dtype(data.reshape(-1), entry.dtype, bits=bits).reshape(len(data), entry.dim)


def close_together(row: I64, row_bytes: int) -> Iterator[slice]:
    """Cut ascending row numbers at gaps of more than a page, and where a stretch exceeds a batch."""
    gap = max(_NEAR_BYTES // max(row_bytes, 1), 1)
    window = row // max(VALUE_BATCH_BYTES // max(row_bytes, 1), 1)
    cuts = np.flatnonzero((np.diff(row) > gap) | (np.diff(window) > 0)) + 1
    yield from (slice(a, b) for a, b in pairwise([0, *cuts.tolist(), len(row)]) if b > a)
