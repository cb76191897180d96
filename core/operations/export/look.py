"""A look at all ids of a checkpoint by tasks: how many there are, and samples by which they are cut into ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.places import IdsAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import read_piece
from edl_ckpt.core.format import bulk
from edl_ckpt.core.parallel import RESULT_BYTES, Advance

_SAMPLES: Final = 256
"""Ids of a sample for each range: ranges then differ by a few percent."""


class Look(NamedTuple):
    """What a look at some ids gives: how many there are of each piece, and a sample of each."""

    rows: list[int]
    samples: list[bulk.I64]


@dataclass(frozen=True, slots=True)
class LookWork:
    """Counting ids, and drawing samples of them; a task is some pieces. `shares` is the part of each table to draw."""

    source: CheckpointValue
    shares: Mapping[str, float]

    def open(self) -> Checkpoint:
        """Open the checkpoint in another process."""
        return self.source.open()

    def do(self, opened: Checkpoint, task: tuple[IdsAt, ...], advance: Advance) -> Look:  # noqa: ARG002
        """Look at some pieces; a piece has the same sample each time."""
        found = Look([], [])
        for place in task:
            piece = place.piece(opened)
            ids = read_piece(opened, piece).ids
            share = self.shares.get(piece.entry.name, 0.0)
            count = min(round(len(ids) * share) + 1, RESULT_BYTES // 8 // len(task)) if share else 0
            drawn = np.random.default_rng([place.shard, place.table, place.start]).integers(0, len(ids) or 1, count)
            found.rows.append(len(ids))
            found.samples.append(ids[drawn] if len(ids) else ids[:0].copy())
        return found


def share_of(rows: int, ranges: int) -> float:
    """Return the part of the ids that are a sample for so many ranges."""
    return min(_SAMPLES * ranges / max(rows, 1), 1.0) if ranges > 1 else 0.0
