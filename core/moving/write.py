"""Writing a planned version: under the lock, values move once, are proved, and become visible.

What is read back must be what was read, or nothing becomes visible.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from functools import cache, partial

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.target import check_beside
from edl_ckpt.core.commit.interface import NewVersion, Written
from edl_ckpt.core.commit.repair.recovery import kind_of, location_lock
from edl_ckpt.core.model.versions import Seal, Version
from edl_ckpt.core.moving.framing import ShardFraming
from edl_ckpt.core.moving.input import Input
from edl_ckpt.core.moving.plan import ShardPlan, row_marks
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.run import Move
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.source_proof import untouched
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint
from edl_ckpt.core.proof.proving import prove
from edl_ckpt.core.proof.staged_shards import StagedShards
from edl_ckpt.core.proof.values import ValueOptions
from edl_ckpt.core.reading.pieces import PIECE_BYTES
from edl_ckpt.core.state.annotate import Describe


def write_version(
    plan: ShardPlan,
    settings: ReshardSettings,
    opens: AbstractContextManager[Input],
    job: Job,
    *,
    purpose: str,
    doing: str,
    bytes_read: int,
    wait_seconds: float,
    keep_old: bool = False,
    contents: Contents | None = None,
    describe: Describe | None = None,
) -> WriteResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `opens` opens the source, once the lock is held. `doing` names the phase to the reporter. `bytes_read` are those
    that were read for the plan, but for those that the opened source counts. `keep_old` and `contents` are as in
    `NewVersion`; `describe` is as for `publish`.
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
                contents=contents,
                memory_bytes=settings.part_memory_bytes,
                reporter=reporter,
            )
            with kind_of(locked.store).output(locked, new) as output:
                files = output.create(plan.layouts.size_bytes.tolist())
                expect(reporter, 2 * plan.layouts.value_bytes)  # they are read back
                reporter.start(doing, plan.layouts.value_bytes)
                move = Move(plan, settings, source, job)
                moved = move.run(ShardFraming(plan.goal, files), output)
                content, proved = source.proof.content(moved.sketch, job), list[Fingerprint]()

                def prove_written(written: Written) -> Seal:
                    found = prove(_staged(plan, settings, content, written.version), job, target.number)
                    proved.append(found.fingerprint)
                    source.check_unchanged()
                    return source.proof.sign(found.seal, purpose)

                seal = output.publish(prove_written, describe)
                bytes_read += source.bytes_read + executor.bytes_read() - read_before
    return WriteResult(
        ref=f"{target.location}@{new.key}",
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
        forced=source.proof.forced,
        checksums=source.proof.compared,
        items=plan.items,
        left_out=plan.survey.left_out,
        source=plan.source_ref,
        untouched=untouched(source.proof, proved[-1]),
        overflowed=moved.overflowed,
        content=proved[-1],
    )


def _staged(
    plan: ShardPlan, settings: ReshardSettings, content: Fingerprint | ContentSketch, written: Version
) -> StagedShards:
    """Return the shards as they are proved: they must have the content of the source."""
    return StagedShards(
        plan.target.store,
        written,
        plan.layouts,
        content,
        options=ValueOptions(
            batch_bytes=settings.proof_batch_bytes, piece_bytes=min(settings.piece_bytes, PIECE_BYTES)
        ),
        marks=cache(partial(row_marks, plan)),
    )
