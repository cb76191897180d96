"""Carrying out a reshard: under the lock, values move once, are proved, and become visible.

The fingerprint of the values that were read must be that of the values that are read back, or nothing becomes visible.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from edl_ckpt.core.base.errors import LockedError, UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import SILENT, WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped, size
from edl_ckpt.core.catalog.listing import check_listed
from edl_ckpt.core.cluster.choice import ExecutorLike, job_of
from edl_ckpt.core.moving.checkpoint import VersionSource
from edl_ckpt.core.moving.settings import ReshardSettings, settings_for
from edl_ckpt.core.moving.version import WriteResult, write_version
from edl_ckpt.core.operations.reshard.plan import ReshardPlan
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.state.annotate import MetadataCopies
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS


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
    if keep_old and not plan.target.store.properties.trash:
        raise UnsupportedError(
            "this storage has no rename, so no trash for the old shards", path=plan.target.location.url
        )
    source, target = plan.survey.source, plan.target
    job = job_of(executor, [source], target=target.location, reporter=reporter)
    copies = MetadataCopies(target.store, reporter=reporter)
    is_described = not target.in_place and target.number == source.version
    settings = settings or settings_for(plan)
    job = job.limited(settings.workers)
    return write_version(
        ReshardResult,
        plan,
        settings,
        _opened(plan, job, force=force),
        job,
        purpose="reshard",
        doing="resharding",
        bytes_read=plan.survey.bytes_read,
        wait_seconds=wait_seconds,
        keep_old=keep_old,
        describe=partial(copies.copy, source) if is_described else None,
    )


@contextmanager
def _opened(plan: ReshardPlan, job: Job, *, force: bool) -> Iterator[VersionSource]:
    """Open the source of a plan; LockedError when a file of it is not the one that was surveyed."""
    source = plan.survey.source
    if plan.target.in_place:
        check_listed(source, "the version has changed since the plan was made; try again")
    trust = check_trust(source, force=force, reporter=SILENT)  # the plan has warned
    trust.reporter = job.reporter
    _allow_open_files(plan.to_ps + plan.from_ps)
    with open_checkpoint(source, workers=job.executor.openings) as checkpoint:
        checkpoint.check_unchanged()
        for shard in checkpoint.shards:
            if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
                raise LockedError("the shard has changed since the plan was made", path=shard.file.path)
        checkpoint.take_ids(plan.survey.kept)
        yield VersionSource(checkpoint, trust)


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard one when a plan needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 64 and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 64, hard), hard))
