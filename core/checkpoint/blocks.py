"""Ids and rows of a table in one shard, in blocks: what every reader of values is built on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.arrays import BFLOAT16
from edl_ckpt.core.errors import CorruptError, LockedError, UnsupportedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DType, IdRun, ShardFile, TableEntry
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.words import counted

ID_BLOCK_BYTES: Final = 512 << 10
"""Id bytes read at a time: with what they decode to, about the L2 cache of a core."""
VALUE_BATCH_BYTES: Final = 1 << 20
"""Bytes of values that each worker reads at a time: with the arrays made from them, about the L2 cache of a core."""


class IdBlock(NamedTuple):
    """Ids that follow each other in a shard: their varints without tags, their values and lengths."""

    data: bulk.U8
    ids: bulk.I64
    lengths: bulk.U8


def as_dtype(data: bulk.U8, dtype: DType | None, *, bits: bool = False) -> npt.NDArray[np.generic]:
    """Return raw bytes as elements; bfloat16 as float32 of the same values, or with `bits` as `BFLOAT16`."""
    if dtype is None:
        return np.empty(0, np.float32)
    if dtype.name == "bfloat16":
        if bits:
            return data.view(BFLOAT16)
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    try:
        numpy_dtype = np.dtype(dtype.name).newbyteorder("<")
    except TypeError:
        raise UnsupportedError(f"numpy has no {dtype.name}") from None
    return data.view(numpy_dtype)


def id_blocks(reader: RangeReader, entry: TableEntry, *, block_bytes: int = ID_BLOCK_BYTES) -> Iterator[IdBlock]:
    """Yield a table's ids in blocks of about `block_bytes` bytes of varints, in order."""
    for run in entry.ids:
        at = run.start
        while at < run.end:
            block, at = read_id_block(reader, entry.name, run, at, min(at + block_bytes, run.end))
            yield block


def read_id_block(reader: RangeReader, table: str, run: IdRun, start: int, end: int) -> tuple[IdBlock, int]:
    """Return the ids whose whole varints lie in [start, end) of a run, and the offset of the next one."""
    data = np.empty(end - start, np.uint8)
    reader.read_into(start, data.data)
    try:
        whole = bulk.complete_prefix(data)
        values, lengths = bulk.decode_varints(data[:whole])
    except bulk.VarintError as error:
        raise bad_id(reader, table, start + error.position, str(error)) from None
    if end == run.end and whole < len(data):
        raise bad_id(reader, table, start + whole, "an id is cut short")
    if not run.tagged:
        return IdBlock(data[:whole], values, lengths), start + whole
    if len(values) % 2:
        whole -= int(lengths[-1])
        values, lengths = values[:-1], lengths[:-1]
    is_id = np.repeat(np.arange(len(values)) % 2 == 1, lengths)
    return IdBlock(data[:whole][is_id], values[1::2].copy(), lengths[1::2].copy()), start + whole


def bad_id(reader: RangeReader, table: str, offset: int, fault: str) -> CorruptError:
    """Return the error for ids that cannot be decoded."""
    return CorruptError(f"table {table!r}: {fault}", path=reader.path, offset=offset)


def raise_bad_ids(reader: RangeReader, entry: TableEntry) -> NoReturn:
    """Read a table's ids again, which cannot be decoded or are not as many as its rows, and raise CorruptError.

    Raises LockedError when they are right now.
    """
    check_row_count(reader, entry, sum(len(block.ids) for block in id_blocks(reader, entry)))
    raise LockedError(
        f"table {entry.name!r}: its ids changed while they were read",
        path=reader.path,
        offset=entry.offset,
        hint="another process is writing the shard, or the storage returns wrong bytes; try again",
    )


def check_placement(reader: RangeReader, file: ShardFile, entry: TableEntry, ids: bulk.I64) -> None:
    """Raise CorruptError when one of some ids of a table, int64 [n], belongs to another shard than their file."""
    if not bulk.have_owner(ids, file.ps_num, file.ps_id):
        wrong = int(ids[np.mod(ids, file.ps_num) != file.ps_id][0])
        raise CorruptError(
            f"table {entry.name!r}: id {wrong} belongs to shard {wrong % file.ps_num}",
            code="misplaced-row",
            path=reader.path,
            offset=entry.offset,
        )


def read_rows(reader: RangeReader, entry: TableEntry, first: int, rows: bulk.U8) -> bulk.U8:
    """Return the rows from `first` on, as many as uint8 [n, row_bytes] has; CorruptError past the last row.

    The result is the array, or a view of the file when the reader can give one without a copy.
    """
    if first + len(rows) > entry.rows:
        check_row_count(reader, entry, first + len(rows), at_least=True)
    if not rows.size:
        return rows
    at = entry.values.start + first * entry.row_bytes
    view = reader.view(at, rows.nbytes)
    if view is not None:
        return np.frombuffer(view, np.uint8).reshape(rows.shape)
    reader.read_into(at, rows.reshape(-1).data)
    return rows


def check_row_count(reader: RangeReader, entry: TableEntry, ids: int, *, at_least: bool = False) -> None:
    """Raise CorruptError when a table has another number of ids than of rows."""
    if ids != entry.rows:
        more = "or more " if at_least else ""
        raise CorruptError(
            f"table {entry.name!r} has {ids} {more}ids for {counted(entry.rows, 'row')}",
            code="id-row-mismatch",
            path=reader.path,
            offset=entry.offset,
        )
