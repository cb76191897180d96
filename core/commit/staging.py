"""A staging directory: where one command writes on a local disk, in a place that no reader looks at.

It is `.edl-ckpt-0/stage-0/<id>/` below the location, on the same filesystem, so that one rename publishes its content.
`owner.json` in it names the process at work, under the kernel's lock. The directory is removed when the work ends,
unless a journal in it says that the work can be finished, rolled back or resumed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from edl_ckpt.core.errors import LockedError, NotFoundError
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.state.owner import NO_LOCKS, OWNER_FILE, Signature, format_owner, read_owner
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import check_space, make_inside
from edl_ckpt.core.storage.trees import remove_tree

_ATTEMPTS: Final = 50
_PAUSE_SECONDS: Final = 0.01


class Staging:
    """The staging directory of one command; a context manager. The caller holds the lock of the location.

    With a `name` the directory may be there already, as an interrupted run of the same work left it.
    """

    def __init__(self, checkpoint_dir: str, purpose: str, *, name: str = "") -> None:
        self.checkpoint_dir = checkpoint_dir
        self.id = name or new_id()
        self.path = os.path.join(checkpoint_dir, STAGE_DIR, self.id)
        self.journal = os.path.join(self.path, JOURNAL)
        self._purpose = purpose
        self._may_exist = bool(name)
        self._lock = StageLock()

    def __enter__(self) -> Self:
        try:
            make_inside(self.path, exist_ok=self._may_exist)
            self._lock.take(self.path, self._purpose)
        except LockedError:  # another process is at work in it
            self._lock.release()
            raise
        except BaseException:  # a signal may end us right here
            if self._lock.is_taken or not self._may_exist:
                self._remove()
            else:  # perhaps another process is at work in it
                remove_empty(self.path)
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        self._lock.release()

    def _remove(self) -> None:
        if not os.path.lexists(self.journal):
            remove_stage(self.path)

    def clear(self) -> None:
        """Remove all files of the directory but its owner's."""
        with storage_errors(self.path):
            names = set(os.listdir(self.path)) - {OWNER_FILE}
        for name in names:
            path = os.path.join(self.path, name)
            with storage_errors(path):
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def check_space(self, size_bytes: int) -> None:
        """Raise NoSpaceError when the filesystem has no room for this many bytes more."""
        check_space(self.path, size_bytes, shown=self.checkpoint_dir)

    def directory(self, name: str) -> str:
        """Make a directory inside the staging directory and return its path."""
        path = os.path.join(self.path, name)
        with storage_errors(path):
            os.mkdir(path)
        return path


class StageLock:
    """The kernel's lock on the owner's file of a staging directory, with our signature in the file."""

    def __init__(self) -> None:
        self._fd = -1
        self._signature: Signature | None = None
        self.is_taken = False

    def take(self, directory: str, purpose: str) -> None:
        """Lock and sign the file; LockedError when another process is at work there.

        A process that only checks whether the owner is dead locks the file for an instant, so this tries for a while.
        """
        path = os.path.join(directory, OWNER_FILE)
        with storage_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            for attempt in range(_ATTEMPTS):
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if attempt == _ATTEMPTS - 1:
                        owner = format_owner(read_owner(path))
                        raise LockedError(f"{owner} is writing there", path=directory) from None
                    time.sleep(_PAUSE_SECONDS)
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                    break
                else:
                    break
            named, opened = os.stat(path), os.fstat(self._fd)
            if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
                raise NotFoundError("another process removed it", path=path)
        self.is_taken = True
        self._signature = Signature(self._fd, path, purpose)

    def release(self) -> None:
        """Give the lock back; nothing happens when it was not taken."""
        if self._signature is not None:
            self._signature.end()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def remove_stage(path: str) -> None:
    """Remove a staging directory, its owner's file last, and the directories above it that are empty then."""
    with suppress(OSError):
        for name in os.listdir(path):
            if name != OWNER_FILE:
                remove_tree(os.path.join(path, name))
    remove_tree(path)
    remove_empty(path)


def remove_empty(path: str) -> None:
    """Remove a staging directory, and the directories of our state around it, as far as they are empty."""
    state = os.path.dirname(os.path.dirname(path))
    inside = (os.path.join(state, name) for name in ("trash-0", "meta-0"))
    for directory in (path, os.path.dirname(path), *inside, state):
        with suppress(OSError):  # it has content
            os.rmdir(directory)
