"""Workers and memory of a move: they change its speed, never its result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.parallel import Executor, default_workers
from edl_ckpt.core.base.words import size
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.moving.parts import PartsPlan, plan_parts
from edl_ckpt.core.moving.plan import MovePlan, ShardPlan, open_part_bytes
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.reading.pieces import PIECE_BYTES
from edl_ckpt.core.storage.interface import Properties
from edl_ckpt.core.storage.parts import PART_MEMORY_BYTES

_BYTES_PER_ID_BYTE: Final = 24
"""Memory for each byte of a piece of ids: the bytes, what they decode to, owners, lengths, and copies by owner."""
_LEAST_PIECE_BYTES: Final = 4096
REMOTE_BATCH_BYTES: Final = 4 << 20
"""Bytes of values of one request to remote storage, which spread the cost of a round trip."""
_STRETCH_BYTES: Final = 64 << 10
"""Bytes that go to each target at a time, where memory allows it: shorter writes cost more than their bytes."""
_GATHERED_BYTES: Final = 64 << 20
"""The most bytes of values that all workers gather, unless a batch for each is more."""
_WIDE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ReshardSettings:
    """Workers, and the bytes that each of them has in memory."""

    workers: int
    piece_bytes: int
    """Bytes of ids that are one task."""
    batch_bytes: int
    """Bytes of values that are read and written at a time."""
    proof_batch_bytes: int
    """Bytes of the written version that the proof reads at a time."""
    gather_bytes: int = 1 << 20
    """Bytes of values that each worker gathers before it writes them to their targets."""
    part_memory_bytes: int = 0
    """Memory for the parts of uploads; 0 where files are written in place."""
    open_part_bytes: int = 0
    """What the parts that wait for bytes take at a time, by the plan; those without memory wait on the local disk."""

    parts: PartsPlan | None = None
    """How a cluster sends the parts of uploads; None where it does not."""

    @property
    def spool(self) -> bool:
        """Return True when some parts wait on the local disk: half of the memory is for those on their way."""
        return self.open_part_bytes > self.part_memory_bytes // 2

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a user may want to change."""
        if not self.spool:
            return ()
        parts = f"the open parts of all uploads take up to {size(self.open_part_bytes)}"
        room = f"more than {size(self.part_memory_bytes // 2)} of memory"
        return (f"{parts}, {room}: the others wait on the local disk ($TMPDIR); a larger --max-memory avoids that",)


def settings_for(
    plan: ShardPlan,
    *,
    workers: int | None = None,
    max_memory_bytes: int | None = None,
    executor: Executor | None = None,
) -> ReshardSettings:
    """Return the settings for a plan; `max_memory_bytes` bounds all batches, `plan_parts` the uploads of a cluster."""
    target = plan.target.store.properties
    chosen = choose_settings(
        plan.survey.widest_row_bytes,
        target,
        round_trips=plan.survey.round_trips,
        to_ps=plan.to_ps,
        workers=workers,
        max_memory_bytes=max_memory_bytes,
    )
    if not target.part_bytes:
        return chosen
    if executor is None or not executor.is_cluster:
        return replace(chosen, open_part_bytes=open_part_bytes(plan, target.part_bytes))
    memory = None if max_memory_bytes is None else chosen.part_memory_bytes
    return replace(chosen, parts=plan_parts(plan, executor, target.part_bytes, memory_bytes=memory))


def settings_of_files(plan: MovePlan, target: Properties, *, workers: int) -> ReshardSettings:
    """Return the settings for files of any system, which need no memory for parts of their own."""
    survey = plan.survey
    return choose_settings(
        survey.widest_row_bytes, target, round_trips=survey.round_trips, to_ps=survey.to_ps, workers=workers
    )


def choose_settings(
    row_bytes: int,
    target: Properties,
    *,
    round_trips: bool = False,
    to_ps: int = 1,
    workers: int | None = None,
    max_memory_bytes: int | None = None,
) -> ReshardSettings:
    """Return settings from the bytes of the widest row and the number of targets.

    Each read of a source may be one of many `round_trips`.
    Where the target keeps open parts in memory, half of the limit is for them. Raises UsageError for bounds that
    cannot be met.
    """
    if workers is None:
        workers = default_workers(remote=round_trips or target.round_trips)
    workers = whole_number("workers", workers, least=1)
    limit = max_memory_bytes
    if limit is not None and not target.positional_write:
        limit //= 2
    wanted_batch = max(VALUE_BATCH_BYTES, row_bytes)
    piece, batch = PIECE_BYTES // 2, wanted_batch
    gather = max(batch, min(to_ps * _STRETCH_BYTES, _GATHERED_BYTES // workers))
    if limit is not None:
        piece, batch, workers = _within(limit, piece, batch, workers, row_bytes)
        gather = batch
    elif gather > _WIDE_BYTES:
        piece *= 4  # or the ids would be written in stretches of a few hundred bytes
    part_memory = PART_MEMORY_BYTES if max_memory_bytes is None else max_memory_bytes // 2
    proof_batch = VALUE_BATCH_BYTES if target.rename else REMOTE_BATCH_BYTES
    if max_memory_bytes is not None:
        proof_batch = max(batch, min(proof_batch, max_memory_bytes // (2 * workers)))
    return ReshardSettings(
        workers, piece, batch, proof_batch, gather, part_memory_bytes=part_memory if target.part_bytes else 0
    )


def _within(limit: int, piece: int, batch: int, workers: int, row_bytes: int) -> tuple[int, int, int]:
    """Return (bytes of a piece of ids, bytes of a batch of values, workers) that keep within a limit.

    A worker has a piece of ids, decoded, and two batches: values as read and as ordered by owner. When they do not
    fit, workers are given up first.
    """
    least_batch = max(bulk.CHUNK_BYTES, row_bytes)
    least = _BYTES_PER_ID_BYTE * _LEAST_PIECE_BYTES + 2 * least_batch
    if limit < least:
        raise UsageError(
            f"--max-memory of {limit} bytes is too small: one row of {row_bytes} bytes and its id take {least}"
        )
    workers = min(workers, limit // least)
    share = limit // workers
    beside_least_piece = (share - _BYTES_PER_ID_BYTE * _LEAST_PIECE_BYTES) // 2
    batch = min(max(least_batch, min(batch, share // 4)), beside_least_piece)
    piece = min(piece, (share - 2 * batch) // _BYTES_PER_ID_BYTE)
    return piece, batch, workers
