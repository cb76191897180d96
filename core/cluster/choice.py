"""Which executor an operation uses: threads, or a cluster, once every worker of that has answered."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import Executor, Threads, default_workers
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.cluster import preflight
from edl_ckpt.core.cluster.connection import connected
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.cluster.preflight import ask_workers, show_version
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.location import Location

ExecutorLike: TypeAlias = Executor | Any
"""What the public functions take: an executor, or a `distributed.Client`."""


def job_of(
    executor: ExecutorLike | None,
    versions: Sequence[Version],
    *,
    target: Location | None = None,
    workers: int | None = None,
    memory_bytes: int | None = None,
    reporter: Reporter = WARNINGS,
) -> Job:
    """Return the job of an operation on these versions: with the executor of the caller, or with threads.

    Raises as `executor_of`.
    """
    chosen = executor_of(executor, versions, target=target, workers=workers, reporter=reporter)
    if not chosen.is_cluster:
        workers = chosen.threads
    elif workers is None:
        workers = _default_workers(versions, target)
    return Job(chosen, workers, memory_bytes, reporter)


def executor_of(
    executor: ExecutorLike | None,
    versions: Sequence[Version],
    *,
    target: Location | None = None,
    workers: int | None = None,
    reporter: Reporter,
) -> Executor:
    """Return the executor that an operation on these versions uses: that of the caller, or threads.

    The workers of a cluster are asked first. Raises UsageError for what is no executor, UnsupportedError for a worker
    that cannot do the work, and for a `target` that several processes cannot write at a time; UnavailableError for a
    cluster without workers.
    """
    if executor is None:
        return Threads(_default_workers(versions, target) if workers is None else workers)
    given: Any = wrapped(executor)
    if not isinstance(given, ClusterExecutor):
        if not hasattr(given, "run"):
            raise UsageError(f"expected a distributed.Client or an executor, got {executor!r:.80}")
        chosen: Executor = given
        return chosen
    if target is not None:
        check_shared(target)
    ask_workers(given, reporter)
    for version in versions:
        show_version(given, version, reporter)
    return given


def _default_workers(versions: Sequence[Version], target: Location | None) -> int:
    """Return as many threads as reading some versions, and writing to a target, can use."""
    locations = [version.location for version in versions] + ([] if target is None else [target])
    return default_workers(remote=any(location.is_far for location in locations))


def check_target(executor: ExecutorLike | None, location: Location, size_bytes: int, *, reporter: Reporter) -> None:
    """Refuse, before any work, workers that cannot write `size_bytes` at a location; threads of this process can.

    Raises UnsupportedError, which names the worker; NoSpaceError when this process sees no room.
    """
    executor = wrapped(executor)
    if isinstance(executor, ClusterExecutor):
        check_shared(location)
        preflight.check_target(executor, location, size_bytes, reporter)


def check_source(executor: ExecutorLike | None, location: Location, path: str, *, reporter: Reporter) -> None:
    """Refuse, before any work, workers that do not see a file of a location as this process does: UnsupportedError."""
    executor = wrapped(executor)
    if isinstance(executor, ClusterExecutor):
        preflight.show_file(executor, location, path, reporter)


def wrapped(executor: ExecutorLike | None) -> ExecutorLike | None:
    """Return an executor for a `distributed.Client`, and everything else as it is.

    An executor asks the workers once, so whoever does several steps makes it first.
    """
    distributed = sys.modules.get("distributed")
    is_client = distributed is not None and isinstance(executor, distributed.Client)
    return ClusterExecutor(executor) if is_client else executor


@contextmanager
def cluster_at(address: str, *, reporter: Reporter = WARNINGS) -> Iterator[ClusterExecutor]:
    """Connect to a cluster by its address; errors as `connected`."""
    with connected(address, reporter) as client:
        executor = ClusterExecutor(client)
        services = executor.identity().get("services", {})
        executor.dashboard = client.dashboard_link if "dashboard" in services else ""
        yield executor
        executor.log_slowest()


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
