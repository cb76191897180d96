"""Ids that occur twice in a table, looked for by other processes: a task has ids that can be equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.checkpoint.duplicates import LEAST_AT_ONCE, NO_IDS, SORTED_AT_ONCE, IdOrder, check_unique, order_of
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.places import IdsAt, ids_at, in_tasks
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, cut_piece, number_rows, read_piece
from edl_ckpt.core.packing import together
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import WARNINGS, Reporter

_MOST_UNITS: Final = 64

_Unit = tuple[list[IdsAt], list[IdOrder]]


@dataclass(frozen=True, slots=True)
class _OrderWork:
    """The pass over all ids; a task is some pieces of them."""

    source: CheckpointValue

    def open(self) -> Checkpoint:
        """Open the checkpoint in another process."""
        return self.source.open()

    def do(self, opened: Checkpoint, task: tuple[IdsAt, ...], advance: Advance) -> list[IdOrder]:
        """Return the order of each piece."""
        orders = []
        for whole in (place.piece(opened) for place in task):
            order = NO_IDS
            for piece in cut_piece(opened, whole, PIECE_BYTES // 2):
                order = order.followed_by(order_of(read_piece(opened, piece).ids, piece.shard.file))
            orders.append(order)
            advance(whole.end - whole.start)
        return orders


@dataclass(frozen=True, slots=True)
class _UniqueWork:
    """The search for ids that a table has twice; a task is some units: ids that can be equal, with their orders."""

    source: CheckpointValue
    at_once: int

    def open(self) -> Checkpoint:
        """Open the checkpoint in another process."""
        return self.source.open()

    def do(self, opened: Checkpoint, task: Sequence[_Unit], advance: Advance) -> None:  # noqa: ARG002
        """Look at some units."""
        for places, orders in task:
            pieces = [place.piece(opened) for place in places]
            check_unique(opened, pieces, orders, workers=1, at_once=self.at_once)


def check_unique_at(
    checkpoint: Checkpoint, executor: Executor, places: Sequence[IdsAt], orders: Sequence[IdOrder]
) -> None:
    """Let other processes find ids that a table has twice: CorruptError; `places` are whole tables, with their orders.

    Ids that ascend are not read again.
    """
    units: dict[tuple[str, int], _Unit] = {}
    pieces = [place.piece(checkpoint) for place in places]
    placed = {piece.entry.name: True for piece in pieces}
    for piece, order in zip(pieces, orders, strict=True):
        placed[piece.entry.name] &= order.placed
    for place, piece, order in zip(places, pieces, orders, strict=True):
        key = piece.entry.name, piece.shard.file.ps_id if placed[piece.entry.name] else -1
        own, seen = units.setdefault(key, ([], []))
        if own and own[-1][:3] == place[:3] and own[-1].end == place.start:  # one, so a task stays small
            own[-1] = own[-1]._replace(end=place.end)
            seen[-1] = seen[-1].followed_by(order)
        else:
            own.append(place)
            seen.append(order)
    total = sum(run.end - run.start for shard in checkpoint.shards for table in shard.tables for run in table.ids)
    # As many in a process as on one machine: a shard of 16 million ids is read once more, and not twice.
    at_once = max(2 * SORTED_AT_ONCE // executor.threads, LEAST_AT_ONCE)
    work = _UniqueWork(CheckpointValue.of(checkpoint), at_once)
    sized = ((unit, sum(place.end - place.start for place in unit[0])) for unit in units.values())
    tasks = together(sized, executor.task_bytes(total), most=_MOST_UNITS)
    with closing(executor.run(work, checkpoint, tasks, lambda _: None)) as results:
        for _ in results:
            pass


def check_unique_ids_by(checkpoint: Checkpoint, executor: Executor, *, reporter: Reporter = WARNINGS) -> None:
    """Let other processes read all ids of a checkpoint.

    Raises CorruptError when one occurs twice in a table, or ids and rows differ in number.
    """
    total = sum(run.end - run.start for shard in checkpoint.shards for table in shard.tables for run in table.ids)
    task_bytes = executor.task_bytes(total)
    places = list(ids_at(checkpoint, task_bytes, values=False))
    reporter.start("reading ids", total)
    work, orders = _OrderWork(CheckpointValue.of(checkpoint)), list[IdOrder]()
    with closing(executor.run(work, checkpoint, in_tasks(places, task_bytes), reporter.advance)) as results:
        for some in results:
            orders += some
    number_rows(checkpoint, [place.piece(checkpoint) for place in places], [order.rows for order in orders])
    check_unique_at(checkpoint, executor, places, orders)
