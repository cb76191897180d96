"""The files that this process keeps open: as many as the system allows, but for a reserve for everything else.

A version may have more shards than a process may have open files. So the soft limit is raised to the hard one, once,
when the first file is opened. Files beyond the limit are opened for each read or write, and closed again: they are the
very files that were opened first, which their device and inode prove.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from edl_ckpt.core.base.errors import LockedError

_RESERVE = 112
"""Files that others open: directories, temporary files, sockets, libraries."""
_LEAST = 8
_MOST = 1 << 16
"""More open files are of no use, and some systems have no limit."""


class OpenCount:
    """The files that are kept open now, and how many may be: 0 until the system is asked."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.now = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Say whether one more file can be kept open, and count it."""
        with self._lock:
            if not self.most:
                self.most = _allowed()
            if self.now >= self.most:
                return False
            self.now += 1
            return True

    def give(self) -> None:
        """Count one less."""
        with self._lock:
            self.now -= 1


COUNT = OpenCount()


def _allowed() -> int:
    """Raise the soft limit to the hard one, and return how many files can be kept open."""
    import resource  # no listing needs it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return max((most if soft == resource.RLIM_INFINITY else min(soft, most)) - _RESERVE, _LEAST)


class KeptOpen:
    """An open file of the local disk that may be one too many: then it is opened again for each use.

    `descriptor_of_use` is what a subclass reads and writes by. Its flags say how the file is opened again.
    """

    path: str
    _fd: int = -1
    _flags: int = os.O_RDONLY
    _identity: tuple[int, int] | None = None
    """The device and the inode of a file that is not kept open."""
    _is_counted: bool = False
    _is_closed: bool = False

    @property
    def is_kept_open(self) -> bool:
        """Say whether the file has a descriptor of its own, which the compiled kernel can use."""
        return self._identity is None

    def keep(self, fd: int, flags: int) -> None:
        """Keep an open file, or remember which one it is, and close it."""
        self._fd = fd
        if COUNT.take():
            self._is_counted = True
            return
        found = os.fstat(fd)
        self._flags = (flags | os.O_NOFOLLOW | os.O_CLOEXEC) & ~(os.O_CREAT | os.O_EXCL)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self._flags &= ~os.O_NOFOLLOW  # links to shards are read
        self._identity, self._fd = (found.st_dev, found.st_ino), -1
        os.close(fd)

    @contextmanager
    def used(self) -> Iterator[int]:
        """Yield a descriptor for some reads or writes; errors are those of the system, and LockedError.

        Hot paths ask `is_kept_open` first, and use `_fd`.
        """
        if self._identity is None:
            yield self._fd
            return
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        fd = os.open(self.path, self._flags)
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != self._identity:
                raise LockedError("another file has its place since it was opened", path=self.path, hint="try again")
            yield fd
        finally:
            os.close(fd)

    def let_go(self) -> int:
        """Return the descriptor to be closed, -1 where there is none; nothing happens the second time."""
        fd, self._fd, self._is_closed = self._fd, -1, True
        if self._is_counted:
            self._is_counted = False
            COUNT.give()
        return fd
