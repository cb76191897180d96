"""Tasks on a few threads, with results in the order of the tasks. Heavy work releases the GIL, so threads scale."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from itertools import chain, islice
from threading import Event
from typing import Final, TypeVar

_M_TRIM_THRESHOLD = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

Task = TypeVar("Task")
Result = TypeVar("Result")


REMOTE_WORKERS: Final = 16
"""Threads for remote storage, where each waits more than it works."""
_stop: ContextVar[Event | None] = ContextVar("edl_ckpt_stop", default=None)
"""In a worker thread: set when a signal ends the work of its pool."""


def default_workers(*, remote: bool = False) -> int:
    """Return the number of cores this process may use, at most 16; more for remote storage."""
    return max(min(len(os.sched_getaffinity(0)), 16), REMOTE_WORKERS if remote else 1)


def stop_requested() -> bool:
    """Return True, in a worker of `run_parallel`, when a signal is ending the work.

    Everything that waits for a network checks this, so that Ctrl-C takes two seconds at most.
    """
    stop = _stop.get()
    return stop is not None and stop.is_set()


def pause(seconds: float) -> None:
    """Sleep; in a worker, wake up early when a signal ends the work."""
    stop = _stop.get()
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory for the next batch, in the whole process.

    glibc returns large buffers to the kernel at once, and the kernel then clears every page of the next one. That is a
    tenth of the time of a reshard. Threads that wait for a network share the memory of the cores: with an area for each
    of them, glibc keeps 100 MiB more. A library must not decide this for its program, so only the command line calls
    it. Does nothing where the C library has no `mallopt`.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_ARENA_MAX, max(len(os.sched_getaffinity(0)), 2))


def collect_rarely() -> None:
    """Let Python look for cycles of objects only after many new ones, in the whole process.

    The index of many tables is many objects without a cycle, and each look goes over all of them: it is a fifth of the
    time of a reshard of thousands of tables. As `keep_freed_memory`, it is for the command line.
    """
    import gc

    gc.set_threshold(100_000, 50, 50)


def run_parallel(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yield `function(task)` for each task, in order, with at most three tasks per worker under way.

    The first error stops everything: no further task begins, and the call waits for those under way. A single task is
    done in this thread: many tables have one each, and a thread costs more than most of them.
    """
    waiting = iter(tasks)
    first = [] if workers <= 1 else list(islice(waiting, 2))
    waiting = chain(first, waiting)
    if len(first) < 2:
        yield from map(function, waiting)
        return
    stop = Event()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="edl-ckpt", initializer=_stop.set, initargs=(stop,))
    try:
        under_way: deque[Future[Result]] = deque(pool.submit(function, task) for task in islice(waiting, 3 * workers))
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(pool.submit(function, task) for task in islice(waiting, 1))
    except (KeyboardInterrupt, SystemExit):
        stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
