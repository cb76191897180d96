"""What the kernel says of a directory and its file system, without a write, as facts for people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from edl_ckpt.core.base.words import extra_hint, size
from edl_ckpt.core.storage.facts import Fact, Verdict, judged
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.filesystems import reports_changes, type_of

_LITTLE_BYTES: Final = 1 << 30
_FEW_FILES: Final = 10_000
_FLEETING: Final = {
    "tmpfs": "files here take memory, and are lost at a restart",
    "ramfs": "files here take memory, and are lost at a restart",
    "overlay": "often the layer of a container: files here are then lost with it",
}
_SHARED: Final = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "gluster", "9p", "virtiofs", "afs", "beegfs")


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
    why = "" if os.access(path, os.W_OK | os.X_OK) else "this user cannot write there: what writes is refused (12)"
    why = "mounted read-only: what writes there is refused" if read_only else why
    return judged("access", "read only" if why else "read and write", why, weak=bool(why))


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
