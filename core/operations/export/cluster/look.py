"""A look at all ids of a checkpoint by tasks: how many there are, and samples by which they are cut into ranges."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.job import FunctionWork
from edl_ckpt.core.base.parallel import RESULT_BYTES, Advance
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.operations.export.content.ids import rows_claimed
from edl_ckpt.core.operations.export.content.tables import TableIds
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.places import IdsAt, ids_at, in_tasks
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.scan import number_rows

_SAMPLES: Final = 256
"""Ids of a sample for each range: ranges then differ by a few percent."""
PIECE_BYTES: Final = 16 << 20
"""The most bytes of rows, with their ids, in one piece."""


class Look(NamedTuple):
    """What a look at some ids gives: how many there are of each piece, the lowest and highest, and a sample of each."""

    rows: list[int]
    bounds: list[tuple[int, int]]
    samples: list[bulk.I64]


def _look(checkpoint: Checkpoint, task: tuple[IdsAt, ...], _: Advance, *, shares: Mapping[str, float]) -> Look:
    """Look at some pieces; a piece has the same sample each time. `shares` is the part of each table to draw."""
    found = Look([], [], [])
    for place in task:
        piece = place.piece(checkpoint)
        ids = read_piece(checkpoint, piece).ids
        share = shares.get(piece.entry.name, 0.0)
        count = min(round(len(ids) * share) + 1, RESULT_BYTES // 8 // len(task)) if share else 0
        drawn = np.random.default_rng([place.shard, place.table, place.start]).integers(0, len(ids) or 1, count)
        found.rows.append(len(ids))
        found.bounds.append((int(ids.min()), int(ids.max())) if len(ids) else (1, 0))
        found.samples.append(ids[drawn] if len(ids) else ids[:0].copy())
    return found


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What is known of the ids of each table: its pieces, numbered, the lowest and highest id of each, and a sample."""

    places: dict[str, list[IdsAt]] = field(default_factory=dict)
    bounds: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    samples: dict[str, bulk.I64] = field(default_factory=dict)

    def within(self, name: str, low: int, high: int) -> tuple[int, int]:
        """Return the numbers of the pieces between which all ids in a range are."""
        lowest, highest = np.array(self.bounds[name], np.int64).reshape(-1, 2).T
        some = np.flatnonzero((lowest <= high) & (highest >= low) & (lowest <= highest))
        return (int(some[0]), int(some[-1]) + 1) if len(some) else (0, 0)

    def ids(self, checkpoint: Checkpoint) -> dict[str, TableIds]:
        """Return the ids of all tables for who needs no sample."""
        none = np.empty(0, np.int64)
        return {
            name: TableIds(name, [at.piece(checkpoint) for at in places], sum(at.rows for at in places), none)
            for name, places in self.places.items()
        }


def look_on_cluster(checkpoint: Checkpoint, executor: ClusterExecutor, ranges: int) -> LookedAt:
    """Let the workers look at all ids, which may be cut into so many ranges.

    Raises CorruptError where there are more or fewer ids than rows.
    """
    task_bytes = min(executor.task_bytes(checkpoint.version.size_bytes), PIECE_BYTES)
    places = list(ids_at(checkpoint, task_bytes, values=True))
    rows = {name: max(rows_claimed(checkpoint, name), 1) for name in checkpoint.table_names}
    shares = {name: min(_SAMPLES * ranges / rows[name], 1.0) if ranges > 1 else 0.0 for name in rows}
    looks: list[Look] = []
    work = FunctionWork(CheckpointValue.of(checkpoint), partial(_look, shares=shares))
    with closing(executor.run(work, checkpoint, in_tasks(places, task_bytes), lambda _: None)) as results:
        looks += results
    pieces = [place.piece(checkpoint) for place in places]
    numbered = number_rows(checkpoint, pieces, [rows for look in looks for rows in look.rows])
    bounds = [bound for look in looks for bound in look.bounds]
    samples = [sample for look in looks for sample in look.samples]
    found = LookedAt({n: [] for n in checkpoint.table_names}, {n: [] for n in checkpoint.table_names})
    drawn = {name: [np.empty(0, np.int64)] for name in checkpoint.table_names}
    for place, piece, bound, sample in zip(places, numbered, bounds, samples, strict=True):
        name = piece.entry.name
        found.places[name].append(place._replace(first_row=piece.first_row, rows=piece.rows))
        found.bounds[name].append(bound)
        drawn[name].append(sample)
    found.samples.update({name: np.concatenate(some) for name, some in drawn.items()})
    return found
