"""Tasks on a few threads, results in the order of the tasks: the heavy work releases the GIL, so threads scale."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_M_TRIM_THRESHOLD = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD = -3

Task = TypeVar("Task")
Result = TypeVar("Result")


def default_workers() -> int:
    """Return the number of cores this process may use, at most 16."""
    return min(len(os.sched_getaffinity(0)), 16)


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
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
