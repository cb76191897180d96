"""Which executor an operation uses: threads, or a cluster, once every worker of that has answered (`preflight`).

Without a cluster, nothing of it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import Executor, Threads, default_workers
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.location import Location

if TYPE_CHECKING:  # most operations use threads
    from edl_ckpt.core.cluster.executor import ClusterExecutor

ExecutorLike: TypeAlias = Executor | Any
"""What the public functions take: an executor, or a `distributed.Client`."""


def job_of(
    executor: ExecutorLike | None = None,
    versions: Sequence[Version] = (),
    *,
    target: Location | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> Job:
    """Return the job of an operation on these versions: with the executor of the caller, or with threads.

    The workers of a cluster are asked first. Raises UsageError for what is no executor, UnsupportedError for a worker
    that cannot do the work, and for a `target` that several processes cannot write at a time; UnavailableError for a
    cluster without workers.
    """
    if workers is None:  # as many threads as reading the versions, and writing to the target, can use
        locations = [version.location for version in versions] + ([] if target is None else [target])
        workers = default_workers(remote=any(location.is_far for location in locations))
    chosen: Executor | Any = Threads(workers) if executor is None else wrapped(executor)
    if not hasattr(chosen, "run"):
        raise UsageError(f"expected a distributed.Client or an executor, got {executor!r:.80}")
    if is_dask(chosen):
        from edl_ckpt.core.cluster.preflight import ask_workers, show_file

        if target is not None:
            check_shared(target)
        ask_workers(chosen, reporter)
        for version in versions:
            if version.shards:
                show_file(chosen, version.location, version.shards[0].path, reporter)
    return Job(chosen, workers if chosen.is_cluster else chosen.threads, reporter=reporter)


def check_source(executor: ExecutorLike | None, location: Location, path: str, *, reporter: Reporter) -> None:
    """Refuse, before any work, workers that do not see a file of a location as this process does: UnsupportedError."""
    chosen = wrapped(executor)
    if is_dask(chosen):
        from edl_ckpt.core.cluster.preflight import show_file

        show_file(chosen, location, path, reporter)


def wrapped(executor: ExecutorLike | None) -> ExecutorLike | None:
    """Return an executor for a `distributed.Client`, and everything else as it is.

    An executor asks the workers once, so whoever does several steps makes it first.
    """
    distributed = sys.modules.get("distributed")
    is_client = distributed is not None and isinstance(executor, distributed.Client)
    if not is_client:
        return executor
    from edl_ckpt.core.cluster.executor import ClusterExecutor

    return ClusterExecutor(executor)


def is_dask(executor: ExecutorLike | None) -> TypeGuard[ClusterExecutor]:
    """Say whether an executor hands tasks to a Dask cluster, whose workers can be asked."""
    if not getattr(executor, "is_cluster", False):
        return False
    from edl_ckpt.core.cluster.executor import ClusterExecutor

    return isinstance(executor, ClusterExecutor)


def check_shared(location: Location) -> None:
    """Raise UnsupportedError unless several processes can write a version there at a time, in parts of objects too."""
    properties = open_store(location).properties
    if not properties.rename and not properties.part_bytes:
        raise not_shared(location.url)


def not_shared(path: str) -> UnsupportedError:
    """Return the error for a target that several processes cannot write at a time."""
    return UnsupportedError(
        "a cluster writes only to S3, or to a file system that all of its workers share",
        path=path,
        hint="without --cluster, this machine writes there",
    )


def check_target(executor: ExecutorLike | None, location: Location, size_bytes: int, *, reporter: Reporter) -> None:
    """Refuse, before any work, workers that cannot write `size_bytes` at a location; threads of this process can.

    This comes before minutes of reading, so the lock is not taken: each worker reads and writes in a staging directory
    of our own, which everyone else leaves alone, and says how much room it sees. Nothing is left of it. Raises
    UnsupportedError, which names the worker; NoSpaceError when this process sees no room.
    """
    chosen = wrapped(executor)
    if is_dask(chosen):
        from edl_ckpt.core.cluster.preflight import share_target

        check_shared(location)
        share_target(chosen, location, size_bytes, reporter)
