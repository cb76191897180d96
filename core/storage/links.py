"""The way that a path leads: every component, every symbolic link on the way, and what they lead to."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from edl_ckpt.core.storage.faults import storage_errors

Identity: TypeAlias = tuple[int, int]
"""The device and the inode of a file: what two names of one file have in common."""
_MOST_LINKS: Final = 40
"""The kernel follows no more of them on one path."""
_NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EINVAL})
"""The errors of a path that leads nowhere, or nowhere that this process may go: nothing there is of this location."""


def led_through(path: str) -> Iterator[Identity]:
    """Yield the identity of each component that a path leads through, links themselves and their targets among them.

    Where it leads nowhere, it yields what there is before that. An error of the disk is raised: it may lead anywhere.
    """
    parts = deque(os.path.abspath(path).split("/"))
    here, links = "/", 0
    while parts:
        name = parts.popleft()
        if name in {"", "."}:
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, name)
        try:
            state = os.lstat(there)
            target = os.readlink(there) if stat.S_ISLNK(state.st_mode) else ""
        except OSError as error:
            if error.errno in _NOWHERE:
                return
            with storage_errors(there):
                raise
        yield state.st_dev, state.st_ino
        if not target:
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            return
        parts.extendleft(reversed(target.split("/")))
        here = "/" if target.startswith("/") else here
