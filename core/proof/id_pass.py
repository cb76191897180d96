"""One pass over all ids of a version: their order, and how many are misplaced, negative or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import FunctionWork
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import misplaced
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.proof.id_order import NO_IDS, IdOrder, order_of
from edl_ckpt.core.proof.repeated_ids import NAMED
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt, cut_piece
from edl_ckpt.core.reading.reader import Checkpoint

KEPT_ROWS: Final = 1 << 16
"""Parts of tables of at most so many rows keep their ids until they were searched: there may be thousands of them."""


@dataclass(slots=True)
class IdTally:
    """What the ids of one table in one shard show, or those of a piece: their order, and how many are wrong.

    Examples are the lowest of the wrong ones.
    """

    order: IdOrder = NO_IDS
    misplaced: int = 0
    negative: int = 0
    examples: list[int] = field(default_factory=list)
    negative_examples: list[int] = field(default_factory=list)
    kept: list[bulk.I64] = field(default_factory=list)
    """The ids themselves, of a small table that keeps them."""
    fault: CorruptError | None = None
    """Why the ids cannot be decoded, None where they can."""

    def add(self, following: IdTally) -> None:
        """Add the piece that follows."""
        self.fault = self.fault or following.fault
        self.order = self.order.followed_by(following.order)
        self.misplaced += following.misplaced
        self.negative += following.negative
        self.examples = sorted(self.examples + following.examples)[:NAMED]
        self.negative_examples = sorted(self.negative_examples + following.negative_examples)[:NAMED]
        self.kept += following.kept


def ids_work(checkpoint: Checkpoint, *, keep: bool = False) -> FunctionWork[Checkpoint, Sequence[IdsAt], list[IdTally]]:
    """Return the pass over ids; a task is some pieces, and a fault is part of a result.

    With `keep`, small tables keep their ids, to be searched at once.
    """
    return FunctionWork(CheckpointValue.of(checkpoint), partial(_read_all_ids, keep=keep))


def _read_all_ids(checkpoint: Checkpoint, task: Sequence[IdsAt], advance: Advance, *, keep: bool) -> list[IdTally]:
    return [_read_place(checkpoint, place, advance, keep=keep) for place in task]


def _read_place(checkpoint: Checkpoint, place: IdsAt, advance: Advance, *, keep: bool) -> IdTally:
    """Return the tally of the ids at a place; with `keep`, with the ids of a small table."""
    total = IdTally()
    try:
        for piece in cut_piece(checkpoint, place.piece(checkpoint), PIECE_BYTES):
            ids = read_piece(checkpoint, piece).ids
            tally = _tally(ids, piece.shard.file, checkpoint.placement(piece.entry.name))
            if keep and piece.entry.rows <= KEPT_ROWS and len(ids):
                tally.kept.append(ids)
            total.add(tally)
            advance(piece.end - piece.start)
    except CorruptError as error:
        total.fault = error
    return total


def _tally(ids: bulk.I64, shard: ShardFile, rule: Placement) -> IdTally:
    """Return what ids, int64 [n], show in a shard that should have them by a rule."""
    order = order_of(ids)
    wrong = misplaced(rule, ids, shard.ps_num, shard.ps_id)
    if not rule.says_shard or len(wrong):  # an id may be in two shards
        order = replace(order, placed=False)
    negative = np.flatnonzero(ids < 0) if order.lowest < 0 else np.zeros(0, np.int64)
    return IdTally(
        order,
        misplaced=len(wrong),
        negative=len(negative),
        examples=ids[wrong[:NAMED]].tolist(),
        negative_examples=ids[negative[:NAMED]].tolist(),
    )
