"""One lock for each location: edl-ckpt commands that change a location take turns.

`.edl-ckpt-0/lock-0` is a small JSON file that names the lock holder (process, host, since when, for what), under the
kernel's file lock (`owner.py`). On storage without rename it is a directory of claims (`remote_lock.py`). ElasticDL's
savers do not take it: the lock keeps our commands apart, and the guards of `prune` keep out of the savers' way. A stale
lock is taken over, perhaps from a process that was stopped for long and goes on now. So every command checks that it
still holds the lock before each step that cannot be undone. On a full disk, where the file cannot be written, a command
that frees space locks the location's directory itself (`place_lock.py`).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, TypeAlias

from edl_ckpt.core.base.errors import EdlCkptError, NoSpaceError
from edl_ckpt.core.base.parallel import impatient
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.words import command
from edl_ckpt.core.state.aside import set_aside
from edl_ckpt.core.state.blocked import locked_error
from edl_ckpt.core.state.holder import Holder, LostLockError, lost_lock
from edl_ckpt.core.state.lock_proof import provable
from edl_ckpt.core.state.owner import (
    STALE_SECONDS,
    format_owner,
    has_ended,
    is_dead,
    is_here,
    is_me,
    lock_file,
    processes_at,
    read_owner,
)
from edl_ckpt.core.state.paths import LOCK_FILE, STATE_DIR
from edl_ckpt.core.state.place_lock import PlaceLock, share_place, take_place
from edl_ckpt.core.state.remote_lock import ADVICE, MISSED_SECONDS, RemoteLock
from edl_ckpt.core.state.signature import Signature
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore
from edl_ckpt.core.storage.beneath import Directory, ForeignError, close_read
from edl_ckpt.core.storage.faults import storage_errors

_NAME: Final = os.path.basename(LOCK_FILE)
LOCK_WAIT_SECONDS: Final = 10.0
"""How long a command waits for another one before it fails (`--lock-wait`)."""


def open_lock(store: LocalStore | ObjectStore, purpose: str, reporter: Reporter, *, frees_space: bool = False) -> Lock:
    """Return the lock of the location that a store was opened at; it is not taken yet.

    `frees_space` is for commands that write nothing and free space: they work on a full disk too.
    """
    if isinstance(store, LocalStore):
        return LocalLock(store.root, purpose, reporter.warn, frees_space=frees_space)
    return RemoteLock(store, purpose, reporter.warn)


@contextmanager
def holding(lock: Lock, location: Location, *, wait_seconds: float = LOCK_WAIT_SECONDS) -> Iterator[None]:
    """Hold a lock while the block runs.

    Waits up to `wait_seconds`, then raises LockedError, which names the holder.
    """
    deadline = time.monotonic() + wait_seconds
    try:
        while not lock.take():
            if time.monotonic() >= deadline:
                raise locked_error(location, _holders(lock))
            time.sleep(lock.poll_seconds)
        with provable(location, lock.check), _blaming_the_lock(lock):
            yield
    finally:  # a signal may end us between taking the lock and the block
        with impatient(sys.exception()):
            lock.release()


def _holders(lock: Lock) -> Sequence[Holder]:
    """Return who holds a lock, as far as that can be read: the error about the lock comes first."""
    with suppress(EdlCkptError):
        return lock.holders()
    return [Holder(lock.read(), is_alive=True, silent_seconds=None)]


@contextmanager
def _blaming_the_lock(lock: Lock) -> Iterator[None]:
    """Let a command that fails because it lost the lock end with that error, whatever it met first."""
    try:
        yield
    except LostLockError:
        raise
    except EdlCkptError as error:
        try:
            lock.check()
        except LostLockError as lost:
            raise lost from error
        except EdlCkptError:
            pass
        raise


class LocalLock:
    """The lock file of a local location, under the kernel's file lock."""

    poll_seconds = 0.05
    """How long to wait between two attempts to take it."""
    is_exclusive = True
    """True when no other process can hold the lock now; storage without locks cannot promise that."""

    def __init__(self, root: str, purpose: str, warn: Callable[[str], None], *, frees_space: bool = False) -> None:
        self._root = root
        self._purpose = purpose
        self._warn = warn
        self._frees_space = frees_space
        self.path = os.path.join(root, LOCK_FILE)
        self._fd = -1
        self._signature: Signature | None = None
        self._place: PlaceLock | None = None

    def take(self) -> bool:
        """Take the lock if it is free; False when another process holds it."""
        try:
            return self._take_file()
        except NoSpaceError as full:
            if not self._frees_space:
                full.hint = full.hint or f"to free space, which needs no room: {command('prune', self._root)} --keep N"
                raise
            return self._take_place(full)

    def _take_file(self) -> bool:
        """Take the lock by its file."""
        with ExitStack() as opened:
            fd = self._open()
            if fd is None:
                return False
            opened.callback(os.close, fd)
            if not self._lock(fd):
                return False
            opened.pop_all()
            self._fd = fd
        try:
            is_free, self._place = share_place(self._root)
            if is_free:
                self._signature = Signature(fd, self.path, self._purpose)
        except BaseException:  # a signal may end us right here
            self.release()
            raise
        if not is_free:  # a command that found the disk full is freeing space now
            self.release()
        return is_free

    def _take_place(self, full: NoSpaceError) -> bool:
        """Take the lock of the location's directory, which needs no new block of the disk."""
        try:
            self._place = take_place(self._root)
        except OSError:
            raise full from None
        if self._place is None:
            return False
        self._warn(f"{self._root}: the disk is full: the directory itself is locked while this command frees space")
        return True

    def _open(self) -> int | None:
        """Open the lock's file; None when another process made or removed the empty directory in between."""
        root = Directory.open(self._root)
        with storage_errors(self._root), root:
            try:
                with root.enter(STATE_DIR, make=True) as state:
                    try:
                        return state.open_file(_NAME, os.O_RDWR | os.O_CREAT)
                    except FileNotFoundError:
                        return None
                    except ForeignError:
                        self._make_way(state)
                        return None
            except (OSError, EdlCkptError):  # a full disk, say: the directory that was just made does not stay
                root.rmdir(STATE_DIR)
                raise

    def _make_way(self, state: Directory) -> None:
        """Set aside what has the name of the lock's file and is none: a pipe, a link; no process holds that.

        The lock of the directory keeps others from doing the same, and so from setting a new lock's file aside.
        """
        with suppress(FileNotFoundError, BlockingIOError):
            fcntl.flock(state.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                os.close(state.open_file(_NAME, os.O_RDWR))
            except ForeignError:
                self._warn(f"{self._root}: {set_aside(state, state, _NAME, 'cannot be used as a lock')}")

    def _lock(self, fd: int) -> bool:
        with storage_errors(self._root):
            is_locked = lock_file(fd)
            if is_locked is None:
                self._warn(f"{self._root}: this file system has no locks; {ADVICE}")
            return is_locked is not False and self._is_ours(fd) and self._may_take_over(fd, is_locked=bool(is_locked))

    def _is_ours(self, fd: int) -> bool:
        """Say whether the locked file still has its name: a lock holder removes it at its end."""
        with Directory.beneath(self._root, STATE_DIR) as state:
            named = state.stat(_NAME)
        return named is not None and os.path.samestat(named, os.fstat(fd))

    def _may_take_over(self, fd: int, *, is_locked: bool) -> bool:
        """Say whether the file names no lock holder, or one whose lock is stale; `is_locked` by the kernel, by us."""
        owner = self.read()
        if not owner:
            return True
        if _is_alive(owner, time.time() - os.fstat(fd).st_mtime, is_locked=is_locked, limit=STALE_SECONDS):
            return False
        self._warn(f"{self._root}: took over the stale lock of {format_owner(owner)}")
        return True

    def read(self) -> dict[str, Any]:
        """Return the description of the lock holder."""
        with suppress(EdlCkptError), Directory.beneath(self._root, STATE_DIR) as state:
            return read_owner(state, _NAME)
        return {}

    def check(self) -> bool:
        """Raise LockedError when another process has taken the lock over, or the file was removed by hand."""
        owner = self.read()
        is_another = bool(owner) and not is_me(owner)
        if self._fd >= 0 and (is_another or not self._is_signed_here() or not self._is_ours(self._fd)):
            raise lost_lock(self._root, owner)
        return False

    def release(self) -> None:
        """Give the lock back; nothing happens when it was not taken."""
        if self._signature is not None:
            self._signature.end()
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._is_signed_here():
            with suppress(EdlCkptError, OSError):  # removed by hand, or read-only: the open file is what has the lock
                if self._is_ours(fd):
                    self._unlink()  # while it is locked: a process that opened it meanwhile notices that it is gone
            close_read(fd)
        if self._place is not None:
            self._place.close()
            self._place = None

    def _is_signed_here(self) -> bool:
        """Return False in a forked process, whose copy of the file is closed."""
        return self._signature is None or self._signature.is_ours

    def _unlink(self) -> None:
        with Directory.open(self._root) as root:
            with root.find(STATE_DIR) as state:
                if state.stat(_NAME) is not None:
                    state.unlink(_NAME)
            root.rmdir(STATE_DIR)  # if it is empty

    @contextmanager
    def _existing(self) -> Iterator[int | None]:
        """Open the lock's file, None when there is none; ForeignError when something else has its name."""
        fd = None
        with storage_errors(self.path), ExitStack() as opened:
            with suppress(FileNotFoundError), Directory.beneath(self._root, STATE_DIR) as state:
                fd = state.open_file(_NAME, os.O_RDWR)
                opened.callback(os.close, fd)
            yield fd

    def holders(self) -> list[Holder]:
        """Return the process that the lock's file names, dead or alive; [] without a file."""
        with self._existing() as fd:
            if fd is None:
                return []
            silent = max(0.0, time.time() - os.fstat(fd).st_mtime)  # another host's clock may be ahead
            owner, is_alive = self.read(), self._is_at_work(fd, silent)
            return [Holder(owner, is_alive, silent, kept_by=() if is_alive else processes_at(self.path))]

    def _is_at_work(self, fd: int, silent_seconds: float) -> bool:
        """Say whether the holder of the lock is alive, as far as that is known here; else the file is locked by us."""
        is_locked, owner = lock_file(fd), self.read()
        if is_locked is False:  # a process that the holder forked may have kept its lock
            return not has_ended(owner)
        return _is_alive(owner, silent_seconds, is_locked=bool(is_locked), limit=MISSED_SECONDS)

    def remove(self, holder: Holder) -> bool:
        """Remove the file of a dead holder; False when another process holds the lock now."""
        with self._existing() as fd:
            if fd is not None:
                silent = time.time() - os.fstat(fd).st_mtime
                if self._is_at_work(fd, silent) or not self._is_ours(fd) or self.read() != holder.owner:
                    return False
                self._unlink()  # while it is locked, as in `release`
        return True


Lock: TypeAlias = LocalLock | RemoteLock
"""The lock of one location."""


def _is_alive(owner: Mapping[str, Any], silent_seconds: float, *, is_locked: bool, limit: float) -> bool:
    """Say whether the owner of a lock's file is alive; `is_locked` when this process has the kernel's lock on it."""
    if not owner:
        return False
    if is_here(owner):  # the kernel's lock ends with its process
        return not is_locked and not is_dead(owner, silent_seconds)
    return silent_seconds < limit
