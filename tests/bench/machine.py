"""What a table of figures says about the machine that they were measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import numpy as np

from edl_ckpt.core.kernel import bulk


def machine() -> str:
    """Return the processor and its speed at two inner loops, memory, disk, kernel, load, and the day, as a sentence.

    Sorting and copying differ by two between machines of one kind, and figures with them.
    """
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    kernel = "the compiled kernel" if bulk.kernel is not None else "numpy alone"
    return (
        f"{cores} cores of {processor()}, {memory:.0f} GiB; `np.sort` of random int64 {sort_ns():.0f} ns a key, a copy "
        f"in memory {copy_speed():.1f} GB/s; Linux {platform.release().split('-')[0]}, Python "
        f"{platform.python_version()}, numpy {np.__version__}, {kernel}; load of others before it began {load:.1f}; "
        f"{time.strftime('%Y-%m-%d')}"
    )


def processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def sort_ns(count: int = 4_000_000) -> float:
    """Return the nanoseconds that `np.sort` takes for a random int64; less than 20 with AVX-512 or AVX2 sorts."""
    keys = np.random.default_rng(1).integers(0, 1 << 62, count)
    return 1e9 * min(_timed(lambda: np.sort(keys)) for _ in range(3)) / count


def copy_speed(size: int = 1 << 28) -> float:
    """Return how many GB a second are copied from memory to memory."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return size / min(_timed(lambda: np.copyto(target, source)) for _ in range(3)) / 1e9


def _timed(function: object) -> float:
    assert callable(function)
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
