"""One lock for each location: edl-ckpt commands that change a location take turns.

`.edl-ckpt-0/lock-0` is a small JSON file that names the lock holder (process, host, since when, for what), under the
kernel's file lock (`owner.py`); on S3 it is an object that is written only if it does not exist. ElasticDL's savers do
not take it: the lock keeps our commands apart, and the guards of `prune` keep out of the savers' way. A stale lock is
taken over, perhaps from a process that was stopped for long and goes on now. So a commit checks that it still holds the
lock before each step that cannot be undone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from edl_ckpt.core.errors import EdlCkptError, LockedError, NotFoundError, UnsupportedError
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.state.owner import (
    NO_LOCKS,
    STALE_SECONDS,
    Signature,
    describe,
    format_owner,
    is_dead,
    is_here,
    is_me,
    read_owner,
)
from edl_ckpt.core.state.paths import LOCK_FILE, STATE_DIR
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import ConditionalStore
from edl_ckpt.core.storage.regular import check_target

LOCK_WAIT_SECONDS: Final = 10.0
"""How long a command waits for another one before it fails (`--lock-wait`)."""
_TOUCH_SECONDS: Final = 60.0
_ADVICE: Final = "do not run another edl-ckpt command that changes this location"


class Lock(Protocol):
    """The lock of one location. `poll_seconds` is how long to wait between two attempts to take it."""

    poll_seconds: float

    @property
    def is_exclusive(self) -> bool:
        """Return True when no other process can hold the lock now; storage without locks cannot promise that."""
        ...

    def take(self) -> bool:
        """Take the lock if it is free; False when another process holds it."""
        ...

    def read(self) -> dict[str, Any]:
        """Return the description of the lock holder."""
        ...

    def check(self) -> None:
        """Raise LockedError when another process has taken the lock over."""
        ...

    def release(self) -> None:
        """Give the lock back; nothing happens when it was not taken."""
        ...


def open_lock(store: LocalStore | ObjectStore, purpose: str, reporter: Reporter) -> Lock:
    """Return the lock of the location that a store was opened at; it is not taken yet."""
    if isinstance(store, LocalStore):
        return LocalLock(store.root, purpose, reporter.warn)
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
                raise LockedError(
                    f"locked by {format_owner(lock.read())}",
                    path=location.url,
                    hint="try again when it is done, or wait for it: --lock-wait 10m",
                )
            time.sleep(lock.poll_seconds)
        yield
    finally:  # a signal may end us between taking the lock and the block
        lock.release()


def _taken_over(place: str, owner: dict[str, Any]) -> LockedError:
    holder = format_owner(owner) if owner else "no process"
    return LockedError(
        f"this command lost the lock while it was stopped; the lock is held by {holder} now",
        path=place,
        hint="nothing was published; try again",
    )


class LocalLock:
    """The lock file of a local location, under the kernel's file lock."""

    poll_seconds = 0.05
    is_exclusive = True

    def __init__(self, root: str, purpose: str, warn: Callable[[str], None]) -> None:
        self._root = root
        self._purpose = purpose
        self._warn = warn
        self._state = os.path.join(root, STATE_DIR)
        self.path = os.path.join(root, LOCK_FILE)
        self._fd = -1
        self._signature: Signature | None = None

    def take(self) -> bool:
        """Take the lock if it is free; False when another process holds it."""
        fd = self._open()
        if fd is None:
            return False
        try:
            ours = self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        if not ours:
            os.close(fd)
            return False
        self._fd = fd
        try:
            self._signature = Signature(fd, self.path, self._purpose)
        except BaseException:  # a signal may end us right here
            self.release()
            raise
        return True

    def _open(self) -> int | None:
        """Open the lock's file; None when another process made or removed the empty directory in between."""
        check_target(self.path)
        with storage_errors(self._root):
            try:
                if not os.path.isdir(self._state):
                    os.mkdir(self._state)
                return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except (FileNotFoundError, FileExistsError):
                os.stat(self._root)  # the location itself must be there
                if os.path.lexists(self._state) and not os.path.isdir(self._state):
                    raise NotFoundError("not a directory", path=self._state) from None
                return None
            except OSError:  # a full disk, say: the directory that was just made does not stay
                with suppress(OSError):
                    os.rmdir(self._state)
                raise

    def _lock(self, fd: int) -> bool:
        with storage_errors(self._root):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                    return False
                if error.errno not in NO_LOCKS:
                    raise
                self._warn(f"{self._root}: this file system has no locks; {_ADVICE}")
            return self._is_ours(fd) and self._may_take_over()

    def _is_ours(self, fd: int) -> bool:
        """Say whether the locked file still has its name: a lock holder removes it at its end."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        opened = os.fstat(fd)
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)

    def _may_take_over(self) -> bool:
        """Say whether the file names no lock holder, or one whose lock is stale."""
        owner = self.read()
        if not owner:
            return True
        if not is_here(owner) and time.time() - os.stat(self.path).st_mtime < STALE_SECONDS:
            return False
        self._warn(f"{self._root}: took over the stale lock of {format_owner(owner)}")
        return True

    def read(self) -> dict[str, Any]:
        """Return the description of the lock holder."""
        return read_owner(self.path)

    def check(self) -> None:
        """Raise LockedError when another process has taken the lock over, or the file was removed by hand."""
        owner = self.read()
        if self._fd >= 0 and (not self._is_ours(self._fd) or (owner and not is_me(owner))):
            raise _taken_over(self._root, owner)

    def release(self) -> None:
        """Give the lock back; nothing happens when it was not taken."""
        if self._signature is not None:
            self._signature.end()
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with suppress(OSError):  # removed by hand, or read-only by now: the kernel's lock ends with the open file
            os.unlink(self.path)  # while it is locked: a process that opened it meanwhile notices that it is gone
        os.close(fd)
        with suppress(OSError):  # not empty
            os.rmdir(self._state)


class RemoteLock:
    """The lock object of a location on storage that writes an object only if it is not there yet (S3).

    The lock holder writes it again every minute. A lock is stale when it is ten minutes old, or when its holder was a
    process of this host and is dead. It is taken over by a write on the condition that it is still the same. Storage
    that ignores such conditions, or has none, is detected each time: then there is a warning, and no lock.
    """

    poll_seconds = 0.5

    @property
    def is_exclusive(self) -> bool:
        """Return True when this process holds the lock; False where there was a warning instead."""
        return bool(self._etag)

    def __init__(self, store: ObjectStore, purpose: str, warn: Callable[[str], None]) -> None:
        self._store = store
        self._location = store.location
        self._purpose = purpose
        self._warn = warn
        self._etag = ""
        self._data = b""
        self._done = threading.Event()

    def take(self) -> bool:
        """Take the lock if it is free; False when another process holds it."""
        if not isinstance(self._store, ConditionalStore):
            self._warn(f"{self._location}: this storage has no locks; {_ADVICE}")
            return True
        self._data = json.dumps(describe(self._purpose) | {"id": new_id()}).encode()
        try:
            etag = self._etag = self._write()
            if not etag:
                return False
            ignored = bool(self._store.write_if(LOCK_FILE, self._data, etag=""))  # a second write must be refused
        except UnsupportedError:
            ignored, etag = True, ""
        if ignored:
            self._etag = ""
            if etag:
                self._store.remove(LOCK_FILE)
            self._warn(f"{self._location}: this storage ignores conditional writes, so it has no locks; {_ADVICE}")
            return True
        threading.Thread(target=self._touch, name="edl-ckpt-lock", daemon=True).start()
        return True

    def _write(self) -> str:
        """Write our object if there is none, or a stale one; return its ETag, '' while the lock is held."""
        assert isinstance(self._store, ConditionalStore)  # noqa: S101 - checked by `take`
        etag = self._store.write_if(LOCK_FILE, self._data, etag="")
        if etag:
            return etag
        existing = self._store.stat(LOCK_FILE)
        if existing is None:
            return ""
        owner = self.read()
        if existing.age_seconds < STALE_SECONDS and not (is_here(owner) and is_dead(owner, existing.age_seconds)):
            return ""
        etag = self._store.write_if(LOCK_FILE, self._data, etag=existing.etag)
        if etag:
            self._warn(f"{self._location}: took over the stale lock of {format_owner(owner)}")
        return etag

    def _touch(self) -> None:
        """Write the lock again every minute: other hosts see that this process is alive."""
        while not self._done.wait(_TOUCH_SECONDS):
            with suppress(EdlCkptError):
                if isinstance(self._store, ConditionalStore):
                    self._etag = self._store.write_if(LOCK_FILE, self._data, etag=self._etag) or self._etag

    def read(self) -> dict[str, Any]:
        """Return the description of the lock holder."""
        try:
            owner = json.loads(self._store.read_small(LOCK_FILE) or b"{}")
        except ValueError:
            return {}
        return owner if isinstance(owner, dict) else {}

    def check(self) -> None:
        """Raise LockedError when another process has taken the lock over, or the object was removed by hand."""
        if self._etag and self._store.read_small(LOCK_FILE) != self._data:
            raise _taken_over(self._location.url, self.read())

    def release(self) -> None:
        """Give the lock back; nothing happens when this process does not hold it, or no longer."""
        self._done.set()
        etag, self._etag = self._etag, ""
        if etag:
            with suppress(EdlCkptError):
                if self._store.read_small(LOCK_FILE) == self._data:
                    self._store.remove(LOCK_FILE)
