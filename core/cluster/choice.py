"""Which executor an operation uses: threads, or a cluster, once every worker of that has answered.

Before any work every process of a cluster says which edl-ckpt it has, and what it sees of the location. What could not
work is refused then, with the name of the worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from edl_ckpt.core.cluster import worker
from edl_ckpt.core.cluster.connection import START_WORKERS, connected, meanings
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.cluster.worker import Seen, Sight
from edl_ckpt.core.errors import UnavailableError, UnsupportedError, UsageError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.parallel import Executor, Threads, default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.location import OPEN_OPTIONS, Location
from edl_ckpt.core.words import abridged

ExecutorLike: TypeAlias = Executor | Any
"""What the public functions take: an executor, or a `distributed.Client`."""
_NAMED: Final = 3
_ENVIRONMENT: Final = "workers take credentials from their own environment, as AWS_PROFILE or AWS_ACCESS_KEY_ID"


def executor_of(
    executor: ExecutorLike | None, versions: Sequence[Version], *, workers: int | None = None, reporter: Reporter
) -> Executor:
    """Return the executor that an operation on these versions uses: that of the caller, or threads.

    The workers of a cluster are asked first. Raises UsageError for what is no executor, UnsupportedError for a worker
    that cannot do the work, UnavailableError for a cluster without workers.
    """
    if executor is None:
        remote = any(open_store(version.location).properties.round_trips for version in versions)
        return Threads(default_workers(remote=remote) if workers is None else workers)
    if _is_client(executor):
        executor = ClusterExecutor(executor)
    if not isinstance(executor, ClusterExecutor):
        if not hasattr(executor, "run"):
            raise UsageError(f"expected a distributed.Client or an executor, got {executor!r:.80}")
        chosen: Executor = executor
        return chosen
    _ask_all(executor, reporter)
    for version in versions:
        _show(executor, version, reporter)
    return executor


def _is_client(executor: object) -> bool:
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(executor, distributed.Client)


@contextmanager
def cluster_at(address: str, *, reporter: Reporter = SILENT) -> Iterator[ClusterExecutor]:
    """Connect to a cluster by its address; errors as `connected`."""
    with connected(address, reporter) as client:
        executor = ClusterExecutor(client)
        services = client.scheduler_info(n_workers=0).get("services", {})
        executor.dashboard = client.dashboard_link if "dashboard" in services else ""
        yield executor
        executor.log_slowest()


def _ask_all(executor: ClusterExecutor, reporter: Reporter) -> None:
    """Compare the edl-ckpt of every process with this one; only once."""
    if executor.asked:
        return
    mine = worker.look()
    with meanings():
        found: dict[str, Any] = {"the scheduler": _of_scheduler(executor)}
        found |= executor.client.run(worker.look, on_error="return")
    if len(found) == 1:
        raise UnavailableError("the cluster has no worker", hint=START_WORKERS)
    names = executor.workers()
    slow = []
    for address, seen in found.items():
        name = _name(address, names)
        if not isinstance(seen, Seen):
            raise UnsupportedError(
                f"{name} cannot run edl-ckpt ({type(seen).__name__}: {seen})",
                hint=f"install edl-ckpt {mine.version} where it runs",
            )
        if seen.version != mine.version:
            raise UnsupportedError(
                f"{name} has edl-ckpt {seen.version}, and this is {mine.version}",
                hint="install one version everywhere",
            )
        if mine.has_kernel and not seen.has_kernel and address in names:
            slow.append(name)
    if slow:
        reporter.warn(f"{abridged(slow, _NAMED)}: edl-ckpt has no compiled kernel there, so work takes longer")
    executor.asked = True


def _of_scheduler(executor: ClusterExecutor) -> Any:
    """Return what the scheduler says; it unpacks what workers are sent."""
    try:
        return executor.client.run_on_scheduler(worker.look)
    except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
        return error


def _show(executor: ClusterExecutor, version: Version, reporter: Reporter) -> None:
    """Let every worker open a file of a version; it must be the one that this process sees."""
    location, shards = version.location, version.shards
    if not shards or (location.url, shards[0].path) in executor.checked:
        return
    path = _absolute(location, shards[0].path)
    mine = worker.see(location, path)
    if mine.fault:
        return  # the operation says it better
    hidden = set(location.options) - OPEN_OPTIONS
    if hidden:
        reporter.warn(f"--storage-option {min(hidden)} is for this process only; {_ENVIRONMENT}")
    with meanings():
        found: dict[str, Any] = executor.client.run(worker.see, location.without_credentials(), path, on_error="return")
    for address, seen in found.items():
        name = _name(address, executor.workers())
        if not isinstance(seen, Sight) or seen.fault:
            why = seen.fault if isinstance(seen, Sight) else f"{type(seen).__name__}: {seen}"
            raise UnsupportedError(
                f"{name} cannot read the location ({why})", path=location.url, hint=_sharing(location)
            )
        if seen != mine:
            raise UnsupportedError(
                f"{name} sees another file than this machine: {shards[0].path}",
                path=location.url,
                hint=_sharing(location),
            )
    executor.checked.add((location.url, shards[0].path))


def _absolute(location: Location, path: str) -> str:
    return path if location.local_path is None else os.path.abspath(path)


def _sharing(location: Location) -> str:
    if location.local_path is None:
        return _ENVIRONMENT
    return "mount the volume with the checkpoints at the same path on every worker"


def _name(address: str, workers: dict[str, dict[str, Any]]) -> str:
    """Return how people know a process of the cluster."""
    if address not in workers:
        return address if "://" not in address else f"worker {address}"
    name = workers[address].get("name", address)
    return f"worker {name}" if name == address else f"worker {name} at {address}"


def check_shared(location: Location) -> None:
    """Raise UnsupportedError unless several processes can write a version there at a time."""
    if not open_store(location).properties.rename:
        raise UnsupportedError(
            "a cluster writes only to a file system that all of its workers share",
            path=location.url,
            hint="without --cluster, this machine writes there",
        )
