"""Ids and rows of a table in one shard, in blocks: what every reader of values is built on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import BFLOAT16
from edl_ckpt.core.base.errors import CorruptError, LockedError, UnsupportedError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import misplaced
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import DenseEntry, Encoding, IdRun, ShardIndex, TableEntry
from edl_ckpt.core.reading.stored_sums import SummedReader
from edl_ckpt.core.sources.elasticdl.placement import row_owners
from edl_ckpt.core.storage.interface import RangeReader, is_on_disk

if TYPE_CHECKING:
    from edl_ckpt.core.reading.reader import Checkpoint


ID_BLOCK_BYTES: Final = 512 << 10
"""Id bytes read at a time: with what they decode to, about the L2 cache of a core."""
VALUE_BATCH_BYTES: Final = 1 << 20
"""Bytes of values that each worker reads at a time: with the arrays made from them, about the L2 cache of a core."""
_NEAR_BYTES: Final = 4096
"""Runs of bytes that are less than a page apart are read at once."""
_MANY_RUNS: Final = 1000
"""For so many stretches, a call of Python for each costs more than reading every run by itself."""
_LARGE_BYTES: Final = 64 << 10
"""Runs of so many bytes are read one by one, to where they belong."""


class Sums(Protocol):
    """Takes the bytes that are read, for the checksums of their chunks."""

    def add(self, reader: RangeReader, offset: int, data: memoryview) -> None:
        """Add the bytes of a file from an offset on; several threads call it."""


@dataclass(frozen=True, slots=True)
class IdPiece:
    """Ids of one table in one shard: those of a run that begin in [start, end). `first_row` is -1 until counted.

    Where varints begin is only known when they are read, so a piece is arithmetic, and takes no request.
    """

    shard: ShardIndex
    entry: TableEntry
    run: IdRun
    start: int
    end: int
    first_row: int = -1
    rows: int = 0


class IdBlock:
    """Ids that follow each other in a shard: their values, int64 [n], and as varints, which few readers ask for."""

    __slots__ = ("_data", "_lengths", "ids")

    def __init__(self, ids: bulk.I64, data: bulk.U8 | None = None, lengths: bulk.U8 | None = None) -> None:
        self.ids, self._data, self._lengths = ids, data, lengths

    @property
    def data(self) -> bulk.U8:
        """Return their varints, without tags."""
        if self._data is None:
            self._data = bulk.encode_varints(self.ids)
        return self._data

    @property
    def lengths(self) -> bulk.U8:
        """Return the lengths of their varints."""
        if self._lengths is None:
            self._lengths = bulk.varint_lengths(self.ids)
        return self._lengths


def as_dtype(data: bulk.U8, dtype: DType | None, *, bits: bool = False) -> npt.NDArray[np.generic]:
    """Return raw bytes as elements; bfloat16 as float32 of the same values, or with `bits` as `BFLOAT16`.

    With `bits`, elements of other dtypes that numpy lacks are unsigned integers.
    """
    if dtype is None:
        return np.empty(0, np.float32)
    if dtype.name == "bfloat16":
        if bits:
            return data.view(BFLOAT16)
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if not in_numpy(dtype, bits=bits):
        raise UnsupportedError(f"numpy has no {dtype.name}")
    if not in_numpy(dtype):
        return data.view(f"<u{dtype.itemsize}")
    return data.view(np.dtype(dtype.name).newbyteorder("<"))


def in_numpy(dtype: DType, *, bits: bool = False) -> bool:
    """Say whether `as_dtype` can return elements of a dtype."""
    if bits and not dtype.is_item:
        return True
    return dtype.is_ours or (not dtype.is_item and dtype.name.startswith("complex") and dtype.itemsize > 4)


def numpy_dtype(dtype: DType | None, *, bits: bool = False) -> np.dtype[Any]:
    """Return the dtype of arrays that `as_dtype` makes."""
    return as_dtype(np.empty(0, np.uint8), dtype, bits=bits).dtype


def id_blocks(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry) -> Iterator[tuple[int, bulk.I64]]:
    """Yield (the number of the first row, ids int64 [n]) in blocks of some bytes, in order.

    Raises CorruptError when there are more ids than rows, or fewer.
    """
    first = 0
    for run in entry.ids:
        for start, end in cuts(run, run.start, run.end, ID_BLOCK_BYTES):
            ids = read_piece(checkpoint, IdPiece(shard, entry, run, start, end)).ids
            if first + len(ids) > entry.rows:
                check_row_count(shard, entry, first + len(ids), at_least=True)
            yield first, ids
            first += len(ids)
    check_row_count(shard, entry, first)


def cuts(run: IdRun, first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the extents of about `step` bytes of [first, last) in a run whose ids can be read one by one.

    Tagged ids stay together.
    """
    size = run.encoding.itemsize or 1
    step = last - first if run.tagged else max(step // size, 1) * size
    for start in range(first, last, step):
        yield start, min(start + step, last)


def read_piece(checkpoint: Checkpoint, piece: IdPiece, sums: Sums | None = None) -> IdBlock:
    """Return the ids of a piece, and add their bytes to checksums, tagged ones excepted."""
    run, table = piece.run, piece.entry.name
    if not run.is_stored:
        first = run.first + (piece.start - run.start) // run.encoding.itemsize
        return IdBlock(np.arange(first, first + count_ids(checkpoint, piece), dtype=np.int64))
    reader = checkpoint.reader(piece.shard, run)
    start, data = _id_bytes(reader, table, run, piece.start, piece.end)
    if sums is not None and not run.tagged:
        sums.add(reader, start, data.data)
    if run.encoding.itemsize:
        return IdBlock(data.view(run.encoding.value).astype(np.int64))
    try:
        values, lengths = bulk.decode_varints(data)
    except bulk.VarintError as error:
        cut = str(error) == bulk.CUT_SHORT and start + len(data) == run.end
        raise _bad_id(reader, table, start + error.position, "an id is cut short" if cut else str(error)) from None
    if not run.tagged:
        return IdBlock(values, data, lengths)
    if len(values) % 2:
        raise _bad_id(reader, table, start + len(data) - int(lengths[-1]), "an id is cut short")
    is_id = np.repeat(np.arange(len(values)) % 2 == 1, lengths)
    return IdBlock(values[1::2].copy(), data[is_id], lengths[1::2].copy())


def count_ids(checkpoint: Checkpoint, piece: IdPiece) -> int:
    """Return how many ids a piece has, without their values."""
    run, size = piece.run, piece.end - piece.start
    if run.encoding.itemsize:
        return size // run.encoding.itemsize
    reader = checkpoint.reader(piece.shard, run)
    data = _id_bytes(reader, piece.entry.name, run, piece.start, piece.end)[1]
    return bulk.count_varints(data) // (2 if run.tagged else 1)


def _id_bytes(reader: RangeReader, table: str, run: IdRun, start: int, end: int) -> tuple[int, bulk.U8]:
    """Return (the offset of the first id that begins in [start, end), the bytes of all that do).

    Where varints begin is only known when they are read, so some bytes before and after are read too.
    """
    is_varint = run.encoding is Encoding.VARINT
    before, after = (int(start > run.start), min(bulk.MAX_VARINT_BYTES, run.end - end)) if is_varint else (0, 0)
    data = np.empty(before + end - start + after, np.uint8)
    reader.read_into(start - before, data.data)
    first, last = 0, len(data) - after
    if before:
        first = _after_first_end(reader, table, run, data[: bulk.MAX_VARINT_BYTES + 1], start)
    if after:
        last += _after_first_end(reader, table, run, data[last - 1 :], end) - 1
    return start - before + first, data[first : max(first, last)]


def _after_first_end(reader: RangeReader, table: str, run: IdRun, data: bulk.U8, near: int) -> int:
    """Return how many bytes there are up to the first one that ends a varint, with it."""
    ends = np.flatnonzero(data < 0x80)
    if len(ends):
        return int(ends[0]) + 1
    if near - 1 + len(data) >= run.end:
        return len(data)
    raise _bad_id(reader, table, near, bulk.TOO_LONG)


def _bad_id(reader: RangeReader, table: str, offset: int, fault: str) -> CorruptError:
    """Return the error for ids that cannot be decoded."""
    return CorruptError(f"table {table!r}: {fault}", path=reader.path, offset=offset)


def raise_bad_ids(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry) -> NoReturn:
    """Read a table's ids again, which cannot be decoded or are not as many as its rows, and raise CorruptError.

    Raises LockedError when they are right now.
    """
    for _ in id_blocks(checkpoint, shard, entry):
        pass
    raise LockedError(
        f"table {entry.name!r}: its ids changed while they were read",
        path=shard.path(entry.values),
        offset=entry.offset,
        hint="another process is writing the shard, or the storage returns wrong bytes; try again",
    )


def check_placement(shard: ShardIndex, entry: TableEntry, ids: bulk.I64) -> None:
    """Raise CorruptError when one of some ids of a table, int64 [n], belongs to another shard than theirs."""
    file = shard.file
    wrong = ids[misplaced(Placement.MOD, ids, file.ps_num, file.ps_id)[:1]]
    if len(wrong):
        raise CorruptError(
            f"table {entry.name!r}: id {wrong[0]} belongs to shard {row_owners(wrong, file.ps_num)[0]}",
            code="misplaced-row",
            path=file.path,
            offset=entry.offset,
        )


def read_rows(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, first: int, rows: bulk.U8) -> bulk.U8:
    """Return the rows from `first` on, as many as uint8 [n, row_bytes] has; CorruptError past the last row.

    The result is the array, or a view of the file when the reader can give one without a copy.
    """
    if first + len(rows) > entry.rows:
        check_row_count(shard, entry, first + len(rows), at_least=True)
    if not rows.size:
        return rows
    reader = checkpoint.reader(shard, entry.values)
    at = entry.values.start + first * entry.row_bytes
    view = reader.view(at, rows.nbytes)
    if view is not None:
        return np.frombuffer(view, np.uint8).reshape(rows.shape)
    reader.read_into(at, rows.reshape(-1).data)
    return rows


def read_vectors(
    checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, first: int, count: int
) -> npt.NDArray[np.generic]:
    """Return rows [first, first + count) as [n, dim] elements, perhaps a view of the file; errors as `read_rows`."""
    rows = read_rows(checkpoint, shard, entry, first, np.empty((count, entry.row_bytes), np.uint8))
    return as_dtype(rows.reshape(-1), entry.dtype).reshape(count, entry.dim)


def read_elements(
    checkpoint: Checkpoint, shard: ShardIndex, entry: DenseEntry, first: int, count: int, *, bits: bool = False
) -> npt.NDArray[np.generic]:
    """Return elements [first, first + count) of a dense variable, in C order, as `as_dtype` does."""
    data = np.empty(count * entry.dtype.itemsize, np.uint8)
    checkpoint.reader(shard, entry.values).read_into(entry.values.start + first * entry.dtype.itemsize, data.data)
    return as_dtype(data, entry.dtype, bits=bits)


def read_runs(reader: RangeReader, starts: bulk.I64, run_bytes: int, *, workers: int = 1) -> bulk.U8:
    """Return the runs of bytes that begin at some offsets, int64 [n], as uint8 [n, run_bytes].

    Those that lie less than a page apart are read at once, in stretches of at most a batch; very many, on a disk, by
    the kernel one by one.
    """
    out = np.empty((len(starts), run_bytes), np.uint8)
    if not out.size:
        return out
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    gap = -1 if run_bytes >= _LARGE_BYTES else run_bytes + _NEAR_BYTES
    cuts = np.flatnonzero((np.diff(ordered) > gap) | (np.diff(ordered // VALUE_BATCH_BYTES) > 0)) + 1
    if len(cuts) >= _MANY_RUNS and isinstance(reader, SummedReader):
        reader = reader.unsummed(int(ordered[0]), int(ordered[-1]) + run_bytes)
    if bulk.kernel is not None and is_on_disk(reader) and len(cuts) >= _MANY_RUNS:
        data = np.empty_like(out)
        if failed := bulk.kernel.read_runs(reader.descriptor, ordered, run_bytes, data):
            raise reader.failed(failed[1], int(ordered[failed[0]]))
        reader.add_moved(out.nbytes)
        out[order] = data
        return out

    def read(edges: tuple[int, int]) -> None:
        some = slice(*edges)
        low = int(ordered[some.start])
        if some.stop - some.start == 1:
            reader.read_into(low, out[order[some.start]].data)
            return
        data = np.empty(int(ordered[some.stop - 1]) + run_bytes - low, np.uint8)
        reader.read_into(low, data.data)
        out[order[some]] = np.lib.stride_tricks.sliding_window_view(data, run_bytes)[ordered[some] - low]

    run_all(read, pairwise([0, *cuts.tolist(), len(ordered)]), workers)
    return out


def check_row_count(shard: ShardIndex, entry: TableEntry, ids: int, *, at_least: bool = False) -> None:
    """Raise CorruptError when a table has another number of ids than of rows."""
    if ids != entry.rows:
        more = "or more " if at_least else ""
        raise CorruptError(
            f"table {entry.name!r} has {ids} {more}ids for {counted(entry.rows, 'row')}",
            code="id-row-mismatch",
            path=shard.path(entry.values),
            offset=entry.offset,
        )
