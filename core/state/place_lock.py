"""The kernel's lock on a location's own directory: it needs no file, so it can be taken on a full disk.

The holder of the lock's file (`lock.py`) shares this lock. A command that only frees space, where the lock's file
cannot be written, takes it alone. So the two never work at the same time. Where the file system has no locks on
directories (some NFS servers), nothing is shared, and nothing can be taken alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final
from weakref import WeakSet

from edl_ckpt.core.storage.beneath import close_read

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES})
"""The errors by which the kernel says that another process has the lock."""


class PlaceLock:
    """A lock on a directory that this process holds; `close` gives it back."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _OPEN.add(self)

    def close(self) -> None:
        """Give the lock back; nothing happens when it was given back, or is a forked process's copy."""
        _OPEN.discard(self)
        fd, self._fd = self._fd, -1
        close_read(fd)


_OPEN: Final[WeakSet[PlaceLock]] = WeakSet()


def _close_copies() -> None:
    """Close a forked process's copies: each would keep the lock when the parent has ended."""
    for lock in list(_OPEN):
        lock.close()


os.register_at_fork(after_in_child=_close_copies)


def share_place(root: str) -> tuple[bool, PlaceLock | None]:
    """Share the lock of a directory; return (False, None) when another process has it alone.

    Returns (True, None) where the directory cannot be locked: then no process can have taken it alone.
    """
    try:
        return True, _locked(root, fcntl.LOCK_SH)
    except OSError as error:
        return error.errno not in _HELD, None


def take_place(root: str) -> PlaceLock | None:
    """Take the lock of a directory alone; None when another process holds or shares it.

    Raises OSError where the directory cannot be locked.
    """
    try:
        return _locked(root, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in _HELD:
            return None
        raise


def _locked(root: str, operation: int) -> PlaceLock:
    fd = os.open(root, _DIRECTORY)
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BaseException:
        close_read(fd)
        raise
    return PlaceLock(fd)
