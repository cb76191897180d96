"""Carrying out a reshard: under the lock, values move once, are proved, and become visible.

The fingerprint of the values that were read must be that of the values that are read back, or nothing becomes visible.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from edl_ckpt.core.checkpoint.catalog import check_listed
from edl_ckpt.core.checkpoint.reader import open_checkpoint, openings_by
from edl_ckpt.core.checkpoint.trust import check_trust
from edl_ckpt.core.cluster.choice import ExecutorLike, check_shared, executor_of
from edl_ckpt.core.errors import LockedError, UnsupportedError
from edl_ckpt.core.moving.version import WriteResult, write_version
from edl_ckpt.core.operations.reshard.move import Move
from edl_ckpt.core.operations.reshard.plan import ReshardPlan
from edl_ckpt.core.operations.reshard.settings import ReshardSettings, settings_for
from edl_ckpt.core.parallel import Executor
from edl_ckpt.core.progress import SILENT, WARNINGS, Reporter
from edl_ckpt.core.state.annotate import MetadataCopies
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.words import counted, describe, escaped, size


@dataclass(frozen=True, slots=True)
class ReshardResult(WriteResult):
    """The written version; the source and the version that was read back both have its `fingerprint`.

    It was not `needed` when the version was there already; its fingerprint is then '' without a seal.
    """

    from_ps: int
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
    chosen, source, target = settings or settings_for(plan), plan.survey.source, plan.target
    copies = MetadataCopies(target.location, reporter=reporter)
    is_described = not target.in_place and target.number == source.version
    return write_version(
        ReshardResult,
        plan,
        _opened(plan, chosen, work, force=force, reporter=reporter),
        purpose="reshard",
        bytes_read=plan.survey.bytes_read,
        executor=work,
        wait_seconds=wait_seconds,
        keep_old=keep_old,
        describe=partial(copies.copy, source) if is_described else None,
        reporter=reporter,
    )


@contextmanager
def _opened(
    plan: ReshardPlan, settings: ReshardSettings, executor: Executor, *, force: bool, reporter: Reporter
) -> Iterator[Move]:
    """Open the source of a plan; LockedError when a file of it is not the one that was surveyed."""
    source = plan.survey.source
    if plan.target.in_place:
        check_listed(source, "the version has changed since the plan was made; try again")
    trust = check_trust(source, force=force, reporter=SILENT)  # the plan has warned
    trust.reporter = reporter
    _allow_open_files(plan.to_ps + plan.from_ps)
    with open_checkpoint(source, workers=openings_by(executor)) as checkpoint:
        checkpoint.check_unchanged()
        for shard in checkpoint.shards:
            if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
                raise LockedError("the shard has changed since the plan was made", path=shard.file.path)
        checkpoint.take_ids(plan.survey.kept)
        yield Move(plan, settings, checkpoint, reporter, trust)


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard one when a plan needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 64 and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 64, hard), hard))
