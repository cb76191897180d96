"""Work as tasks, with results in their order: on threads of this process, or wherever else an `Executor` has them done.

Heavy work releases the GIL, so threads scale. What may be done in other processes is a `Work`: a value that opens what
its tasks need. An operation hands it to an executor, and does not know where its tasks are done.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import chain, islice
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeVar

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import COMMIT, WHOLE
from edl_ckpt.core.base.numbers import whole_number

if TYPE_CHECKING:  # it imports logging: a listing of a disk does without threads
    from concurrent.futures import Future, ThreadPoolExecutor

Task = TypeVar("Task")
Value = TypeVar("Value")
Result = TypeVar("Result")
Opened = TypeVar("Opened", bound="Resource")
_Task_contra = TypeVar("_Task_contra", contravariant=True)
_Result_co = TypeVar("_Result_co", covariant=True)
Advance = Callable[[int], None]
"""Takes how many more bytes are done; called from several threads."""
LOOK_SECONDS: Final = 0.25
"""How often a waiting thread checks whether its command was interrupted."""
SILENCE_SECONDS: Final = 1.5
"""How long cleaning up after an interruption waits for storage that does not answer."""
REMOTE_WORKERS: Final = 16
"""Threads for remote storage, where each waits more than it works."""
SMALL_READS: Final = 32
"""How many small files of remote storage, or beginnings of files, are read at a time: each is a wait, and few bytes."""
RESULT_BYTES: Final = 60 << 10
"""The most that a task gives back to another process by its own count: counts, sketches and checksums, and never rows.

With what pickle adds, that stays below 64 KiB.
"""
_stop: ContextVar[Event | None] = ContextVar("edl_ckpt_stop", default=None)
"""In a worker thread: set when a signal, or the owner of the thread, ends its work."""
_is_alone: ContextVar[bool] = ContextVar("edl_ckpt_is_alone", default=False)


@contextmanager
def _bound(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Let a variable of this thread have a value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def alone() -> AbstractContextManager[None]:
    """Let a task of a cluster be one thread: its process has as many as its owner wants."""
    return _bound(_is_alone, True)


def default_workers(*, remote: bool = False) -> int:
    """Return the number of cores this process may use, at most 16; more for remote storage; 1 when `alone`."""
    if _is_alone.get():
        return 1
    return max(min(len(os.sched_getaffinity(0)), 16), REMOTE_WORKERS if remote else 1)


def stop_when(stop: Event) -> None:
    """Let this thread, and the workers that it starts, stop waiting for a network once `stop` is set.

    For a thread that works beside a user, who may no longer want the result.
    """
    _stop.set(stop)


def stop_requested() -> bool:
    """Return True, in a worker of `run_parallel` or a thread with `stop_when`, when its work is to end.

    Everything that waits for a network checks this, so that Ctrl-C takes two seconds at most.
    """
    return (_stop.get() or _HASTE).is_set()


class _Patience(Event):
    """Is set by itself once no answer came for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._has_answers = False

    def answered(self) -> None:
        """Wait as long again."""
        self._has_answers = True
        self._until = time.monotonic() + self._seconds

    def begin(self) -> None:
        """Begin another block: a network that has answered in the one before gets its time again."""
        if self._has_answers:
            self.answered()

    def is_set(self) -> bool:
        return super().is_set() or time.monotonic() >= self._until

    def wait(self, timeout: float | None = None) -> bool:
        left = max(self._until - time.monotonic(), 0.0)
        super().wait(left if timeout is None else min(left, timeout))
        return self.is_set()


class _Haste(_Patience):
    """Is set once a signal waits for the end of a commit, and a storage was silent since for so many seconds.

    Waiters poll every 0.25 s; a longer gap means that the thread was busy, which is not silence.
    """

    def __init__(self) -> None:
        super().__init__(SILENCE_SECONDS)
        self._looked = 0.0

    def is_set(self) -> bool:
        if COMMIT.kept is None:
            return False
        before, self._looked = self._looked, time.monotonic()
        if self._looked - before > 4 * LOOK_SECONDS:
            self.answered()
        return self._looked >= self._until


_HASTE: Final = _Haste()


class _Stop(Event):
    """Ends the work of threads: when it is set, or with the haste after a commit."""

    def is_set(self) -> bool:
        return super().is_set() or _HASTE.is_set()


@contextmanager
def impatient(error: BaseException | None) -> Iterator[None]:
    """After an interruption, let this thread and its workers wait for a network that answers, and for no other.

    Nothing changes unless `error` is a KeyboardInterrupt or a SystemExit. Code that cleans up after one enters this:
    once the storage has been silent for SILENCE_SECONDS, waiting for it raises LockedError. All clean-ups after one
    interruption share those seconds.
    """
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        yield
        return
    bound = getattr(error, "edl_ckpt_patience", None) or _Patience(SILENCE_SECONDS)
    error.__dict__["edl_ckpt_patience"] = bound
    bound.begin()
    with _bound(_stop, bound):
        yield


def patience(seconds: float) -> AbstractContextManager[None]:
    """Let this thread wait in the block only while a storage answers within so many seconds; then LockedError."""
    return _bound(_stop, _Patience(seconds))


def answered() -> None:
    """Note that a storage has answered this thread, for those who are `impatient`."""
    stop = _stop.get()
    if isinstance(stop, _Patience):
        stop.answered()
    _HASTE.answered()


def pause(seconds: float) -> None:
    """Sleep; in a worker, wake up early when a signal ends the work."""
    stop = _stop.get()
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def _begin(pool: ThreadPoolExecutor, function: Callable[[Task], Result], task: Task) -> Future[Result]:
    """Begin a task."""
    with WHOLE:
        return pool.submit(function, task)


def _end_of(future: Future[Result]) -> SimpleQueue[None]:
    """Return a queue that gets an item when a task is done: a signal may end the wait for that anywhere."""
    done = SimpleQueue[None]()
    with WHOLE:
        future.add_done_callback(lambda _: done.put(None))
    return done


def _finish(future: Future[Result]) -> Result:
    """Wait for a task, and return its result or raise its error."""
    _end_of(future).get()  # in C
    with WHOLE:
        return future.result()


def run_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int, *, most: int | None = None
) -> Generator[Result, None, None]:
    """Yield `function(task)` for each task, in order, with at most `most` tasks under way: three per worker.

    The first error stops everything: no further task begins, and the call waits for those under way. A single task is
    done in this thread: many tables have one each, and a thread costs more than most of them.
    """
    waiting = iter(tasks)
    first = [] if workers <= 1 else list(islice(waiting, 2))
    waiting = chain(first, waiting)
    if len(first) < 2:
        yield from map(function, waiting)
        return
    from concurrent.futures import ThreadPoolExecutor  # only what has several workers needs it

    stop = _stop.get() or _Stop()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="edl-ckpt", initializer=_stop.set, initargs=(stop,))
    try:
        begun = islice(waiting, 3 * workers if most is None else most)
        under_way = deque(_begin(pool, function, task) for task in begun)
        while under_way:
            yield _finish(under_way.popleft())
            under_way.extend(_begin(pool, function, task) for task in islice(waiting, 1))
    except (KeyboardInterrupt, SystemExit):
        stop.set()
        raise
    finally:
        _end(pool)


def run_all(function: Callable[[Task], object], tasks: Iterable[Task], workers: int) -> None:
    """Do `function(task)` for each task, as `run_parallel` does, for the sake of its effect."""
    deque(run_parallel(function, tasks, workers), maxlen=0)


def _end(pool: ThreadPoolExecutor) -> None:
    """Begin no further task, and wait for those under way."""
    with WHOLE:
        pool.shutdown(wait=False, cancel_futures=True)
    pool.shutdown(wait=True)


def awaited(future: Future[Result]) -> Result:
    """Return the result of work in another thread, or raise its error; LockedError when a signal ends ours."""
    done = _end_of(future)
    while not stop_requested():
        try:
            done.get(timeout=LOOK_SECONDS)
        except Empty:
            continue
        with WHOLE:
            return future.result()
    raise LockedError("stopped")


class Beside:
    """Threads for tasks that run beside the work that begins them; they start with the first task."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._stop = _Stop()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def begin(self, function: Callable[[], Result]) -> Future[Result]:
        """Begin a task as soon as a thread is free."""
        from concurrent.futures import ThreadPoolExecutor  # as above

        with WHOLE, self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self._workers, "edl-ckpt-beside", initializer=_stop.set, initargs=(self._stop,)
                )
            return self._pool.submit(function)

    def close(self) -> None:
        """Stop the tasks that were not waited for, and end the threads."""
        with WHOLE:
            self._stop.set()
        if self._pool is not None:
            _end(self._pool)


class Resource(Protocol):
    """What the tasks of a work read and write with, opened once in each process; several threads use it."""

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read so far."""

    def close(self) -> None:
        """Release everything."""


class Work(Protocol[Opened, _Task_contra, _Result_co]):
    """A pass over data as a value: small, picklable, without credentials. It has what all of its tasks share.

    A task names files, extents and offsets. To do it twice, or in two processes at a time, must do no harm: an executor
    repeats tasks of processes that it lost.
    """

    def open(self) -> Opened:
        """Open what tasks need, in a process that is not the one of the operation."""

    def do(self, opened: Opened, task: _Task_contra, advance: Advance) -> _Result_co:
        """Do one task; tell `advance` how many bytes are done on the way."""


class Meeting(Protocol):
    """A place that all processes must reach: they find a token there, and leave one. It is a small value."""

    is_directory: ClassVar[bool]
    """True for a directory, which has an end; object storage has none."""
    hint: ClassVar[str]
    """What to do about a process that does not reach it."""

    @property
    def path(self) -> str:
        """Return its name for people."""

    def read(self, name: str) -> bytes:
        """Return a token; raises the error of the storage, a FileNotFoundError when this process sees none."""

    def has(self, name: str, token: str) -> bool:
        """Say whether a token is there that a worker wrote, in answer to another one."""
        try:
            return name.startswith(token) and self.read(name) == name.encode()
        except FileNotFoundError:
            return False

    def write(self, name: str, data: bytes) -> None:
        """Write a token."""

    def remove(self, name: str) -> None:
        """Remove a token; a missing one is no error."""


class Executor(Protocol):
    """Does the tasks of a work. Operations choose tasks by these properties, and ask for nothing else."""

    is_cluster: bool
    """Tasks are done in other processes: what this process keeps helps no task."""
    result_bytes: int
    """The most bytes that a task should give back."""
    openings: int | None
    """How many files are opened at a time; None where that depends on their storage alone."""
    task_threads: int
    """How many threads a task may use that this process does alone, as `Job.run` does them `in_turn`."""

    @property
    def threads(self) -> int:
        """Return how many tasks one process does at a time: they share its memory."""

    def limited(self, workers: int) -> Executor:
        """Return the same executor with so many threads of this process; other processes keep theirs."""

    def task_bytes(self, total_bytes: int) -> int:
        """Return how many of `total_bytes` of data one task should have; 0 where the smallest piece is best."""

    def run(
        self, work: Work[Opened, Task, Result], opened: Opened, tasks: Iterable[Task], advance: Advance
    ) -> Generator[Result, None, None]:
        """Yield the results of all tasks, in their order; `opened` is what the operation itself has opened.

        The first error ends the work, and no further task begins. Raises the errors of the tasks. A caller that may
        raise between two results closes the generator, which ends the work.
        """

    def share(self, place: Meeting, size_bytes: int = 0) -> None:
        """Raise UnsupportedError unless every process can read and write there, with room for some bytes."""

    def check_temporary(self, size_bytes: int, tasks: int) -> None:
        """Raise UnsupportedError where another process lacks room for temporary files of `size_bytes` a task."""

    def bytes_read(self) -> int:
        """Return how many bytes other processes have read for this executor so far."""


class Threads:
    """The executor that every operation uses without another one: threads of this process."""

    is_cluster = False
    result_bytes = sys.maxsize
    openings: int | None = None

    def __init__(self, workers: int) -> None:
        self.threads = self.task_threads = whole_number("workers", workers, least=1)

    def __repr__(self) -> str:
        return f"Threads({self.threads})"

    def limited(self, workers: int) -> Threads:
        """Return an executor with so many threads."""
        return type(self)(workers)

    def task_bytes(self, total_bytes: int) -> int:  # noqa: ARG002 - the protocol has it
        """Return 0: a thread takes the next piece in no time."""
        return 0

    def run(
        self, work: Work[Opened, Task, Result], opened: Opened, tasks: Iterable[Task], advance: Advance
    ) -> Generator[Result, None, None]:
        """Yield the results of all tasks, done in threads with what the operation has opened."""
        return run_parallel(lambda task: work.do(opened, task, advance), tasks, self.threads)

    def share(self, place: Meeting, size_bytes: int = 0) -> None:
        """Do nothing: this process has made it."""

    def check_temporary(self, size_bytes: int, tasks: int) -> None:
        """Do nothing: in this process, such a file is allocated when it is made."""

    def bytes_read(self) -> int:
        """Return 0: the operation has opened all that is read."""
        return 0
