"""The places where file systems are mounted, as Linux says it: a deletion goes into none of them.

A directory that is mounted from the same device has the device of its surroundings, so the number of a device does not
tell. Where the kernel says nothing, only another device shows a mount.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern

_OCTAL: Final = LatePattern(rb"\\([0-7]{3})")
_MOUNT_ID: Final = LatePattern(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


def mount_points() -> frozenset[str]:
    """Return the real paths of all mount points that this process sees; none where the kernel does not say."""
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        return _points_in(file.read())
    return frozenset()


@functools.lru_cache(maxsize=1)  # the file is read each time, and says the same for each of a thousand versions
def _points_in(mounts: bytes) -> frozenset[str]:
    fields = (line.split(b" ", 5) for line in mounts.splitlines())
    paths = (_OCTAL.sub(_byte, each[4]) for each in fields if len(each) > 5)
    return frozenset(path.decode("utf-8", "surrogateescape") for path in paths)


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 0xFF])


def mount_of(fd: int) -> int | None:
    """Return a number that tells the mount of an open directory from all others; None where the kernel does not say."""
    with suppress(OSError):
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
            found = _MOUNT_ID.search(file.read())
        return int(found[1]) if found else None
    return None
