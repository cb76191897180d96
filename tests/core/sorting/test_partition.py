from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from builders import write_unchecked
from checkpoints import only
from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.pieces import count_rows, ids_at
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting import partition
from edl_ckpt.core.sorting.partition import (
    Assign,
    PartitionedTable,
    by_hash,
    ranges_of_sample,
    sample_step,
)

ROWS = 30_000


def partitioned(checkpoint: Checkpoint, parts: int, assign: Assign | None = None) -> PartitionedTable:
    """Return table `t` in parts: in the ranges that a sample of every few ids gives, or as assigned."""
    places = count_rows(checkpoint, ids_at(checkpoint, 0, values=True), Job.here(1))
    pieces = [place.piece(checkpoint) for place in places]
    step = sample_step(ROWS, parts)
    sample = np.concatenate([read_piece(checkpoint, piece).ids[::step] for piece in pieces])
    return PartitionedTable(
        checkpoint, "t", pieces, parts=parts, assign=assign or ranges_of_sample(sample, parts), directory=None
    )


def misleading(random: np.random.Generator) -> np.ndarray:
    """Return ids of which every fifth, the sample for 24 parts, is small, and all others are large and close."""
    ids = random.permutation(ROWS) + (1 << 40)
    ids[::5] = random.permutation(ROWS)[: len(ids[::5])]
    return ids


@pytest.mark.parametrize(
    "draw",
    [
        lambda random: random.permutation(ROWS),
        lambda random: np.unique((random.pareto(0.3, 2 * ROWS) * 1000).clip(0, 1e18).astype(np.int64))[-ROWS:],
        lambda random: random.integers(-(1 << 62), 1 << 62, ROWS),
        misleading,
    ],
)
def test_parts_stay_small(tmp_path: Path, draw: Callable[[np.random.Generator], np.ndarray]) -> None:
    """Whatever the ids are, no part is much larger than planned, and all together are the table, sorted."""
    ids = draw(np.random.default_rng(3)).astype(np.int64)
    rows = ids.view(np.float64).reshape(-1, 1)
    write_unchecked(tmp_path / "run", 1, 1, {"t": Table(ids, rows)})
    with open_checkpoint(only(tmp_path / "run")) as checkpoint, partitioned(checkpoint, 24) as table:
        found = list(table.all_parts())
    assert max(len(part.ids) for part in found) <= max(2 * len(ids) // 24, 1024)
    assert np.array_equal(np.concatenate([part.ids for part in found]), np.sort(ids))
    assert all(np.array_equal(part.rows().reshape(-1).view(np.int64), part.ids) for part in found)


@pytest.mark.parametrize("assign", [None, by_hash(24)], ids=["ranges", "hash"])
def test_ids_that_repeat_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assign: Assign | None) -> None:
    """An id that most rows have is an error before its part, which is nearly the table, is read."""
    ids = np.arange(ROWS)
    ids[100:] = 7
    write_unchecked(tmp_path / "run", 1, 1, {"t": Table(ids, np.ones((ROWS, 1)))})
    monkeypatch.setattr(partition, "row_batches", lambda *_: pytest.fail("rows were read"))
    with (
        open_checkpoint(only(tmp_path / "run")) as checkpoint,
        pytest.raises(CorruptError, match=f"id 7 occurs {ROWS - 99:,} times|id 7 occurs"),
        partitioned(checkpoint, 24, assign),
    ):
        pass
