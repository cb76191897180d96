"""The part of one parameter server, gathered from the shards that can have its rows.

Ids come first: each is read once, and the ids of the server are counted and kept. Then every array is allocated once,
and values are read into their places, straight from the file where all rows of a piece are the server's. So memory is
the result, and what a few threads have under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.packing import near, together
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, default_workers, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.buckets import Buckets
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import DenseEntry, ShardIndex, TableEntry
from edl_ckpt.core.reading.blocks import IdPiece, as_dtype, check_row_count, cuts, in_numpy, numpy_dtype, read_piece
from edl_ckpt.core.reading.table import Part, PartLike, Rows, check_fits
from edl_ckpt.core.sources.elasticdl.placement import MAX_PS_NUM, row_owners, variable_owner
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:
    from edl_ckpt.core.reading.reader import Checkpoint

ID_BYTES: Final = 256 << 10
"""Bytes of ids in one task: at most so many ids, which are decoded to eight times as many bytes."""
_REMOTE_ID_BYTES: Final = 512 << 10
_NEAR_BYTES: Final = 64 << 10
"""Bytes between two variables that are read along sooner than with a request for each of them."""
_THREADS: Final = 4
"""More threads would read a disk no faster, and each has its batches in memory."""
_FEW_ID_BYTES: Final = 2 << 20
_FEW_VALUE_BYTES: Final = 24 << 20
"""So many bytes of ids, or of values, one thread has read of a disk before others are of use."""
_VALUE_BYTES: Final = 4 << 20
"""Bytes of values in one task."""
_BATCH_BYTES: Final = 1 << 20
"""Bytes of values that are read at a time where only some of the rows are wanted."""


UNIQUE_AT_ONCE: Final = 1 << 20
"""Ids that are looked at together to find those that occur twice: 8 MiB."""
_BLOCK_IDS: Final = 1 << 16


class MisplacedError(Exception):
    """A row or a variable in a shard where nothing of it should be: other shards may have rows that belong here."""


@dataclass(frozen=True, slots=True)
class Server:
    """One parameter server: number `ps_id` of `ps_num`. UsageError for a number that no server can have."""

    ps_id: int
    ps_num: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "ps_id", whole_number("ps_id", self.ps_id))
        object.__setattr__(self, "ps_num", whole_number("ps_num", self.ps_num))
        if not 0 <= self.ps_id < self.ps_num <= MAX_PS_NUM:
            raise UsageError(f"ps_id {self.ps_id} of {self.ps_num}: expected 0 <= ps_id < ps_num")

    def may_own(self, shard: int, shards: int) -> bool:
        """Say whether a shard of so many can have rows of this server: the numbers agree modulo the common divisor.

        >>> [shard for shard in range(4) if Server(3, 6).may_own(shard, 4)]
        [1, 3]
        """
        step = math.gcd(shards, self.ps_num)
        return shard % step == self.ps_id % step


@dataclass(slots=True)
class _Span:
    """Rows [first, first + rows) of an entry, of which those chosen by `kept` go to the result, from index `at` on."""

    shard: ShardIndex
    entry: TableEntry
    first: int
    rows: int
    at: int
    kept: int
    keep: bulk.U8 | None
    """A bit for each row, packed; None where all rows are wanted."""

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return which rows are wanted: bool [rows]."""
        if self.keep is None:
            return np.ones(self.rows, np.bool_)
        return np.unpackbits(self.keep, count=self.rows).view(np.bool_)


@dataclass(slots=True)
class _Table:
    """The rows of one table that are the server's: their ids, and where their values lie."""

    name: str
    dtype: DType
    dim: int
    ids: bulk.I64
    rows: int = 0
    spans: list[_Span] = field(default_factory=list)

    def add(self, span: _Span, ids: bulk.I64) -> None:
        """Append rows; the array of ids grows in place, so there are never two of it."""
        rows = self.rows + len(ids)
        if rows > len(self.ids):
            self.ids.resize(rows + rows // 8, refcheck=False)
        self.ids[self.rows : rows] = ids
        self.rows = rows
        self.spans.append(span)


_Dense = tuple[DenseEntry, npt.NDArray[Any]]
"""A variable, and the array for its values."""


_Read = tuple[int, Callable[[], None]]
"""How many bytes one call reads, and the call."""


@dataclass(frozen=True, slots=True)
class Restoring:
    """Arrays to fill in place, how many threads read, and what gets warnings: by default Python's."""

    out: PartLike | None = None
    workers: int | None = None
    reporter: Reporter = WARNINGS
    dtypes: Mapping[str, DType] = field(default_factory=dict)
    """The dtypes that other shards show of tables without rows in those that are read."""


class Gathering:
    """The work on one part: `ids`, then `values`."""

    def __init__(self, source: Checkpoint, server: Server, shards: Sequence[ShardIndex], how: Restoring) -> None:
        workers = how.workers
        self._out, self._reporter, self._dtypes = how.out, how.reporter, how.dtypes
        self._remote = source.is_far
        if workers is not None:
            whole_number("workers", workers, least=1)
        most = REMOTE_WORKERS if self._remote else _THREADS
        self._workers = workers or min(default_workers(remote=self._remote), most)
        self._source = source
        self._server = server
        self._shards = {shard.file.ps_id: shard for shard in shards}
        self._skipping = len(shards) < (source.version.ps_num or 1)
        self._memory = ThreadMemory()

    def part(self) -> Part:
        """Return the part, in the arrays of the caller where it has some; MisplacedError before any value is read."""
        variables = self._variables()
        tables = self._ids()
        for table in tables.values():
            self._drop_repeated(table)
        shapes = {name: (entry.shape, numpy_dtype(entry.dtype)) for name, (_, entry) in variables.items()}
        vectors = {name: ((len(t.ids), t.dim), numpy_dtype(t.dtype)) for name, t in tables.items()}
        given_variables, given_vectors, given_ids = check_fits(self._out, shapes, vectors)
        needed = sum(math.prod(shape) * dtype.itemsize for shape, dtype in (*shapes.values(), *vectors.values()))
        check_memory(needed, "the part", self._source.version.ref)
        part = Part(
            self._source.shards[0].version if self._source.shards else 0,
            {n: _array(given_variables.get(n), *shape) for n, shape in shapes.items()},
            {
                n: Rows(_filled(given_ids.get(n), tables[n].ids), _array(given_vectors.get(n), *shape))
                for n, shape in vectors.items()
            },
            dict(self._source.infos),
        )
        total = sum(entry.size_bytes for _, entry in variables.values())
        total += sum(span.rows * span.entry.row_bytes for t in tables.values() for span in t.spans if span.kept)
        self._read(self._reads(part, variables, tables), total)
        for shard in self._shards.values():
            for file in shard.file.files:
                self._source.files[file.path].check_unchanged()
        return part

    def part_unless_misplaced(self) -> Part | None:
        """Return the part; warn, and return None, when a value of the shards belongs to another one."""
        try:
            return self.part()
        except MisplacedError as fault:
            self._reporter.warn(f"{fault}: all shards are read")
            return None

    def _variables(self) -> dict[str, tuple[ShardIndex, DenseEntry]]:
        """Return the variables of the server, by name in order."""
        found: dict[str, tuple[ShardIndex, DenseEntry]] = {}
        for shard in self._shards.values():
            for entry in shard.variables:
                if not in_numpy(entry.dtype):
                    if not entry.is_item:
                        self._reporter.warn(f"{entry.name!r} is left out: numpy has no {entry.dtype.name}")
                    continue
                if self._skipping and variable_owner(entry.name, shard.file.ps_num) != shard.file.ps_id:
                    raise MisplacedError(f"{shard.file.path} has variable {entry.name!r} of another shard")
                if variable_owner(entry.name, self._server.ps_num) == self._server.ps_id:
                    found.setdefault(entry.name, (shard, entry))
        return dict(sorted(found.items()))

    def _ids(self) -> dict[str, _Table]:
        """Read the ids of the chosen shards; return the rows of the server, by table."""
        tables = {name: self._new_table(name) for name in self._source.table_names}
        rows: dict[tuple[str, int], int] = {}
        pieces = list(self._pieces())
        few = not self._remote and sum(piece.end - piece.start for piece in pieces) < _FEW_ID_BYTES
        workers = 1 if few else self._workers
        for piece, (count, ids, keep) in zip(pieces, run_parallel(self._look, pieces, workers), strict=True):
            key = (piece.entry.name, piece.shard.file.ps_id)
            first = rows.get(key, 0)
            rows[key] = first + count
            if rows[key] > piece.entry.rows:
                check_row_count(piece.shard, piece.entry, rows[key], at_least=True)
            table = tables[piece.entry.name]
            table.add(_Span(piece.shard, piece.entry, first, count, table.rows, len(ids), keep), ids)
        for name, table in tables.items():
            table.ids.resize(table.rows, refcheck=False)  # the memory behind the last id is free again
            for shard, entry in self._entries(name):
                check_row_count(shard, entry, rows.get((name, shard.file.ps_id), 0))
        return tables

    def _entries(self, table: str) -> Iterator[tuple[ShardIndex, TableEntry]]:
        for shard, entry in self._source.entries(table):
            if shard.file.ps_id in self._shards:
                yield shard, entry

    def _new_table(self, name: str) -> _Table:
        entries = list(self._entries(name))
        typed = next((entry for _, entry in entries if entry.dtype), None)
        info = self._source.infos.get(name)
        noted_dim = info.dim if info else 0
        dim = typed.dim if typed else noted_dim
        dtype = (typed.dtype if typed else None) or self._dtypes.get(name) or self._source.written_dtype(name)
        # As many as can be expected; all of them where each shard that is read has rows of this server only.
        ps_num = self._server.ps_num
        expected = sum(entry.rows * math.gcd(shard.file.ps_num, ps_num) // ps_num for shard, entry in entries)
        expected = min(expected, sum(run.end - run.start for _, entry in entries for run in entry.ids))
        if any(shard.file.ps_num % ps_num for shard, _ in entries):
            expected += expected // 32
        check_memory(8 * expected, f"the ids of table {name!r}", self._source.version.ref)
        return _Table(name, dtype, dim, np.empty(expected, np.int64))

    def _pieces(self) -> Iterator[IdPiece]:
        size = _REMOTE_ID_BYTES if self._remote else ID_BYTES
        for name in self._source.table_names:
            for shard, entry in self._entries(name):
                for run in entry.ids:
                    yield from (IdPiece(shard, entry, run, *extent) for extent in cuts(run, run.start, run.end, size))

    def _look(self, piece: IdPiece) -> tuple[int, bulk.I64, bulk.U8 | None]:
        """Return (how many ids a piece has, those of the server, the bits of their rows or None for all)."""
        ids = read_piece(self._source, piece).ids
        file, server = piece.shard.file, self._server
        if self._skipping and not (row_owners(ids, file.ps_num) == file.ps_id).all():
            raise MisplacedError(f"{file.path} has rows of table {piece.entry.name!r} that belong to another shard")
        if server.ps_num == 1 or (self._skipping and file.ps_num % server.ps_num == 0):
            return len(ids), ids, None
        mine = row_owners(ids, server.ps_num) == server.ps_id
        own = ids[np.flatnonzero(mine)]  # three times as fast as by the marks themselves
        return len(ids), own, None if len(own) == len(ids) else np.packbits(mine)

    def _drop_repeated(self, table: _Table) -> None:
        """Keep the last row of each id, as ElasticDL's restore does."""
        last = _last_of_each(table.ids)
        if last is None:
            return
        for span in table.spans:
            mask = span.mask()
            mask[np.flatnonzero(mask)[~last[span.at : span.at + span.kept]]] = False
            span.keep = np.packbits(mask)
        lost = table.rows - int(np.count_nonzero(last))
        table.ids = table.ids[last]
        at = 0
        for span in table.spans:
            span.at, span.kept = at, int(np.count_nonzero(span.mask()))
            at += span.kept
        table.rows = at
        self._reporter.warn(
            f"{self._source.version.ref}: table {table.name!r}: {counted(lost, 'row')} with an id that occurs again:"
            " the last one counts, as in ElasticDL's restore"
        )

    def _reads(
        self, part: Part, variables: Mapping[str, tuple[ShardIndex, DenseEntry]], tables: Mapping[str, _Table]
    ) -> Iterator[_Read]:
        """Yield everything that is to be read into the arrays of a part."""
        for shard in self._shards.values():
            own = [(d, part.variables[n]) for n, (of, d) in variables.items() if of is shard and d.size_bytes]
            for some in _neighbours(own) if self._remote else ([dense] for dense in own):
                reader = self._source.reader(shard, some[0][0].values)
                if len(some) > 1:
                    yield sum(dense.size_bytes for dense, _ in some), partial(_read_at_once, reader, some)
                else:
                    yield from self._dense_reads(reader, *some[0])
        for name, table in tables.items():
            for span in table.spans:
                yield from self._row_reads(span, part.tables[name].vectors[span.at : span.at + span.kept])

    def _dense_reads(self, reader: RangeReader, entry: DenseEntry, array: npt.NDArray[Any]) -> Iterator[_Read]:
        flat = array.reshape(-1)
        step = _VALUE_BYTES // max(entry.dtype.itemsize, 1)
        for start in range(0, len(flat), step):
            some = flat[start : start + step]
            at = entry.values.start + start * entry.dtype.itemsize

            yield some.size * entry.dtype.itemsize, partial(self._read_elements, reader, at, entry.dtype, some)

    def _row_reads(self, span: _Span, vectors: npt.NDArray[Any]) -> Iterator[_Read]:
        """Yield reads of some rows each; `vectors` is the place of those that are wanted."""
        size = span.entry.row_bytes
        if not size or not span.kept:
            return
        step = max(_VALUE_BYTES // size, 1)
        cuts = range(0, span.rows, step)
        kept = [span.kept] if len(cuts) == 1 else np.add.reduceat(span.mask(), cuts, dtype=np.int64).tolist()
        at = 0
        for start, count in zip(cuts, kept, strict=True):
            some = slice(start, min(start + step, span.rows))
            yield (some.stop - start) * size, partial(self._read_rows, span, some, vectors[at : at + count])
            at += count

    def _read_rows(self, span: _Span, some: slice, place: npt.NDArray[Any]) -> None:
        """Read the rows that are wanted among some of a span: all of them at once, or those wanted from batches."""
        entry, reader = span.entry, self._source.reader(span.shard, span.entry.values)
        size = entry.row_bytes
        begin = entry.values.start + (span.first + some.start) * size
        if len(place) == some.stop - some.start:
            self._read_elements(reader, begin, entry.dtype, place.reshape(-1))
            return
        if not len(place):
            return
        wanted = np.flatnonzero(span.mask()[some])
        step = max((_VALUE_BYTES if self._remote else _BATCH_BYTES) // size, 1)
        buffer = self._memory.take(step * size)
        cuts = np.searchsorted(wanted, np.arange(0, int(wanted[-1]) + step + 1, step))
        for start, stop in pairwise(cuts.tolist()):
            if start == stop:
                continue
            low, high = int(wanted[start]), int(wanted[stop - 1]) + 1
            data = buffer[: (high - low) * size]
            reader.read_into(begin + low * size, data.data)
            rows = as_dtype(data, entry.dtype).reshape(high - low, entry.dim)
            np.take(rows, wanted[start:stop] - low, axis=0, out=place[start:stop], mode="clip")

    def _read_elements(self, reader: RangeReader, at: int, dtype: DType | None, flat: npt.NDArray[Any]) -> None:
        """Fill a one-dimensional array from its bytes in a file."""
        itemsize = dtype.itemsize if dtype else 0
        if flat.itemsize == itemsize:
            reader.read_into(at, flat.view(np.uint8).data)
            return
        step = _BATCH_BYTES // max(itemsize, 1)  # bfloat16, which becomes float32
        for start in range(0, len(flat), step):
            some = flat[start : start + step]
            data = np.empty(len(some) * itemsize, np.uint8)
            reader.read_into(at + start * itemsize, data.data)
            some[:] = as_dtype(data, dtype)

    def _read(self, reads: Iterable[_Read], total: int) -> None:
        """Do all reads, of so many bytes; small ones of a disk many in a task."""
        tasks = together(((one, one[0]) for one in reads), 0 if self._remote else _BATCH_BYTES)

        def run(task: list[_Read]) -> int:
            for _, read in task:
                read()
            return sum(size for size, _ in task)

        few = not self._remote and total < _FEW_VALUE_BYTES
        self._reporter.start("restore", total)
        for done in run_parallel(run, tasks, 1 if few else self._workers):
            self._reporter.advance(done)


def _last_of_each(ids: bulk.I64) -> npt.NDArray[np.bool_] | None:
    """Return which rows are the last ones of their ids, bool [n]; None when no id of int64 [n] occurs twice."""
    reads = [partial(ids.__getitem__, slice(at, at + _BLOCK_IDS)) for at in range(0, len(ids), _BLOCK_IDS)]
    if bool((ids[1:] > ids[:-1]).all()) or Buckets(len(ids), UNIQUE_AT_ONCE).have_all_once(reads):
        return None
    _, place = np.unique(ids[::-1], return_index=True)
    last = np.zeros(len(ids), np.bool_)
    last[len(ids) - 1 - place] = True
    return None if len(place) == len(ids) else last


def _neighbours(found: Sequence[_Dense]) -> Iterator[list[_Dense]]:
    """Yield small variables that lie near each other in a shard together: one request to remote storage for them."""
    for file in sorted({dense.values.file for dense, _ in found}):
        own = sorted((dense for dense in found if dense[0].values.file == file), key=_dense_extent)
        yield from (some for _, _, some in near(own, _dense_extent, _NEAR_BYTES, _VALUE_BYTES))


def _dense_extent(dense: _Dense) -> tuple[int, int]:
    return dense[0].values.start, dense[0].values.end


def _read_at_once(reader: RangeReader, some: Sequence[_Dense]) -> None:
    """Read variables with what lies between them, and put each into its array."""
    start = some[0][0].values.start
    data = np.frombuffer(reader.read(start, some[-1][0].values.end - start), np.uint8)
    for dense, array in some:
        own = data[dense.values.start - start : dense.values.end - start]
        array.reshape(-1)[:] = as_dtype(own, dense.dtype)


def _array(given: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.empty(shape, dtype) if given is None else given


def _filled(given: npt.NDArray[Any] | None, ids: bulk.I64) -> bulk.I64:
    if given is None:
        return ids
    given[:] = ids
    return given
