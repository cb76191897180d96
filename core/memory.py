"""The memory of this process, as the kernel counts it."""

from __future__ import annotations

import resource


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
