"""Rows that become a matrix, in any order of their ids, which are 0 to n - 1: sorted on the local disk, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.converting.changes import OutTable
from edl_ckpt.core.moving.file_values import cast_to
from edl_ckpt.core.moving.move import Mover
from edl_ckpt.core.reading.blocks import IdPiece
from edl_ckpt.core.reading.pieces import count_rows, ids_at
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import PartitionedTable, Ranges, parts_needed

_MOST_PIECES: Final = 1 << 12
"""So many pieces of a table in disorder are read one by one."""


def move_sorted(mover: Mover, source: Checkpoint, table: OutTable, job: Job, directory: str) -> None:
    """Move a table of an opened version into a matrix, with temporary files in a directory."""
    cuts, width = mover.goal.cuts(table.name), table.row_bytes
    parts = parts_needed(table.rows * (8 + width))
    ranges = Ranges(np.arange(1, parts, dtype=np.int64) * table.rows // parts)
    pieces = _id_pieces(source, table, job)
    with PartitionedTable(source, table.source, pieces, parts=parts, assign=ranges, directory=directory) as cut:
        for part in cut.all_parts():
            if len(part.ids):
                cast = cast_to(part.dtype, table.dtype)
                rows = part.values if cast is None else mover.cast(part.values, cast)
                mover.sketch.add_rows(table.name, part.ids, rows)
                mover.put(cuts, int(part.ids[0]) * width, rows.reshape(-1))
                job.reporter.advance(rows.nbytes)


def _id_pieces(source: Checkpoint, table: OutTable, job: Job) -> Sequence[IdPiece]:
    """Return the ids of a table in pieces with their rows numbered."""
    total = sum(entry.values.size_bytes for shard in source.shards for entry in shard.tables)
    places = count_rows(source, ids_at(source, total // _MOST_PIECES, values=True), job)
    return [place.piece(source) for place in places if place.entry(source).name == table.source]
