"""One lock for each location: our own commands that change what is there take turns.

`.edl-ckpt-0/lock-0` is a small JSON file that says who holds it (process, host, since when, for what), under the
kernel's file lock, which ends with its process. ElasticDL's savers know nothing of it: it keeps us from each other, and
`retention.py`'s guards keep us out of the savers' way. A file that nobody locks was left by a process that was killed:
on this host it is taken over at once; from another host, where the file system may not pass locks on, only when its
holder has not touched it for ten minutes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from edl_ckpt.core.errors import LockedError, NotFoundError, UsageError
from edl_ckpt.core.layout import STATE_DIR, parse_shard_file
from edl_ckpt.core.store import is_local, local_path, storage_errors

LOCK_WAIT_SECONDS: Final = 10.0
"""How long a command waits for another one before it gives up (`--lock-wait`)."""
_TOUCH_SECONDS: Final = 60.0
_STALE_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.05
_NO_LOCKS: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class LocationLock:
    """The lock of one location, held while the block runs; `purpose` is told to whoever waits.

    Entering waits up to `wait_seconds` and raises LockedError, naming the holder, when it is still held then. `warn` is
    told when a lock left by a dead process was taken over, and on storage that has no locks.
    """

    def __init__(
        self,
        location: str,
        purpose: str,
        *,
        wait_seconds: float = LOCK_WAIT_SECONDS,
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.location = location
        self._purpose = purpose
        self._wait_seconds = wait_seconds
        self._warn = warn
        self._local = is_local(location)
        self._state = os.path.join(local_path(location), STATE_DIR)
        self.path = os.path.join(self._state, "lock-0")
        self._fd = -1
        self._done = threading.Event()

    def __enter__(self) -> Self:
        if not self._local:
            self._warn(f"{self.location}: this storage has no lock: let no other edl-ckpt change it now")
            return self
        self._check_place()
        deadline = time.monotonic() + self._wait_seconds
        while not self._try():
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"locked by {_told(self._read())}",
                    path=self.location,
                    hint="try again when it is done, or wait for it: --lock-wait 10m",
                )
            time.sleep(_POLL_SECONDS)
        try:
            self._sign()
            threading.Thread(target=self._touch, name="edl-ckpt-lock", daemon=True).start()
        except BaseException:  # a signal may end us right here
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _check_place(self) -> None:
        """Raise NotFoundError where nothing is, UsageError in a version's directory: our state would invalidate it."""
        with storage_errors(self.location):
            names = os.listdir(local_path(self.location))
        if any(parse_shard_file(name) for name in names):
            raise UsageError("is one version's directory", path=self.location, hint="name the directory it is in")

    def _try(self) -> bool:
        """Take the lock if it is free; False when somebody holds it."""
        with storage_errors(self.location):
            try:
                if not os.path.isdir(self._state):
                    os.mkdir(self._state)
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except (FileNotFoundError, FileExistsError):
                os.stat(local_path(self.location))  # the location itself must be there
                if os.path.lexists(self._state) and not os.path.isdir(self._state):
                    raise NotFoundError("not a directory", path=self._state) from None
                return False  # another process made or removed the empty directory in between
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(fd)
                    if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                        return False
                    raise
                self._warn(f"{self.location}: this file system has no locks: let no other edl-ckpt change it now")
            if not self._is_ours(fd) or not self._may_take_over():
                os.close(fd)
                return False
        self._fd = fd
        return True

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
        owner = self._read()
        if not owner:
            return True
        age = time.time() - os.stat(self.path).st_mtime
        if owner.get("host") != os.uname().nodename and age < _STALE_SECONDS:
            return False
        self._warn(f"{self.location}: took over the lock that was left by {_told(owner)}")
        return True

    def _read(self) -> dict[str, Any]:
        try:
            with open(self.path, encoding="utf-8") as file:
                owner = json.loads(file.read(4096))
        except (OSError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def _sign(self) -> None:
        owner = {
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "purpose": self._purpose,
        }
        with storage_errors(self.path):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(owner).encode(), 0)

    def _touch(self) -> None:
        """Show other hosts that we are alive."""
        while not self._done.wait(_TOUCH_SECONDS):
            try:
                os.utime(self._fd)
            except OSError:
                return

    def _release(self) -> None:
        self._done.set()
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with suppress(OSError):  # removed by hand, or read-only by now: the lock itself ends with the file
            os.unlink(self.path)  # while it is still locked: whoever opened it meanwhile sees that it is gone
        os.close(fd)
        with suppress(OSError):  # not empty
            os.rmdir(self._state)


def _told(owner: dict[str, Any]) -> str:
    """Return who holds a lock, in words."""
    if not owner:
        return "another edl-ckpt"
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')} ({owner.get('purpose')})"
