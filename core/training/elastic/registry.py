"""A directory on one machine in which the members of a job find each other.

Each member has a file `member-N` and holds the kernel's lock on it, which ends with the process, however it ends. N
counts up and is never used again, so the lowest living number is the member that has been there longest: the leader.
It writes its port and a secret into `leader.json`. The file `done` ends the run.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.storage.faults import storage_errors

_PREFIX: Final = "member-"
_COUNTER: Final = "counter"
_LEADER: Final = "leader.json"
_DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class Leader:
    """Where the leader listens on 127.0.0.1, and the secret that a member of the job must know."""

    number: int
    port: int
    secret: bytes


class Registry:
    """One member's view of the directory; the directory and its files are for this user alone."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.number = 0
        """The number of this member, 0 before it has joined."""
        self._fd = -1

    def join(self) -> None:
        """Become a member, if this is none yet."""
        if self.number:
            return
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        new = os.path.join(self.directory, f"new-{secrets.token_hex(8)}")
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # before it has its name, so that no process takes it for dead
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with open(os.open(os.path.join(self.directory, _COUNTER), flags, 0o600), "rb+", buffering=0) as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            self.number = int(counter.read() or b"0") + 1
            os.rename(new, self._member(self.number))
            os.pwrite(counter.fileno(), str(self.number).encode("ascii"), 0)

    def leave(self) -> None:
        """Be no member any more."""
        if self.number:
            with suppress(OSError):
                os.unlink(self._member(self.number))
            self.forget()

    def forget(self) -> None:
        """Close the lock's file; what a forked child does, which has a copy of it and is no member."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.number = -1, 0

    def alive(self) -> list[int]:
        """Return the numbers of all living members, in order, and remove the files of the others.

        Raises NotFoundError when this member's own file was removed.
        """
        with storage_errors(self.directory):
            names = {name.removeprefix(_PREFIX) for name in os.listdir(self.directory) if name.startswith(_PREFIX)}
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
        if self.number and self.number not in numbers:
            raise NotFoundError("files of the members were removed", path=self.directory)
        living = [number for number in numbers if self._is_alive(number)]
        for number in set(numbers) - set(living):  # none of them comes back, because numbers are not used again
            with suppress(OSError):
                os.unlink(self._member(number))
        return living

    def leader(self) -> Leader | None:
        """Return what the last leader wrote, None when there was none."""
        try:
            with open(os.path.join(self.directory, _LEADER), encoding="ascii") as file:
                document = json.load(file)
        except FileNotFoundError:
            return None
        return Leader(document["number"], document["port"], bytes.fromhex(document["secret"]))

    def announce(self, leader: Leader) -> None:
        """Write where this member listens."""
        new = os.path.join(self.directory, f"new-{secrets.token_hex(8)}")
        document = {"number": leader.number, "port": leader.port, "secret": leader.secret.hex()}
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(document, file)
        os.rename(new, os.path.join(self.directory, _LEADER))

    def finish(self) -> None:
        """End the run for everybody."""
        os.close(os.open(os.path.join(self.directory, _DONE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def is_finished(self) -> bool:
        """Say whether some member has ended the run."""
        return os.path.exists(os.path.join(self.directory, _DONE))

    def _member(self, number: int) -> str:
        return os.path.join(self.directory, f"{_PREFIX}{number}")

    def _is_alive(self, number: int) -> bool:
        """Say whether a member holds its lock. The test takes a shared one: two at once do not disturb each other."""
        if number == self.number:
            return True
        try:
            with open(self._member(number), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False
