"""What every worker of a cluster is asked before any work, so that one that cannot do it is refused by its name.

Each worker has the same edl-ckpt, memory for a task, and sees the same files. Where something is written it reads a
token, writes another one next to it, and sees room for everything. A worker that comes later is asked by its first
task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from edl_ckpt.core.base.errors import UnavailableError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.words import abridged, size
from edl_ckpt.core.cluster import worker
from edl_ckpt.core.cluster.executor import START_WORKERS, ClusterExecutor
from edl_ckpt.core.cluster.messages import Seen, SharedFile, Sight
from edl_ckpt.core.commit.meeting import SharedDirectory, SharedPrefix
from edl_ckpt.core.commit.publish.staging import Staging, remove_empty_state
from edl_ckpt.core.state.paths import STAGE_DIR
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.directories import made_directory
from edl_ckpt.core.storage.location import OPEN_OPTIONS, Location

_NAMED: Final = 3
_BLOCK_BYTES: Final = 512  # stat(2)
_LEAST_BYTES: Final = 32 << 20
"""Memory beyond that of an idle worker, with which a task can at least begin."""
_PROCESS_BYTES: Final = 128 << 20
_THREAD_BYTES: Final = 32 << 20
"""What the tasks of a worker take at most, of which most are ids that are compared, and what each thread takes."""
_ENVIRONMENT: Final = "workers take credentials from their own environment, as AWS_PROFILE or AWS_ACCESS_KEY_ID"


def ask_workers(executor: ClusterExecutor, reporter: Reporter) -> None:
    """Compare the edl-ckpt of every process with this one, and look at the memory of workers; only once."""
    executor.reporter = reporter
    if executor.asked:
        return
    mine = worker.look()
    found: dict[str, Any] = {"the scheduler": executor.ask_scheduler(worker.look)}
    found |= executor.ask(worker.look)
    if isinstance(found["the scheduler"], Seen) and not found["the scheduler"].has_dashboard:
        executor.dashboard = ""
    if len(found) == 1:
        raise UnavailableError("the cluster has no worker", hint=START_WORKERS)
    workers = executor.workers()
    slow: list[str] = []
    small: list[str] = []
    for address, seen in found.items():
        name = executor.name_of(address)
        _check_version(name, seen, mine)
        if address in workers:
            executor.versions[address] = seen.version
            if mine.has_kernel and not seen.has_kernel:
                slow.append(name)
            small += memory_warnings(name, seen, workers[address])
    if slow:
        reporter.warn(f"{abridged(slow, _NAMED)}: edl-ckpt has no compiled kernel there, so work takes longer")
    if small:
        reporter.warn(f"{abridged(small, _NAMED)}; a worker with too little memory waits, or is ended by Dask")
    executor.asked = True


def _check_version(name: str, seen: Any, mine: Seen) -> None:
    """Raise UnsupportedError unless a process has this edl-ckpt."""
    if not isinstance(seen, Seen):
        hint = f"install edl-ckpt {mine.version} where it runs"
        raise UnsupportedError(f"{name} cannot run edl-ckpt ({type(seen).__name__}: {seen})", hint=hint)
    if seen.version != mine.version:
        message = f"{name} has edl-ckpt {seen.version}, and this is {mine.version}"
        raise UnsupportedError(message, hint="install one version everywhere")


def memory_warnings(name: str, seen: Seen, info: dict[str, Any]) -> Iterator[str]:
    """Yield what to warn of when a worker may not have enough memory; raise UnsupportedError when it cannot work."""
    if not seen.usable_bytes:
        return
    limit, threads = int(info["memory_limit"]), int(info["nthreads"])
    needed = seen.memory_bytes + _PROCESS_BYTES + threads * _THREAD_BYTES
    if seen.usable_bytes >= needed:
        return
    enough = needed * limit // seen.usable_bytes
    if seen.usable_bytes < seen.memory_bytes + _LEAST_BYTES:
        raise UnsupportedError(
            f"{name} has a memory limit of {size(limit)}: Dask gives it no task above {size(seen.usable_bytes)}, and it"
            f" has {size(seen.memory_bytes)} in memory before any work",
            hint=f"start it with --memory-limit {-(-enough >> 20)}MiB or more",
        )
    yield f"{name} has a memory limit of {size(limit)} for --nthreads {threads}, and may need {size(enough)}"


def show_file(executor: ClusterExecutor, location: Location, shown_path: str, reporter: Reporter) -> None:
    """Let every worker open a file of a location; it must be the one that this process sees."""
    if (location.url, shown_path) in executor.shown:
        return
    path = shown_path if location.local_path is None else os.path.abspath(shown_path)
    mine = worker.see(location, path)
    if mine.fault:
        return  # the operation says it better
    _warn_of_credentials(executor, location, reporter)
    shown = SharedFile(location.without_credentials(), path, mine)
    for address, seen in executor.ask(worker.see, shown.location, path).items():
        name = executor.name_of(address)
        if seen == mine:
            continue
        message = f"{name} sees another file than this machine: {shown_path}"
        if not isinstance(seen, Sight) or seen.fault:
            why = seen.fault if isinstance(seen, Sight) else f"{type(seen).__name__}: {seen}"
            message = f"{name} cannot read the location ({why})"
        mount = "mount the volume with the checkpoints at the same path on every worker"
        raise UnsupportedError(message, path=location.url, hint=mount if location.local_path else _ENVIRONMENT)
    executor.shown[location.url, shown_path] = shown


def _warn_of_credentials(executor: ClusterExecutor, location: Location, reporter: Reporter) -> None:
    """Warn once of credentials that no worker gets."""
    hidden = set(location.options) - OPEN_OPTIONS - executor.hidden
    if hidden and not any(url == location.url for url, _ in executor.shown):
        reporter.warn(f"--storage-option {min(hidden)} is for this process only; {_ENVIRONMENT}")
    executor.hidden |= hidden


def share_target(executor: ClusterExecutor, location: Location, size_bytes: int, reporter: Reporter) -> None:
    """Let every worker write at a location; the rules and errors are those of `check_target`."""
    ask_workers(executor, reporter)
    path = location.local_path
    if path is None:
        _warn_of_credentials(executor, location, reporter)
        executor.share(SharedPrefix(location, f"{STAGE_DIR}/{new_id()}"), size_bytes)
        return
    # What dead commands left is removed under the lock, or is a part of a copy that is resumed.
    needed = max(size_bytes - _staged_bytes(path), 0)
    with made_directory(path, keep=False):
        try:
            with Staging(path, "preflight") as stage:
                stage.check_space(needed)
                executor.share(SharedDirectory(os.path.abspath(stage.path)), needed)
        finally:
            with Directory.open(path) as root:
                remove_empty_state(root)


def _staged_bytes(path: str) -> int:
    """Return how much of a disk the staging directories of a location take."""
    taken = 0
    for folder, _, names in os.walk(os.path.join(path, STAGE_DIR)):
        for name in names:
            with suppress(OSError):
                taken += os.lstat(os.path.join(folder, name)).st_blocks * _BLOCK_BYTES
    return taken
