"""How the C library treats freed memory: it keeps it while much is allocated, and gives it back at the end."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_M_TRIM_THRESHOLD = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_USUAL_THRESHOLD = 128 << 10  # of both, in glibc


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory for the next batch, in the whole process.

    glibc returns large buffers to the kernel at once, and the kernel then clears every page of the next one. That is a
    tenth of the time of a reshard. Threads that wait for a network share the memory of the cores: with an area for each
    of them, glibc keeps 100 MiB more. A library must not decide this for its program, so only the command line calls
    it. Does nothing where the C library has no `mallopt`.
    """
    if _set_thresholds(32 << 20, 256 << 20):
        _libc().mallopt(_M_ARENA_MAX, max(len(os.sched_getaffinity(0)), 2))


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the C library keep freed memory for a while, and return it to the kernel at the end.

    That is for the process of somebody else, as a worker of a cluster, whose environment may want the opposite: Dask's
    own setting makes its workers clear every page again for each buffer, a third of the CPU of a reshard.
    """
    if not _set_thresholds(32 << 20, 256 << 20):
        yield
        return
    try:
        yield
    finally:
        wanted = (os.environ.get(f"MALLOC_{name}_THRESHOLD_", "") for name in ("MMAP", "TRIM"))
        _set_thresholds(*(int(text) if text.isdecimal() else _USUAL_THRESHOLD for text in wanted))
        _libc().malloc_trim(0)


def _set_thresholds(mmap_bytes: int, trim_bytes: int) -> bool:
    """Set from where on memory is mapped apart, and returned to the kernel; False without glibc."""
    try:
        mallopt = _libc().mallopt
    except (OSError, AttributeError):
        return False
    mallopt(_M_MMAP_THRESHOLD, mmap_bytes)
    mallopt(_M_TRIM_THRESHOLD, trim_bytes)
    return True


@functools.cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None)
