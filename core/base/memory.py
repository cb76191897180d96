"""The memory of this process, as the kernel counts it, and what the C library does with freed memory."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import size

_M_TRIM_THRESHOLD = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_USUAL_THRESHOLD = 128 << 10  # of both, in glibc


def peak_memory_bytes() -> int:
    """Return the most memory that this process had at a time, in bytes.

    Linux tells it in VmHWM. `ru_maxrss` is the fallback only: it survives `exec`, so it may be that of the program
    that started this one.
    """
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:  # no /proc
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def memory_now_bytes() -> int:
    """Return the memory that this process has now, in bytes; 0 where the kernel does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc
        return 0


def physical_memory_bytes() -> int:
    """Return the memory of this machine in bytes; 0 where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def page_cache_bytes() -> int:
    """Return how much memory files can have at most: that of the machine, or of the container; 0 where nothing says."""
    found = [physical_memory_bytes()]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(path, "rb") as file:  # "max" without a limit
            found.append(int(file.read()))
    return min((size for size in found if size > 0), default=0)


def check_memory(size_bytes: int, what: str, path: str, hint: str = "`edl-ckpt export` writes it in pieces") -> None:
    """Raise EdlCkptError when an array needs more memory than this machine has.

    Kernels grant such memory, and kill the process when it uses it.
    """
    present = physical_memory_bytes()
    if present and size_bytes > present:
        raise EdlCkptError(
            f"{what} needs {size(size_bytes)} of memory; this machine has {size(present)}",
            path=path,
            hint=hint,
        )


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
