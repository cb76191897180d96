"""One lock for each location: our own commands that change what is there take turns.

`.edl-ckpt-0/lock-0` is a small JSON file that says who holds it (process, host, since when, for what), under the
kernel's file lock (`owner.py`); on S3 an object that is written only where there is none. ElasticDL's savers know
nothing of it: it keeps us from each other, and `prune.py`'s guards keep us out of the savers' way.
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
    read_owner,
)
from edl_ckpt.core.state.paths import LOCK_FILE, STATE_DIR
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import ConditionalStore

LOCK_WAIT_SECONDS: Final = 10.0
"""How long a command waits for another one before it gives up (`--lock-wait`)."""
_TOUCH_SECONDS: Final = 60.0


class Lock(Protocol):
    """The lock of one location. `poll_seconds` is how long to wait between two attempts to take it."""

    poll_seconds: float

    @property
    def is_exclusive(self) -> bool:
        """Return True when nobody else can hold the lock now; storage without locks cannot promise that."""
        ...

    def take(self) -> bool:
        """Take the lock if it is free; False when another process holds it."""
        ...

    def read(self) -> dict[str, Any]:
        """Return who holds the lock."""
        ...

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
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
        """Take the lock if it is free; False when somebody holds it."""
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

    def _lock(self, fd: int) -> bool:
        with storage_errors(self._root):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                    return False
                if error.errno not in NO_LOCKS:
                    raise
                self._warn(f"{self._root}: this file system has no locks: let no other edl-ckpt change it now")
            return self._is_ours(fd) and self._may_take_over()

    def _is_ours(self, fd: int) -> bool:
        """Say whether the file we locked is still the one of that name: a holder removes it when it is done."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        held = os.fstat(fd)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def _may_take_over(self) -> bool:
        """Say whether what an earlier holder wrote into the file, if anything, is stale."""
        owner = self.read()
        if not owner:
            return True
        if not is_here(owner) and time.time() - os.stat(self.path).st_mtime < STALE_SECONDS:
            return False
        self._warn(f"{self._root}: took over the lock that was left by {format_owner(owner)}")
        return True

    def read(self) -> dict[str, Any]:
        """Return who holds the lock."""
        return read_owner(self.path)

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._signature is not None:
            self._signature.end()
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with suppress(OSError):  # removed by hand, or read-only by now: the lock itself ends with the file
            os.unlink(self.path)  # while it is still locked: whoever opened it meanwhile sees that it is gone
        os.close(fd)
        with suppress(OSError):  # not empty
            os.rmdir(self._state)


class RemoteLock:
    """The lock object of a location on storage that writes an object only if it is not there yet (S3).

    Its holder writes it again every minute; one that is ten minutes old, or of a dead process of this host, is taken
    over by writing it only if it is still that one. Whether the storage keeps such conditions is tried each time: where
    it does not, or has none, that is warned of and nothing is locked.
    """

    poll_seconds = 0.5

    @property
    def is_exclusive(self) -> bool:
        """Return True when the lock is held, and not only warned of."""
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
        """Take the lock if it is free; False when somebody holds it."""
        if not isinstance(self._store, ConditionalStore):
            self._warn(f"{self._location}: this storage has no lock: let no other edl-ckpt change it now")
            return True
        self._data = json.dumps(describe(self._purpose) | {"id": new_id()}).encode()
        try:
            etag = self._etag = self._write()
            if not etag:
                return False
            ignored = bool(self._store.write_if(LOCK_FILE, self._data, etag=""))  # a second one must be refused
        except UnsupportedError:
            ignored, etag = True, ""
        if ignored:
            self._etag = ""
            if etag:
                self._store.remove(LOCK_FILE)
            self._warn(
                f"{self._location}: this storage ignores conditional writes, so there is no lock: let no other"
                " edl-ckpt change it now"
            )
            return True
        threading.Thread(target=self._touch, name="edl-ckpt-lock", daemon=True).start()
        return True

    def _write(self) -> str:
        """Write our object where there is none, or a stale one; return its ETag, '' when somebody holds the lock."""
        assert isinstance(self._store, ConditionalStore)  # noqa: S101 - told by `take`
        etag = self._store.write_if(LOCK_FILE, self._data, etag="")
        if etag:
            return etag
        held = self._store.stat(LOCK_FILE)
        if held is None:
            return ""
        owner = self.read()
        if held.age_seconds < STALE_SECONDS and not (is_here(owner) and is_dead(owner, held.age_seconds)):
            return ""
        etag = self._store.write_if(LOCK_FILE, self._data, etag=held.etag)
        if etag:
            self._warn(f"{self._location}: took over the lock that was left by {format_owner(owner)}")
        return etag

    def _touch(self) -> None:
        """Show other hosts that we are alive."""
        while not self._done.wait(_TOUCH_SECONDS):
            with suppress(EdlCkptError):
                if isinstance(self._store, ConditionalStore):
                    self._etag = self._store.write_if(LOCK_FILE, self._data, etag=self._etag) or self._etag

    def read(self) -> dict[str, Any]:
        """Return who holds the lock."""
        try:
            owner = json.loads(self._store.read_small(LOCK_FILE) or b"{}")
        except ValueError:
            return {}
        return owner if isinstance(owner, dict) else {}

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held, or no longer ours."""
        self._done.set()
        etag, self._etag = self._etag, ""
        if etag:
            with suppress(EdlCkptError):
                if self._store.read_small(LOCK_FILE) == self._data:
                    self._store.remove(LOCK_FILE)
