"""The memory of this process and of the machine, as the kernel counts it."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import size


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
