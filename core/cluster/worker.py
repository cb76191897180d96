"""What runs in a worker: tasks of a published work, and the answers to the questions that come before any work."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.memory import memory_now_bytes
from edl_ckpt.core.base.parallel import alone
from edl_ckpt.core.cluster.messages import VERSION, Done, Published, Seen, SharedFile, Sight
from edl_ckpt.core.cluster.openings import Openings
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.storage import Location, open_store

_asked_for: Final[set[tuple[str, str]]] = set()
"""The files that this process has looked at for a command: (location, path)."""


@functools.cache
def _process(pid: int) -> str:
    """Return a name that no other process has: addresses and numbers are used again, and a fork has all but its pid."""
    return f"{os.uname().nodename}:{pid}:{uuid.uuid4().hex}"


_OPENINGS: Final = Openings()


def do_task(data: bytes, published: Published) -> Done:
    """Do one task of a work; raises the errors of the task."""
    if published.version != VERSION:  # it came after the others were asked
        fault = f"has edl-ckpt {VERSION}, and the command {published.version}"
        raise _latecomer(fault, "install one version everywhere")
    _catch_up(pickle.loads(published.shown))  # noqa: S301 - the scheduler runs any code anyway
    begin = time.perf_counter()
    done: list[int] = []  # several threads append to it
    with _OPENINGS.use(published) as opening, alone():
        result = opening.work.do(opening.resource, pickle.loads(data), done.append)  # noqa: S301 - as above
        read = opening.resource.bytes_read
    return Done(result, sum(done), time.perf_counter() - begin, _process(os.getpid()), read)


def end_work(token: str) -> None:
    """Close what this worker has opened for a work."""
    _OPENINGS.end(token)


def look(dask_worker: Any = None) -> Seen:
    """Say which edl-ckpt this process has, and which worker it is; Dask gives a worker, or the scheduler, itself."""
    has_kernel, manager = bulk.kernel is not None, getattr(dask_worker, "memory_manager", None)
    if manager is None:
        return Seen(VERSION, has_kernel, has_dashboard="distributed.dashboard.scheduler" in sys.modules)
    limit, part = manager.memory_limit or 0, manager.memory_pause_fraction or 1.0
    return Seen(VERSION, has_kernel, dask_worker.contact_address, memory_now_bytes(), int(limit * part))


def see(location: Location, path: str) -> Sight:
    """Open a file of a location, and say what it is."""
    try:
        with open_store(location).open(path) as reader:
            found = Sight(reader.size_bytes, reader.generation)
    except EdlCkptError as error:
        return Sight(fault=str(error))
    _asked_for.add((location.url, path))
    return found


def _catch_up(shown: Sequence[SharedFile]) -> None:
    """Look at the files that the others were shown before this worker came; raises UnsupportedError."""
    for location, path, sight in shown:
        if (location.url, path) in _asked_for:
            continue
        found = see(location, path)
        if found != sight:
            why = found.fault or "it is not the file that the command sees"
            hint = "stop it, or give it the mounts and the environment of the other workers"
            raise _latecomer(f"cannot read {path} ({why})", hint, location.url)


def _latecomer(fault: str, hint: str, path: str | None = None) -> UnsupportedError:
    """Return the error of a worker that came after the others were asked, and is not as they are."""
    from distributed import get_worker

    me = get_worker()
    name = f"worker {me.name}" if me.name == me.contact_address else f"worker {me.name} at {me.contact_address}"
    return UnsupportedError(f"{name}, which came during the work, {fault}", path=path, hint=hint)
