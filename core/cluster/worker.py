"""What runs in a worker: tasks of a published work, and the answers to the questions that come before any work.

A worker opens a work once, and all of its tasks use what it opened. The command says when a work is over. Should that
word be lost, the oldest openings give way to new ones. Everything here is small, and gets and gives small values.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import threading
import time
import uuid
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base import version
from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.freed_memory import kept_memory
from edl_ckpt.core.base.memory import memory_now_bytes
from edl_ckpt.core.base.parallel import Resource, Work, alone
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.location import OPEN_OPTIONS

VERSION: str = version.VERSION
_MOST_OPENED: Final = 4
_MOST_ENDED: Final = 1000
_asked_for: Final[set[tuple[str, str]]] = set()
"""The files that this process has looked at for a command: (location, path)."""


@functools.cache
def _process(pid: int) -> str:
    """Return a name that no other process has: addresses and numbers are used again, and a fork has all but its pid."""
    return f"{os.uname().nodename}:{pid}:{uuid.uuid4().hex}"


class _Packer(pickle.Pickler):
    """Packs values for other processes, and no credentials."""

    def reducer_override(self, value: Any) -> Any:
        """Take the credentials out of every location."""
        if isinstance(value, Location) and not value.options.keys() <= OPEN_OPTIONS:
            return Location, (value.url, value.without_credentials().options)
        return NotImplemented


def packed(value: object) -> bytes:
    """Return a value for another process, without any credentials in it."""
    stream = io.BytesIO()
    _Packer(stream).dump(value)
    return stream.getvalue()


class Published(NamedTuple):
    """A work for all tasks, as the scheduler keeps it: whoever needs it gets it from another worker, or from there."""

    token: str
    version: str
    data: bytes
    shown: bytes
    """What each worker was shown before any work; one that came later looks at it before its first task."""

    @classmethod
    def of(cls, work: Work[Any, Any, Any], shown: Sequence[SharedFile] = ()) -> Published:
        """Return a work under a new name."""
        return cls(uuid.uuid4().hex, VERSION, zlib.compress(packed(work), 1), packed(tuple(shown)))


class Done(NamedTuple):
    """A finished task: its result, and what the command counts and shows."""

    result: Any
    done_bytes: int
    seconds: float
    process: str
    read_bytes: int
    """What the process has read for this work so far."""


class Seen(NamedTuple):
    """What a process says of itself."""

    version: str
    has_kernel: bool
    address: str = ""
    """That of a worker; another process may answer at the address of one that is gone."""
    memory_bytes: int = 0
    """What a worker has in memory before any work."""
    usable_bytes: int = 0
    """The memory above which Dask gives a worker no more tasks; 0 without a limit."""
    has_dashboard: bool = False
    """The pages of a scheduler are there: they need a library of their own, and its address does not say."""


class Sight(NamedTuple):
    """A file as a process sees it, or the reason why it does not."""

    size_bytes: int = -1
    generation: str = ""
    fault: str = ""


class SharedFile(NamedTuple):
    """A file that every worker must see as the command does."""

    location: Location
    path: str
    sight: Sight


@dataclass(slots=True)
class _Opening:
    work: Work[Any, Any, Any]
    resource: Resource
    users: int = 0
    is_over: bool = False


class _Openings:
    """What this process has opened, by the names of works; what is used stays open until nobody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, _Opening] = OrderedDict()
        self._ended: deque[str] = deque(maxlen=_MOST_ENDED)
        self._memory = ExitStack()
        """Has something while there are tasks: then freed memory stays for the next one."""
        self._keeps_memory = False

    @contextmanager
    def use(self, published: Published) -> Iterator[_Opening]:
        """Open a work, or use the opening that is there."""
        with self._lock:
            opening = self._opened.get(published.token)
            if opening is None:
                work = pickle.loads(zlib.decompress(published.data))  # noqa: S301 - the scheduler runs any code anyway
                # A task that was on its way when its work ended opens it for itself: nobody would close it later.
                opening = _Opening(work, work.open(), is_over=published.token in self._ended)
            if not opening.is_over:
                self._opened[published.token] = opening
                self._opened.move_to_end(published.token)
                if not self._keeps_memory:
                    self._memory.enter_context(kept_memory())
                    self._keeps_memory = True
            opening.users += 1
            old = [token for token in self._opened if token != published.token][: 1 - _MOST_OPENED]
            closing = [self._opened.pop(token) for token in old]
            for each in closing:
                each.is_over = True
        for each in closing:
            self._close_unused(each)
        try:
            yield opening
        finally:
            with self._lock:
                opening.users -= 1
            self._close_unused(opening)

    def end(self, token: str) -> None:
        """Close a work, as soon as no task uses it."""
        with self._lock:
            self._ended.append(token)
            opening = self._opened.pop(token, None)
            if opening is None:
                return
            opening.is_over = True
            if not any(each.users for each in self._opened.values()):  # those of a killed command stay open
                self._memory.close()
                self._keeps_memory = False
        self._close_unused(opening)

    def _close_unused(self, opening: _Opening) -> None:
        with self._lock:
            if opening.users or not opening.is_over:
                return
            opening.is_over = False  # closed once
        opening.resource.close()


_OPENINGS: Final = _Openings()


def do_task(data: bytes, published: Published) -> Done:
    """Do one task of a work; raises the errors of the task."""
    if published.version != VERSION:  # it came after the others were asked
        fault = f"has edl-ckpt {VERSION}, and the command {published.version}"
        raise _latecomer(fault, "install one version everywhere")
    _catch_up(pickle.loads(published.shown))  # noqa: S301 - see below
    begin = time.perf_counter()
    done: list[int] = []  # several threads append to it
    with _OPENINGS.use(published) as opening, alone():
        result = opening.work.do(opening.resource, pickle.loads(data), done.append)  # noqa: S301 - see above
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
