"""Writing a planned version: under the lock, values move once, are proved, and become visible.

What is read back must be what was read, or nothing becomes visible.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from edl_ckpt.core.checkpoint.proof import prove_version
from edl_ckpt.core.checkpoint.target import TargetShard, WritePlan, check_beside
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import VersionOutput, Written
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.moving.passes import Pass
from edl_ckpt.core.parallel import Executor, default_workers
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.state.annotate import Describe
from edl_ckpt.core.state.seal import Seal


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
    shards: tuple[TargetShard, ...]
    forced: str | None = None
    """Why a source that is a checkpoint did not match its seal, where `force` went on; None in every other case."""


Result = TypeVar("Result", bound=WriteResult)


def write_version(
    result: type[Result],
    plan: WritePlan,
    opens: AbstractContextManager[Pass[Any, Any, Any]],
    *,
    purpose: str,
    bytes_read: int,
    executor: Executor | None,
    wait_seconds: float,
    keep_old: bool = False,
    describe: Describe | None = None,
    reporter: Reporter,
) -> Result:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `opens` opens the source, once the lock is held. `bytes_read` are those that were read for the plan, but for those
    that the opened source counts. `keep_old` is as for `open_output`; `describe` is as for `publish`.
    Raises LockedError when another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything
    is written when there is no room, EdlCkptError when the proof fails.
    """
    others, target = executor if executor is not None and executor.elsewhere else None, plan.target
    lock = location_lock(target.location, purpose, create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as locked:
        begin, read_before = time.perf_counter(), 0 if others is None else others.bytes_read()
        with opens as values:
            if not target.in_place:
                check_beside(target.location, target.layout, target.beside)
            with open_output(
                locked,
                target.layout,
                target.number,
                purpose=purpose,
                replaces=target.replaces,
                keep_old=keep_old,
                memory_bytes=values.part_memory_bytes,
                reporter=reporter,
            ) as output:
                seal = _write(plan, values, output, purpose, others, describe)
                bytes_read += values.source.bytes_read
                bytes_written = sum(file.bytes_written for file in values.files)
                if others is not None:
                    bytes_read, bytes_written = bytes_read + others.bytes_read() - read_before, plan.size_bytes
    return result(
        ref=plan.ref,
        output=target.location.url,
        from_ps=plan.from_ps,
        to_ps=plan.to_ps,
        version=target.number,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=seal.fingerprint,
        shards=plan.shards,
        forced=None if values.trust is None else values.trust.forced,
    )


def _write(
    plan: WritePlan,
    values: Pass[Any, Any, Any],
    output: VersionOutput,
    purpose: str,
    others: Executor | None,
    describe: Describe | None,
) -> Seal:
    """Move all values into an output, which proves them and publishes them; return the seal."""
    values.files = output.create(plan.layouts.size_bytes.tolist())
    values.reporter.start(values.doing, values.value_bytes)
    if others is None:
        values.run()
    else:
        values.hand_out(others, output)
    content = values.content()

    def prove(written: Written) -> Seal:
        seal = prove_version(
            written.version,
            plan.layouts,
            content,
            workers=values.workers or default_workers(remote=not written.staged),
            executor=others,
            batch_bytes=values.proof_batch_bytes,
            piece_bytes=values.proof_piece_bytes,
            marks=None if others is None else values.marks(),
            reporter=values.reporter,
        )
        values.source.check_unchanged()
        return seal if values.trust is None else values.trust.sign(seal, purpose)

    return output.publish(prove, describe)
