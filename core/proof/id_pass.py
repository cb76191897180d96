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
from edl_ckpt.core.proof.id_order import NO_IDS, IdOrder, order_of
from edl_ckpt.core.proof.repeated_ids import NAMED
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt, cut_piece
from edl_ckpt.core.reading.reader import Checkpoint

KEPT_ROWS: Final = 1 << 16
"""Parts of tables of at most so many rows keep their ids until they were searched: there may be thousands of them."""


@dataclass(slots=True)
class Ids:
    """The ids of one table in one shard, or of a piece of them: their order, and the odd ones, with the lowest."""

    order: IdOrder = NO_IDS
    misplaced: int = 0
    negative: int = 0
    examples: list[int] = field(default_factory=list)
    negative_examples: list[int] = field(default_factory=list)
    kept: list[bulk.I64] = field(default_factory=list)
    fault: CorruptError | None = None

    def add(self, following: Ids) -> None:
        """Add the piece that follows."""
        self.fault = self.fault or following.fault
        self.order = self.order.followed_by(following.order)
        self.misplaced += following.misplaced
        self.negative += following.negative
        self.examples = sorted(self.examples + following.examples)[:NAMED]
        self.negative_examples = sorted(self.negative_examples + following.negative_examples)[:NAMED]
        self.kept += following.kept


def ids_work(checkpoint: Checkpoint, *, keep: bool = False) -> FunctionWork[Checkpoint, Sequence[IdsAt], list[Ids]]:
    """Return the pass over ids; a task is some pieces, and a fault is part of a result.

    With `keep`, small tables keep their ids, to be searched at once.
    """
    return FunctionWork(CheckpointValue.of(checkpoint), partial(_read_all_ids, keep=keep))


def _read_all_ids(checkpoint: Checkpoint, task: Sequence[IdsAt], advance: Advance, *, keep: bool) -> list[Ids]:
    return [_read_place(checkpoint, place, advance, keep=keep) for place in task]


def _read_place(checkpoint: Checkpoint, place: IdsAt, advance: Advance, *, keep: bool) -> Ids:
    found = Ids()
    try:
        for piece in cut_piece(checkpoint, place.piece(checkpoint), PIECE_BYTES):
            ids = read_piece(checkpoint, piece).ids
            order, negative, rule = order_of(ids), np.zeros(0, np.int64), checkpoint.placement(piece.entry.name)
            wrong = misplaced(rule, ids, piece.shard.file.ps_num, piece.shard.file.ps_id)
            if order.lowest < 0:
                negative = np.flatnonzero(ids < 0)
            odd = (ids[wrong[:NAMED]].tolist(), ids[negative[:NAMED]].tolist())
            kept = [ids] if keep and piece.entry.rows <= KEPT_ROWS and len(ids) else []
            if not rule.says_shard or len(wrong):  # an id may be in two shards
                order = replace(order, placed=False)
            found.add(Ids(order, len(wrong), len(negative), *odd, kept))
            advance(piece.end - piece.start)
    except CorruptError as error:
        found.fault = error
    return found
