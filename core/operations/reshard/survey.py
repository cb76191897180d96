"""The survey of a version: everything that the plan of a reshard needs, from headers and ids, without a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.checkpoint.duplicates import IdOrder, check_unique, order_of
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, IdPiece, id_pieces, number_rows, read_piece
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import check_ps_num
from edl_ckpt.core.format.model import DType, TableInfo, Version
from edl_ckpt.core.format.shard_layout import PlacedVariable
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.words import counted, describe, escaped

_MAX_PIECES: Final = 4096


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table of the source; `dtype` is None when it has no rows."""

    info: TableInfo
    dtype: DType | None

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row, 0 without rows."""
        return self.info.dim * self.dtype.itemsize if self.dtype else 0


@dataclass(frozen=True, slots=True, eq=False)
class PieceCounts:
    """The rows of one piece of ids that go to each target shard, and the bytes of their ids: int64 [to_ps]."""

    table: str
    rows: bulk.I64
    id_bytes: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """A version, counted for `to_ps` parameter servers. A plan needs nothing else of it."""

    source: Version
    to_ps: int
    number: int
    """The version number that its shards contain."""
    variables: tuple[PlacedVariable, ...]
    tables: tuple[SurveyedTable, ...]
    counts: tuple[PieceCounts, ...]
    """Of each piece, in the order of the rows in the target: by table, source shard and row."""
    pieces: tuple[IdPiece, ...]
    """The same pieces with their places in the source: the execution reads them again."""
    bytes_read: int
    kept: Mapping[int, RangeReader] = field(default_factory=dict)
    """Readers that have the ids of far shards on the local disk: the execution takes them over."""

    @property
    def id_bytes(self) -> int:
        """Return the bytes of all ids."""
        return sum(int(piece.id_bytes.sum()) for piece in self.counts)

    @property
    def widest_row_bytes(self) -> int:
        """Return the bytes of the widest row of all tables."""
        return max((table.row_bytes for table in self.tables), default=0)

    def __repr__(self) -> str:
        return describe(
            "Survey",
            escaped(self.source.ref),
            f"for {counted(self.to_ps, 'server')}",
            counted(len(self.variables), "variable"),
            counted(len(self.tables), "table"),
        )


def survey_ids(
    checkpoint: Checkpoint,
    ps_num: int,
    *,
    workers: int | None = None,
    piece_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    reporter: Reporter = SILENT,
) -> Survey:
    """Read all ids of a checkpoint and count those of each of `ps_num` servers; no value is read.

    `piece_bytes` is how many bytes of ids are one task, here and when the rows are moved. `max_memory_bytes` bounds the
    ids that are sorted to find duplicates. Raises UsageError for a
    number of servers that cannot be, CorruptError for ids that cannot be decoded, are not as many as rows, or that a
    table has twice.
    """
    check_ps_num(ps_num)
    if workers is None:
        workers = default_workers(remote=open_store(checkpoint.version.location).properties.round_trips)
    kept = checkpoint.keep_ids(workers)
    pieces = list(id_pieces(checkpoint, piece_bytes or usual_piece_bytes(total_id_bytes(checkpoint))))
    reporter.start("reading ids", sum(p.end - p.start for p in pieces))

    def count(piece: IdPiece) -> tuple[PieceCounts, IdOrder]:
        block = read_piece(checkpoint, piece)
        rows, id_bytes = bulk.tally(bulk.owners(block.ids, ps_num), block.lengths, ps_num)
        reporter.advance(piece.end - piece.start)
        return PieceCounts(piece.entry.name, rows, id_bytes), order_of(block.ids, piece.shard.file)

    counted = list(run_parallel(count, pieces, workers))
    counts = tuple(counts for counts, _ in counted)
    numbered = number_rows(checkpoint, pieces, [order.rows for _, order in counted])
    orders = [order for _, order in counted]
    # Sorting takes memory and a core, and waits for no request.
    sorters = min(workers, default_workers())
    check_unique(checkpoint, pieces, orders, workers=sorters, max_memory_bytes=max_memory_bytes)
    variables = {v.name: v for shard in checkpoint.shards for v in shard.variables}
    return Survey(
        source=checkpoint.version,
        to_ps=ps_num,
        number=checkpoint.shards[0].version if checkpoint.shards else 0,
        variables=tuple(PlacedVariable(v.name, v.dtype, v.shape, v.size_bytes) for v in variables.values()),
        tables=tuple(
            SurveyedTable(checkpoint.infos[name], checkpoint.table_dtype(name)) for name in checkpoint.table_names
        ),
        counts=counts,
        pieces=tuple(numbered),
        bytes_read=checkpoint.bytes_read,
        kept=kept,
    )


def total_id_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all ids in the source's files."""
    return sum(run.end - run.start for s in checkpoint.shards for t in s.tables for run in t.ids)


def widest_row_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the widest row of all tables."""
    return max((table.row_bytes for shard in checkpoint.shards for table in shard.tables), default=0)


def usual_piece_bytes(id_bytes: int) -> int:
    """Return the bytes of a piece of ids where memory is not limited: few enough for a cache, and not too many pieces.

    >>> usual_piece_bytes(1000) == usual_piece_bytes(1 << 30), usual_piece_bytes(1 << 40)
    (True, 268435456)
    """
    return max(PIECE_BYTES // 2, id_bytes // _MAX_PIECES)
