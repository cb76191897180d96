"""A look at all ids of a checkpoint before any value is read: how many rows a table has, and where it can be cut."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.job import FunctionWork
from edl_ckpt.core.base.parallel import Advance, Executor, Threads, default_workers
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.operations.export.content.tables import TableIds
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.pieces import IdsAt, ids_at, in_tasks, number_rows
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import parts_needed, sample_step

_ID_BYTES: Final = 8


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
        """Return the ids of all tables, by their names."""
        return {
            name: TableIds(name, [at.piece(checkpoint) for at in own], sum(at.rows for at in own), self.samples[name])
            for name, own in self.places.items()
        }


class _Look(NamedTuple):
    """How many ids a piece has, the lowest and highest, and a sample."""

    rows: int
    bounds: tuple[int, int]
    sample: bulk.I64


def _look(
    checkpoint: Checkpoint, task: tuple[IdsAt, ...], _: Advance, *, steps: Mapping[str, int], most: int
) -> list[_Look]:
    """Look at some pieces, whose samples have at most so many ids together."""
    found = []
    for place in task:
        piece = place.piece(checkpoint)
        ids, step = read_piece(checkpoint, piece).ids, steps[piece.entry.name]
        if not step or not len(ids):
            found.append(_Look(len(ids), (1, 0), np.empty(0, np.int64)))
            continue
        sample = ids[:: max(step, -(-len(ids) * len(task) // most))].copy()  # a view would keep all ids in memory
        found.append(_Look(len(ids), (int(ids.min()), int(ids.max())), sample))
    return found


def look(checkpoint: Checkpoint, executor: Executor, steps: Mapping[str, int], task_bytes: int = 0) -> LookedAt:
    """Return what tasks see of all ids; CorruptError where there are more or fewer ids than rows.

    A sample has every `steps`-th id of a piece; for 0 a table has neither a sample nor bounds. With `task_bytes` a
    piece has that many bytes of ids and rows.
    """
    names = checkpoint.table_names
    places = list(ids_at(checkpoint, task_bytes, values=bool(task_bytes)))
    work = FunctionWork(
        CheckpointValue.of(checkpoint), partial(_look, steps=steps, most=executor.result_bytes // _ID_BYTES)
    )
    tasks = in_tasks(places, task_bytes) if task_bytes else ((place,) for place in places)
    with closing(executor.run(work, checkpoint, tasks, lambda _: None)) as results:
        looks = [look for some in results for look in some]
    places = number_rows(checkpoint, places, [look.rows for look in looks])
    found = LookedAt({name: [] for name in names}, {name: [] for name in names})
    samples = {name: [np.empty(0, np.int64)] for name in names}
    for place, seen in zip(places, looks, strict=True):
        name = place.entry(checkpoint).name
        found.places[name].append(place)
        found.bounds[name].append(seen.bounds)
        samples[name].append(seen.sample)
    found.samples.update({name: np.concatenate(some) for name, some in samples.items()})
    return found


def look_here(checkpoint: Checkpoint, part_bytes: int) -> LookedAt:
    """Look at all ids in threads of this process, with samples of the tables that are sorted in parts."""
    steps = {}
    for name in checkpoint.table_names:
        rows, size = rows_claimed(checkpoint, name), sum(e.values.size_bytes for _, e in checkpoint.entries(name))
        steps[name] = sample_step(rows, parts_needed(size + _ID_BYTES * rows, part_bytes))
    return look(checkpoint, Threads(default_workers(remote=checkpoint.is_far)), steps)


def rows_claimed(checkpoint: Checkpoint, name: str) -> int:
    """Return the rows of a table by its headers."""
    return sum(entry.rows for _, entry in checkpoint.entries(name))
