"""The file system that a local path lies on: what Linux says of its mounts, and what is known of it without a write.

The kernel reports changes (inotify) that were made through itself. On a file system of a network it reports none that
another machine made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from edl_ckpt.core.base.words import extra_hint, size
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import Fact, Verdict, judged

_MOUNTS: Final = "/proc/self/mountinfo"
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_REPORTING: Final = frozenset({
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs",
})  # fmt: skip
"""File systems of this machine alone. Any other one may be a network's, under whatever name."""
_LITTLE_BYTES: Final = 1 << 30
_FEW_FILES: Final = 10_000
_FLEETING: Final = {
    "tmpfs": "files here take memory, and are lost at a restart",
    "ramfs": "files here take memory, and are lost at a restart",
    "overlay": "often the layer of a container: files here are then lost with it",
}
_SHARED: Final = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "gluster", "9p", "virtiofs", "afs", "beegfs")


def reports_changes(path: str) -> bool:
    """Say whether the kernel reports every change of a directory: True only where no other machine can write."""
    return type_of(path) in _REPORTING


def type_of(path: str) -> str:
    """Return the type of the file system that a path lies on, '' where the system does not say."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    except OSError:
        return ""
    return filesystem_type(os.path.realpath(path), mounts)


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


def disk_facts(path: str) -> Iterator[Fact]:
    """Yield what the kernel says of a directory and its file system; the errors of looking at it."""
    with storage_errors(path):
        names = os.listdir(path)
        status = os.statvfs(path)
    kind = type_of(path)
    why = _FLEETING.get(kind, "")
    if kind.startswith(_SHARED):
        why = "of a network: a request is slower, and another machine may see a change later"
    unknown = Verdict.FINE if kind else Verdict.UNKNOWN
    yield Fact("file system", kind or "unknown", Verdict.WEAKER if why else unknown, why)
    yield _access(path, read_only=bool(status.f_flag & os.ST_RDONLY))
    yield _room(status)
    free_files = status.f_favail if status.f_files else _FEW_FILES
    if free_files < _FEW_FILES:
        yield Fact("free inodes", str(free_files), Verdict.WEAKER, "each shard and each file of metadata needs one")
    yield _changes(path)
    if len(names) > 100_000:
        yield Fact("entries", str(len(names)), Verdict.WEAKER, "every listing reads all of them")


def _access(path: str, *, read_only: bool) -> Fact:
    """Return whether this user can write there."""
    if read_only:
        return Fact("access", "read only", Verdict.WEAKER, "mounted read-only: what writes there is refused")
    if not os.access(path, os.W_OK | os.X_OK):
        return Fact("access", "read only", Verdict.WEAKER, "this user cannot write there: what writes is refused (12)")
    return Fact("access", "read and write")


def _room(status: os.statvfs_result) -> Fact:
    free = status.f_bavail * status.f_frsize
    shown = f"{size(free)} of {size(status.f_blocks * status.f_frsize)}"
    if free == 0:
        return Fact("free space", shown, Verdict.BROKEN, "nothing can be written")
    why = "reshard and import need room for a whole version next to the old one"
    return judged("free space", shown, why, weak=free < _LITTLE_BYTES)


def _changes(path: str) -> Fact:
    """Return how `wait` and `watch` hear of changes."""
    if not reports_changes(path):
        why = "other machines may write there unseen by this kernel, so `wait` and `watch` look every second"
        return Fact("reports changes (inotify)", "no", Verdict.WEAKER, why)
    if find_spec("watchfiles") is None:
        why = f"`wait` and `watch` look every second; {extra_hint('watch')}"
        return Fact("reports changes (inotify)", "yes, without watchfiles", Verdict.WEAKER, why)
    return Fact("reports changes (inotify)", "yes")
