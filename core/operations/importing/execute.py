"""Carrying out an import: values stream once to their places, and the written version is read back and proved."""

from __future__ import annotations

import time
from dataclasses import dataclass

from edl_ckpt.core.checkpoint.proof import prove_version
from edl_ckpt.core.checkpoint.target import TargetShard, check_beside
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import LockedLocation, Written
from edl_ckpt.core.commit.part_plan import plan_parts
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.commit.uploads import SharedUploads
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.operations.importing.plan import ImportPlan, moved_by
from edl_ckpt.core.operations.importing.send import send_parts
from edl_ckpt.core.operations.importing.write import Write
from edl_ckpt.core.parallel import Executor, default_workers
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.words import counted, describe, escaped, size


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The new version; the source and the version that was read back both have its `fingerprint`.

    `from_ps` is the number of shards of a source that is a checkpoint, None for arrays.
    """

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
    """Why a source that is a checkpoint did not match its seal, where `force` went on."""

    def __repr__(self) -> str:
        return describe(
            "ImportResult",
            escaped(self.ref),
            counted(self.to_ps, "shard"),
            counted(self.rows, "row"),
            size(self.size_bytes),
        )


def execute_import(
    plan: ImportPlan,
    *,
    purpose: str = "import",
    executor: Executor | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ImportResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    The source must still be open. `purpose` names the command to those that wait for the lock. Raises LockedError when
    another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything is written when there is
    no room, EdlCkptError when the proof fails.
    """
    lock = location_lock(plan.target.location, purpose, create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as place:
        return write_import(plan, place, purpose=purpose, executor=executor, reporter=reporter)


def write_import(
    plan: ImportPlan,
    place: LockedLocation,
    *,
    purpose: str = "import",
    executor: Executor | None = None,
    reporter: Reporter = WARNINGS,
) -> ImportResult:
    """Do the work of `execute_import` for a caller that holds the lock of the target."""
    begin = time.perf_counter()
    target, arrays = plan.target, plan.survey.arrays
    fingerprint = ""
    check_beside(target.location, target.layout, target.beside)
    with open_output(place, target.layout, target.number, purpose=purpose) as output:
        files = output.create(plan.layouts.size_bytes.tolist())
        write, spread = Write(plan.layouts, arrays, files, reporter), plan.survey.spread
        if spread is None or executor is None:
            sketch = write.run()
        else:
            targets = output.share()
            if isinstance(targets, SharedUploads):
                parts = plan.parts or plan_parts(moved_by(plan), executor, targets.part_bytes)
                sketch = send_parts(plan, spread, parts, output, targets, executor, reporter)
            else:
                executor.share(targets.place)
                sketch = write.run_elsewhere(spread, executor, targets)

        def prove(written: Written) -> Seal:
            nonlocal fingerprint
            workers = default_workers(remote=not written.staged)
            seal = prove_version(
                written.version, plan.layouts, sketch, workers=workers, executor=executor, reporter=reporter
            )
            fingerprint = seal.fingerprint
            arrays.check_unchanged()
            return seal

        output.publish(prove)
        bytes_written, bytes_read = sum(file.bytes_written for file in files), arrays.bytes_read
        if plan.survey.spread is not None and executor is not None:
            bytes_written, bytes_read = plan.size_bytes, bytes_read + executor.bytes_read()
    return ImportResult(
        ref=f"{target.location}@{target.number}",
        output=target.location.url,
        from_ps=None,
        to_ps=plan.survey.to_ps,
        version=target.number,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=fingerprint,
        shards=plan.shards,
    )
