"""Tasks on a few threads, results in the order of the tasks: the heavy work releases the GIL, so threads scale."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

_M_TRIM_THRESHOLD = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD = -3

Task = TypeVar("Task")
Result = TypeVar("Result")


REMOTE_WORKERS: Final = 8
"""Threads at work on storage that is far away: they wait more than they work."""
_stoppers: list[weakref.WeakMethod[Callable[[bool], None]]] = []


def default_workers(*, remote: bool = False) -> int:
    """Return the number of cores this process may use, at most 16; more where each waits for a network."""
    return max(min(len(os.sched_getaffinity(0)), 16), REMOTE_WORKERS if remote else 1)


def on_stop(stop: Callable[[bool], None]) -> None:
    """Have a bound method called with True when a signal ends parallel work, and with False when all of it has ended.

    What waits for a network is to be given up then: a user who interrupts waits two seconds at most.
    """
    _stoppers.append(weakref.WeakMethod(stop))


def _stop_all(*, stopped: bool) -> None:
    for reference in list(_stoppers):
        stop = reference()
        if stop is None:
            _stoppers.remove(reference)
        else:
            stop(stopped)


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed for the next batch, for the whole process.

    glibc gives large buffers back to the kernel at once, which then clears every page of the next one: a tenth of
    a reshard. A library must not decide this for its program, so only the command line calls it. Does nothing
    where the C library has no `mallopt`.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def run_parallel(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yield `function(task)` for each task, in their order; at most three tasks a worker are under way.

    The first error stops everything: tasks not yet begun never begin, and those under way are waited for.
    """
    if workers <= 1:
        yield from map(function, tasks)
        return
    waiting = iter(tasks)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="edl-ckpt")
    try:
        under_way: deque[Future[Result]] = deque(pool.submit(function, task) for task in islice(waiting, 3 * workers))
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(pool.submit(function, task) for task in islice(waiting, 1))
    except (KeyboardInterrupt, SystemExit):
        _stop_all(stopped=True)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _stop_all(stopped=False)
