"""Tables and variables in pieces, which several workers read independently of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.blocks import IdBlock, bad_id, check_row_count, read_id_block, read_rows
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DenseEntry, IdRun, ShardIndex, TableEntry
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.storage.interface import RangeReader

PIECE_BYTES: Final = 1 << 20
"""Bytes of ids, or of a dense variable, in one task."""


@dataclass(frozen=True, slots=True)
class IdPiece:
    """Ids of one table in one shard: the varints in [start, end) of a run. `first_row` is -1 until counted."""

    shard: ShardIndex
    entry: TableEntry
    run: IdRun
    start: int
    end: int
    first_row: int = -1
    rows: int = 0


def id_pieces(checkpoint: Checkpoint, piece_bytes: int = PIECE_BYTES) -> Iterator[IdPiece]:
    """Cut the ids of all tables, by table, shard and row, at boundaries between varints."""
    for table in checkpoint.table_names:
        for shard, entry in checkpoint.entries(table):
            for run in entry.ids:
                yield from _pieces_of_run(checkpoint, shard, entry, run, piece_bytes)


def _pieces_of_run(
    checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, run: IdRun, piece_bytes: int
) -> Iterator[IdPiece]:
    reader = checkpoint.reader(shard)
    start = run.start
    while start < run.end:
        end = run.end if run.tagged else _boundary(reader, entry.name, run, start + piece_bytes)
        yield IdPiece(shard, entry, run, start, end)
        start = end


def _boundary(reader: RangeReader, table: str, run: IdRun, near: int) -> int:
    """Return the first offset from `near` on at which a varint of the run begins, or the run's end."""
    if near >= run.end:
        return run.end
    tail = reader.read(near - 1, min(bulk.MAX_VARINT_BYTES + 1, run.end - near + 1))
    for step, byte in enumerate(tail):
        if byte < 0x80:
            return near + step
    if near - 1 + len(tail) == run.end:
        return run.end
    raise bad_id(reader, table, near, bulk.TOO_LONG)


def read_piece(checkpoint: Checkpoint, piece: IdPiece) -> IdBlock:
    """Return the ids of a piece."""
    reader = checkpoint.reader(piece.shard)
    run = IdRun(piece.start, piece.end, piece.run.tagged)
    return read_id_block(reader, piece.entry.name, run, piece.start, piece.end)[0]


def count_rows(checkpoint: Checkpoint, pieces: Iterable[IdPiece], workers: int) -> list[IdPiece]:
    """Return all pieces of a checkpoint with their rows counted and numbered; raises as `number_rows` does."""

    def count(piece: IdPiece) -> int:
        data = np.empty(piece.end - piece.start, np.uint8)
        checkpoint.reader(piece.shard).read_into(piece.start, data.data)
        return bulk.count_varints(data) // (2 if piece.run.tagged else 1)

    listed = list(pieces)
    return number_rows(checkpoint, listed, list(run_parallel(count, listed, workers)))


def number_rows(checkpoint: Checkpoint, pieces: list[IdPiece], counts: list[int]) -> list[IdPiece]:
    """Return all pieces of a checkpoint with their rows numbered, from the number of rows of each.

    Raises CorruptError where an entry has more or fewer ids than rows.
    """
    numbered: list[IdPiece] = []
    totals: dict[tuple[int, str], int] = {}
    for piece, rows in zip(pieces, counts, strict=True):
        key = (piece.shard.file.ps_id, piece.entry.name)
        first = totals.get(key, 0)
        totals[key] = first + rows
        numbered.append(IdPiece(piece.shard, piece.entry, piece.run, piece.start, piece.end, first, rows))
    for shard in checkpoint.shards:
        for entry in shard.tables:
            total = totals.get((shard.file.ps_id, entry.name), 0)
            check_row_count(checkpoint.reader(shard), entry, total)
    return numbered


def row_batches(checkpoint: Checkpoint, piece: IdPiece, rows: int, batch_bytes: int) -> Iterator[tuple[slice, bulk.U8]]:
    """Yield (rows of the piece, their values uint8 [n, row_bytes]) in batches of about `batch_bytes`.

    All batches share one buffer, which the next one overwrites: fresh memory costs more than the read.
    """
    reader = checkpoint.reader(piece.shard)
    step = min(max(1, batch_bytes // max(piece.entry.row_bytes, 1)), rows)
    buffer = np.empty((step, piece.entry.row_bytes), np.uint8)
    for start in range(0, rows, step or 1):
        some = slice(start, min(start + step, rows))
        values = buffer[: some.stop - some.start]
        yield some, read_rows(reader, piece.entry, piece.first_row + some.start, values)


@dataclass(frozen=True, slots=True)
class DensePiece:
    """Bytes [start, start + size) of the values of a dense variable."""

    shard: ShardIndex
    entry: DenseEntry
    start: int
    size: int


def dense_pieces(checkpoint: Checkpoint, piece_bytes: int = PIECE_BYTES) -> Iterator[DensePiece]:
    """Cut every dense variable into pieces of whole sketch chunks; an empty one gives one empty piece."""
    step = max(piece_bytes // bulk.CHUNK_BYTES, 1) * bulk.CHUNK_BYTES
    for shard in checkpoint.shards:
        for entry in shard.variables:
            for start in range(0, max(entry.size_bytes, 1), step):
                yield DensePiece(shard, entry, start, min(step, entry.size_bytes - start))


def read_dense(checkpoint: Checkpoint, piece: DensePiece) -> bulk.U8:
    """Return the bytes of a piece: uint8 [size]."""
    data = np.empty(piece.size, np.uint8)
    if piece.size:
        checkpoint.reader(piece.shard).read_into(piece.entry.values.start + piece.start, data.data)
    return data
