"""The tree of a directory on a disk.

Directories are opened without following links, one at a time. A mount point is an entry, and nothing below it is: its
content belongs to another file system, or to another place of this one.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Final

from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import lacking, storage_errors
from edl_ckpt.core.storage.mounts import mount_points
from edl_ckpt.core.storage.tree import MOST_DEPTH, MOST_ENTRIES, Kind, TreeEntry, too_large

_KINDS: Final = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.LINK,
                 stat.S_IFIFO: Kind.PIPE, stat.S_IFSOCK: Kind.SOCKET}  # fmt: skip
_CHANGED: Final = frozenset({errno.ENOENT, errno.EINVAL})
"""The errors by which the kernel says that something is no link any more; what it is now shows in the next look."""


def local_tree(top: Directory, mounts: frozenset[str] | None = None) -> dict[str, TreeEntry]:
    """Return every entry below an open directory, in the order of their paths; RefusedError for too many.

    What disappears while it is looked at is left out. A directory that cannot be listed raises its error. A caller
    that looks at many directories gives `mounts`, the real paths of all mount points; None reads them now.
    """
    found: dict[str, TreeEntry] = {}
    mounted = _mounts_below(top, mount_points() if mounts is None else mounts)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        if folder.count("/") > MOST_DEPTH:
            raise too_large(top.path)
        inner = _of_directory(top, folder, mounted)
        found |= inner
        if len(found) > MOST_ENTRIES:
            raise too_large(top.path)
        waiting += [path for path, entry in inner.items() if entry.kind is Kind.DIRECTORY]
    if not any("/" in path for path in found):  # as in most versions
        return dict(sorted(found.items(), key=itemgetter(0)))
    return dict(sorted(found.items(), key=lambda item: item[0].split("/")))


def _mounts_below(top: Directory, mounts: frozenset[str]) -> frozenset[str]:
    """Return the mount points below an open directory, by their paths in it; none where the system does not say."""
    with suppress(OSError):
        real = os.readlink(f"/proc/self/fd/{top.fd}").rstrip("/")
        return frozenset(point[len(real) + 1 :] for point in mounts if point.startswith(f"{real}/"))
    return frozenset()


def _of_directory(top: Directory, folder: str, mounts: frozenset[str]) -> dict[str, TreeEntry]:
    """Return the entries of one directory, by their paths below the top."""
    entries: dict[str, TreeEntry] = {}
    directory = top.enter(folder) if folder else top
    try:
        with storage_errors(directory.path):
            names = os.listdir(directory.fd)
        for name in names:
            path = f"{folder}/{name}" if folder else name
            try:
                state: os.stat_result | None = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            except OSError:
                state = directory.stat(name)  # None when it is gone; else this raises the error, with the path
            if state is not None:
                entries[path] = _entry(directory, name, state, is_mount=path in mounts)
    finally:
        if directory is not top:
            directory.close()
    return entries


def _entry(directory: Directory, name: str, state: os.stat_result, *, is_mount: bool) -> TreeEntry:
    entry = entry_of(state)
    if is_mount:
        return replace(entry, kind=Kind.MOUNT)
    if entry.kind is Kind.LINK:
        with storage_errors(directory.join(name)), lacking(_CHANGED):
            return replace(entry, leads_to=os.readlink(name, dir_fd=directory.fd))
    return entry


def entry_of(state: os.stat_result) -> TreeEntry:
    """Return an entry from its state; where a link leads, and whether something is mounted there, it does not say."""
    kind = _KINDS.get(stat.S_IFMT(state.st_mode), Kind.DEVICE)
    mark, size = f"{state.st_ino:x}", 0  # the time of a directory says no more than its entries
    if kind is Kind.FILE:
        mark, size = f"{state.st_ino:x}_{state.st_size:x}_{state.st_mtime_ns:x}", state.st_size
    identity = (state.st_dev, state.st_ino)
    return TreeEntry(kind, size, mark, modified=state.st_mtime, identity=identity, names=state.st_nlink)
