"""Writing a planned version: under the lock, values move once, are proved, and become visible.

What is read back must be what was read, or nothing becomes visible.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.catalog.target import check_beside
from edl_ckpt.core.commit.interface import NewVersion
from edl_ckpt.core.commit.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.moving.plan import MovePlan
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.source import Source
from edl_ckpt.core.moving.tasks import Move
from edl_ckpt.core.state.annotate import Describe


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The written version; the source and the version that was read back both have its `fingerprint`."""

    ref: str
    output: str
    from_ps: int | None
    to_ps: int
    version: int
    size_bytes: int
    bytes_read: int
    bytes_written: int
    rows: int
    seconds: float
    peak_memory_bytes: int
    fingerprint: str
    shards: tuple[ShardSummary, ...]
    forced: str | None = None
    """Why a source that is a checkpoint did not match its seal, where `force` went on; None in every other case."""


Result = TypeVar("Result", bound=WriteResult)


def write_version(
    result: type[Result],
    plan: MovePlan,
    settings: ReshardSettings,
    opens: AbstractContextManager[Source],
    job: Job,
    *,
    purpose: str,
    doing: str,
    bytes_read: int,
    wait_seconds: float,
    keep_old: bool = False,
    describe: Describe | None = None,
) -> Result:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `opens` opens the source, once the lock is held. `doing` names the phase to the reporter. `bytes_read` are those
    that were read for the plan, but for those that the opened source counts. `keep_old` is as in `NewVersion`;
    `describe` is as for `publish`.
    Raises LockedError when another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything
    is written when there is no room, EdlCkptError when the proof fails.
    """
    target, executor, reporter = plan.target, job.executor, job.reporter
    lock = location_lock(target.location, purpose, create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as locked:
        begin, read_before = time.perf_counter(), executor.bytes_read()
        with opens as source:
            if not target.in_place:
                check_beside(locked.store, target.layout, target.beside)
            new = NewVersion(
                target.layout,
                target.number,
                purpose,
                replaces=target.replaces,
                keep_old=keep_old,
                memory_bytes=settings.part_memory_bytes,
                reporter=reporter,
            )
            with kind_of(locked.store).output(locked, new) as output:
                files = output.create(plan.layouts.size_bytes.tolist())
                reporter.start(doing, plan.layouts.value_bytes)
                move = Move(plan, settings, source, job)
                content = source.content(move.run(output, files))
                seal = output.publish(partial(move.prove, content, purpose), describe)
                bytes_read += source.bytes_read + executor.bytes_read() - read_before
    return result(
        ref=plan.ref,
        output=target.location.url,
        from_ps=plan.from_ps,
        to_ps=plan.to_ps,
        version=target.number,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=plan.size_bytes,  # each byte once: all of them were read back
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=seal.fingerprint,
        shards=plan.shards,
        forced=None if source.trust is None else source.trust.forced,
    )
