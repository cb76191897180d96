"""A look at all ids of a checkpoint before any value is read: how many rows a table has, and where it can be cut."""

from __future__ import annotations

import numpy as np

from edl_ckpt.core.base.parallel import default_workers, run_parallel
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.operations.export.content.tables import TableIds
from edl_ckpt.core.reading.blocks import IdPiece, read_piece
from edl_ckpt.core.reading.places import id_pieces
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.scan import number_rows
from edl_ckpt.core.sorting.partition import parts_needed, sample_step


def look_at_ids(checkpoint: Checkpoint, part_bytes: int) -> dict[str, TableIds]:
    """Return the ids of every table, by its name; CorruptError where there are more or fewer ids than rows."""
    pieces = list(id_pieces(checkpoint))
    names = checkpoint.table_names
    parts = {name: parts_of(checkpoint, name, part_bytes) for name in names}
    steps = {name: sample_step(rows_claimed(checkpoint, name), parts[name]) for name in names}
    workers = default_workers(remote=checkpoint.is_far)

    def look(piece: IdPiece) -> tuple[int, bulk.I64]:
        ids, step = read_piece(checkpoint, piece).ids, steps[piece.entry.name]
        return len(ids), ids[::step].copy() if step else ids[:0].copy()  # a view would keep all ids in memory

    counts, samples = list[int](), {name: [np.empty(0, np.int64)] for name in names}
    for piece, (rows, sample) in zip(pieces, run_parallel(look, pieces, workers), strict=True):
        counts.append(rows)
        samples[piece.entry.name].append(sample)
    numbered: dict[str, list[IdPiece]] = {name: [] for name in names}
    for piece in number_rows(checkpoint, pieces, counts):
        numbered[piece.entry.name].append(piece)
    return {
        name: TableIds(name, own, sum(piece.rows for piece in own), np.concatenate(samples[name]))
        for name, own in numbered.items()
    }


def rows_claimed(checkpoint: Checkpoint, name: str) -> int:
    """Return the rows of a table by its headers."""
    return sum(entry.rows for _, entry in checkpoint.entries(name))


def parts_of(checkpoint: Checkpoint, name: str, part_bytes: int) -> int:
    """Return in how many parts a table is sorted, by its headers."""
    size = sum(entry.values.size_bytes + 8 * entry.rows for _, entry in checkpoint.entries(name))
    return parts_needed(size, part_bytes)
