"""The file system that a local path lies on, by what Linux says of its mounts.

The kernel reports changes (inotify) that were made through itself. On a file system of a network it reports none that
another machine made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern

_MOUNTS: Final = "/proc/self/mountinfo"
_OCTAL: Final = LatePattern(r"\\([0-7]{3})")
_REPORTING: Final = frozenset({
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs",
})  # fmt: skip
"""File systems of this machine alone. Any other one may be a network's, under whatever name."""


def reports_changes(path: str) -> bool:
    """Say whether the kernel reports every change of a directory: True only where no other machine can write."""
    return type_of(path) in _REPORTING


def type_of(path: str) -> str:
    """Return the type of the file system that a path lies on, '' where the system does not say."""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return filesystem_type(os.path.realpath(path), file.read())
    return ""


def filesystem_type(path: str, mounts: str) -> str:
    r"""Return the type of the file system that an absolute path lies on; `mounts` is the text of `mountinfo`.

    The last mount of a directory hides those before it. '' stands for an unknown type.

    >>> mounts = "22 1 8:1 / / rw - ext4 /dev/sda rw\n40 22 0:40 / /mnt/a\\040b rw shared:1 - nfs4 server:/x rw"
    >>> filesystem_type("/mnt/a b/run", mounts), filesystem_type("/mnt/a", mounts)
    ('nfs4', 'ext4')
    """
    found, deepest = "", 0
    for line in mounts.splitlines():
        place, _, system = line.partition(" - ")
        fields = place.split(" ")
        if len(fields) < 5 or not system:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= deepest:
            found, deepest = system.partition(" ")[0], len(point)
    return found
