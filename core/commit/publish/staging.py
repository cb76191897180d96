"""A staging directory: where one command writes on a local disk, in a place that no reader looks at.

It is `.edl-ckpt-0/stage-0/<id>/` below the location, on the same filesystem, so that one rename publishes its content.
`owner.json` in it names the process at work, under the kernel's lock. The directory is removed when the work ends,
unless a file in it says that the work can be finished, rolled back or resumed.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final, Self

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.state.owner import OWNER_FILE, format_owner, lock_file, read_owner
from edl_ckpt.core.state.paths import INTERRUPTED, JOURNAL, META_DIR, NOTES_DIR, STAGE_DIR, STATE_DIR, TRASH_DIR
from edl_ckpt.core.state.signature import Signature
from edl_ckpt.core.storage.beneath import Directory, close_read
from edl_ckpt.core.storage.faults import inherit_as, storage_errors
from edl_ckpt.core.storage.files import check_space

_ATTEMPTS: Final = 50
_PAUSE_SECONDS: Final = 0.01


class Staging:
    """The staging directory of one command; a context manager. The caller holds the lock of the location.

    With a `name` the directory may be there already, as an interrupted run of the same work left it. Inside of the
    context, `root` is the open location and `place` the open directory.
    """

    root: Directory
    place: Directory

    def __init__(self, checkpoint_dir: str, purpose: str, *, name: str = "") -> None:
        self.checkpoint_dir = checkpoint_dir
        self.id = name or new_id()
        self.path = os.path.join(checkpoint_dir, STAGE_DIR, self.id)
        self._purpose = purpose
        self._may_exist = bool(name)
        self._lock = StageLock()

    def __enter__(self) -> Self:
        self.root = self.place = Directory.open(self.checkpoint_dir)
        try:
            self.place = self._make()
            self._lock.take(self.place, self._purpose)
        except LockedError:  # another process is at work in it
            self._release()
            raise
        except BaseException:  # a signal may end us right here
            if self._lock.is_taken or (self.place is not self.root and not self._may_exist):
                self._remove()
            else:  # perhaps another process is at work in it
                remove_empty(self.root, self.id)
            self._release()
            raise
        return self

    def _make(self) -> Directory:
        """Make the directory, or open one that may be there; it has our name, and until it has an owner it is empty."""
        if self._may_exist:
            return self.root.enter(f"{STAGE_DIR}/{self.id}", make=True)
        return self.root.inside(STAGE_DIR, lambda stages: stages.make(self.id))

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._release()

    def _remove(self) -> None:
        with suppress(EdlCkptError):
            if self.place.stat(JOURNAL) is None and self.place.stat(INTERRUPTED) is None:
                remove_stage(self.root, self.place)
            else:
                remove_empty_state(self.root)

    def _release(self) -> None:
        self._lock.release()
        if self.place is not self.root:
            self.place.close()
        self.root.close()

    def clear(self) -> None:
        """Remove all files of the directory but its owner's."""
        problems: list[EdlCkptError] = []
        for name in self.place.names():
            if name != OWNER_FILE:
                self.place.remove(name, problems.append)
        if problems:
            raise problems[0]

    def inherit_access(self) -> None:
        """Let new files inherit what they would inherit in the location itself."""
        with storage_errors(self.place.path):
            inherit_as(self.root.fd, self.place.fd)

    def check_space(self, size_bytes: int) -> None:
        """Raise NoSpaceError when the filesystem has no room for this many bytes more."""
        check_space(self.place.fd, size_bytes, shown=self.checkpoint_dir)


class StageLock:
    """The kernel's lock on the owner's file of a staging directory, with our signature in the file."""

    def __init__(self) -> None:
        self._fd = -1
        self._signature: Signature | None = None
        self.is_taken = False

    def take(self, directory: Directory, purpose: str) -> None:
        """Lock and sign the file; LockedError when another process is at work there.

        A process that only checks whether the owner is dead locks the file for an instant, so this tries for a while.
        """
        path = directory.join(OWNER_FILE)
        with storage_errors(path):
            self._fd = directory.open_file(OWNER_FILE, os.O_RDWR | os.O_CREAT)
            attempts = 1
            while lock_file(self._fd) is False:
                if attempts == _ATTEMPTS:
                    raise LockedError(f"{format_owner(read_owner(directory))} is writing there", path=directory.path)
                time.sleep(_PAUSE_SECONDS)
                attempts += 1
            named = directory.stat(OWNER_FILE)
            if named is None or not os.path.samestat(named, os.fstat(self._fd)):
                raise NotFoundError("another process removed it", path=path)
        self.is_taken = True
        self._signature = Signature(self._fd, path, purpose)

    def release(self) -> None:
        """Give the lock back; nothing happens when it was not taken."""
        signature, fd, self._fd = self._signature, self._fd, -1
        if signature is not None:
            signature.end()
        if fd >= 0 and (signature is None or signature.is_ours):
            close_read(fd)


def remove_stage(root: Directory, place: Directory) -> EdlCkptError | None:
    """Remove a staging directory, its owner's file last, and the directories above it that are empty then.

    Returns why the first of its files that cannot be removed stays; None where nothing stays.
    """
    problems: list[EdlCkptError] = []
    try:
        for name in place.names():
            if name != OWNER_FILE:
                place.remove(name, problems.append)
        if place.names() == [OWNER_FILE]:
            place.unlink(OWNER_FILE)
    except EdlCkptError as error:
        problems.append(error)
    remove_empty(root, os.path.basename(place.path))
    return problems[0] if problems else None


def remove_empty(root: Directory, stage: str) -> None:
    """Remove a staging directory, and the directories of our state around it, as far as they are empty."""
    with suppress(EdlCkptError), root.find(STAGE_DIR) as stages:
        stages.rmdir(stage)
    remove_empty_state(root)


def remove_empty_state(root: Directory) -> None:
    """Remove the directories of our state that are empty."""
    with suppress(EdlCkptError):
        with root.find(STATE_DIR) as state:
            for path in (STAGE_DIR, TRASH_DIR, META_DIR, NOTES_DIR):
                state.rmdir(os.path.basename(path))
        root.rmdir(STATE_DIR)
