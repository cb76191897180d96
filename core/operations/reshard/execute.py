"""Carrying out a reshard: under the lock, values move once, are proved, and become visible.

The fingerprint of the values that were read must be that of the values that are read back, or nothing becomes visible.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from functools import partial

from edl_ckpt.core.checkpoint.catalog import check_listed
from edl_ckpt.core.checkpoint.proof import prove_version
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint, openings_by
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES
from edl_ckpt.core.checkpoint.target import TargetShard, check_beside
from edl_ckpt.core.checkpoint.trust import check_trust
from edl_ckpt.core.cluster.choice import ExecutorLike, check_shared, executor_of
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import LockedLocation, Written
from edl_ckpt.core.commit.part_plan import plan_parts
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.commit.uploads import SharedUploads
from edl_ckpt.core.errors import LockedError, UnsupportedError
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.operations.reshard.move import Move
from edl_ckpt.core.operations.reshard.order import moved_by
from edl_ckpt.core.operations.reshard.plan import ReshardPlan, row_marks
from edl_ckpt.core.operations.reshard.send import send_parts
from edl_ckpt.core.operations.reshard.settings import ReshardSettings, settings_for
from edl_ckpt.core.parallel import Executor
from edl_ckpt.core.progress import SILENT, WARNINGS, Reporter
from edl_ckpt.core.state.annotate import MetadataCopies
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.words import counted, describe, escaped, size


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """The written version; the source and the version that was read back both have its `fingerprint`.

    It was not `needed` when the version was there already; its fingerprint is then '' without a seal.
    """

    ref: str
    output: str
    from_ps: int
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
    """Why the source did not match its seal, where `force` went on; None in every other case."""
    needed: bool = True

    def __repr__(self) -> str:
        return describe(
            "ReshardResult",
            escaped(self.ref),
            f"{self.from_ps} to {counted(self.to_ps, 'shard')}",
            counted(self.rows, "row"),
            size(self.size_bytes),
            f"in {escaped(self.output)}",
        )


def execute_reshard(
    plan: ReshardPlan,
    settings: ReshardSettings | None = None,
    *,
    executor: ExecutorLike | None = None,
    keep_old: bool = False,
    force: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ReshardResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `settings` are those of `settings_for(plan)` by default. `keep_old` leaves the old shards of an in-place reshard in
    the trash. Elsewhere the version's metadata (metrics, tags, note) is copied with it. Raises LockedError when another
    command holds the lock for longer than `wait_seconds`, or when the source changed since it was surveyed;
    NoSpaceError, before anything is written, when there is no room; EdlCkptError when the proof fails; CorruptError
    when the source has a seal that it does not match. `force` goes on then, and the new seal records it.
    """
    if keep_old and not open_store(plan.target.location).properties.trash:
        raise UnsupportedError(
            "this storage has no rename, so no trash for the old shards", path=plan.target.location.url
        )
    work = executor_of(executor, [plan.survey.source], reporter=reporter)
    if work.elsewhere:
        check_shared(plan.target.location, parts=True)
    lock = location_lock(plan.target.location, "reshard", create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as place:
        chosen = settings or settings_for(plan)
        return write_reshard(plan, place, chosen, executor=work, keep_old=keep_old, force=force, reporter=reporter)


def write_reshard(
    plan: ReshardPlan,
    place: LockedLocation,
    settings: ReshardSettings,
    *,
    executor: Executor | None = None,
    keep_old: bool = False,
    force: bool = False,
    reporter: Reporter = WARNINGS,
) -> ReshardResult:
    """Do the work of `execute_reshard` for a caller that holds the lock of the target."""
    begin, read_before = time.perf_counter(), 0 if executor is None else executor.bytes_read()
    target, source = plan.target, plan.survey.source
    if target.in_place:
        check_listed(source, "the version has changed since the plan was made; try again")
    trust = check_trust(source, force=force, reporter=SILENT)  # the plan has warned
    trust.reporter = reporter
    if not target.in_place:
        check_beside(target.location, target.layout, target.beside)
    output = open_output(
        place,
        target.layout,
        target.number,
        purpose="reshard",
        replaces=target.replaces,
        keep_old=keep_old,
        memory_bytes=settings.part_memory_bytes,
        reporter=reporter,
    )
    _allow_open_files(plan.to_ps + plan.from_ps)
    with open_checkpoint(source, workers=openings_by(executor)) as checkpoint, output:
        _check_unchanged(checkpoint)
        checkpoint.take_ids(plan.survey.kept)
        files = output.create(plan.layouts.size_bytes.tolist())
        move = Move(plan, settings, checkpoint, files, reporter)
        if executor is None or not executor.elsewhere:
            read = move.run()
        else:
            targets = output.share()
            if isinstance(targets, SharedUploads):
                parts = settings.parts or plan_parts(moved_by(plan), executor, targets.part_bytes)
                read = send_parts(plan, settings, parts, checkpoint, output, targets, executor, reporter)
            else:
                executor.share(targets.place)
                read = move.run_elsewhere(executor, targets)
        trust.confirm(read.text)

        def prove(written: Written) -> Seal:
            seal = prove_version(
                written.version,
                plan.layouts,
                read,
                workers=settings.workers,
                executor=executor,
                batch_bytes=settings.proof_batch_bytes,
                piece_bytes=min(settings.piece_bytes, PIECE_BYTES),
                marks=row_marks(plan) if executor is not None and executor.elsewhere else None,
                reporter=reporter,
            )
            _check_unchanged(checkpoint)
            return trust.sign(seal, "reshard")

        described = not target.in_place and target.number == source.version
        copies = MetadataCopies(target.location, reporter=reporter)
        output.publish(prove, partial(copies.copy, source) if described else None)
        bytes_written = sum(file.bytes_written for file in files)
        bytes_read = plan.survey.bytes_read + checkpoint.bytes_read
        if executor is not None and executor.elsewhere:
            bytes_written, bytes_read = plan.size_bytes, bytes_read + executor.bytes_read() - read_before
    return ReshardResult(
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
        fingerprint=read.text,
        shards=plan.shards,
        forced=trust.forced,
    )


def _check_unchanged(checkpoint: Checkpoint) -> None:
    """Raise LockedError when a source file is not the one that was surveyed."""
    checkpoint.check_unchanged()
    for shard in checkpoint.shards:
        if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
            raise LockedError("the shard has changed since the plan was made", path=shard.file.path)


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard one when a plan needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 64 and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 64, hard), hard))
