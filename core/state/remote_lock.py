"""The lock of a location on storage without rename: every process writes a claim of its own, then lists all claims.

S3 services differ in conditional writes. Some refuse the ETag in quotes, some ignore the condition, and then a dead
lock could never be taken over, or two processes could both take it. So this lock needs no condition. It needs only that
a listing shows what was written before, which every S3 service promises today.

* **To take the lock**, a process writes `lock-0/<id>` and lists `lock-0/`. It has the lock when no other claim is
  listed. Each process lists after its own claim is there, so of two processes at least one sees the other.
* **The holder shows that it is alive** by writing `lock-0/<id>.alive` every minute.
* **To take over a stale lock**, a process writes `lock-0/<stale id>.doubt.<own id>` and lists again. It removes the
  stale claim only if its holder has been silent up to that doubt.
* **Before a step that cannot be undone**, the holder lists. It has lost the lock when its claim is gone or doubted.
  When its last sign of life is old, it first writes a new one. So either the holder sees the doubt, or the doubting
  process sees the sign of life; they never both go on.

* **A holder that lost the lock and is not surely dead** may have sent a request that arrives late. So
  `lock-0/<its id>.lost` stays for a day, and files of our state are kept twice meanwhile (`lock_proof.py`).

A name is never used twice. So a request that arrives late, or a holder that wakes up late, never removes or replaces
anything of the next holder.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import LOOK_SECONDS, stop_requested
from edl_ckpt.core.state import owner as owners
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.state.holder import Holder, lost_lock
from edl_ckpt.core.state.owner import format_owner, has_ended, is_here, is_me, owner_in
from edl_ckpt.core.state.paths import LOCK_FILE, STATE_DIR
from edl_ckpt.core.state.signature import describe
from edl_ckpt.core.storage.interface import ObjectStore

ADVICE: Final = "do not run another edl-ckpt command that changes this location"
TOUCH_SECONDS: Final = 60.0
MISSED_SECONDS: Final = 2.5 * TOUCH_SECONDS
"""A holder elsewhere that has been silent for so long may be dead: a person may remove its lock (`unlock`)."""
_ROUNDS: Final = 6
"""How often a process lists again when others want the lock at the same time, or its claim is not listed yet."""
ROUND_SECONDS: Final = 0.05
_ALIVE: Final = "alive"
_DOUBT: Final = "doubt"
_LOST: Final = "lost"
_LATE_SECONDS: Final = 24 * 3600.0
"""A request of a process that lost the lock is expected for so long."""
_active: set[str] = set()
"""The claims that locks of this process use now. Another claim of this process could not be removed at its end."""


class _Claims(NamedTuple):
    """One listing: how long the holder of each claim has been silent, and the names that belong to a claim."""

    silent: Mapping[str, float]
    doubts: Mapping[str, float]
    """The age of each doubt, by its name."""
    names: tuple[str, ...]
    expects_late: bool
    """True while a request may arrive from a process that lost the lock."""

    def others(self, own: str) -> list[str]:
        """Return the claims of other processes."""
        return sorted(claim for claim in self.silent if claim != own)

    def is_doubted(self, claim: str) -> bool:
        """Say whether another process is taking a claim over."""
        return any(name.startswith(f"{claim}.{_DOUBT}.") for name in self.doubts)


def _parse(ages: Mapping[str, float]) -> _Claims:
    """Return what a listing of names and ages says."""
    silent = {name: age for name, age in ages.items() if "." not in name}
    doubts: dict[str, float] = {}
    for name, age in ages.items():
        claim, _, rest = name.partition(".")
        if rest == _ALIVE and claim in silent:
            silent[claim] = min(silent[claim], age)
        elif rest.startswith(f"{_DOUBT}."):
            doubts[name] = age
    lost = {name for name, age in ages.items() if name.endswith(f".{_LOST}") and age < _LATE_SECONDS}
    return _Claims(silent, doubts, tuple(ages.keys() - lost), bool(lost))


class RemoteLock:
    """The lock of a location on S3, or on any file system of fsspec."""

    poll_seconds = 0.5

    def __init__(self, store: ObjectStore, purpose: str, warn: Callable[[str], None]) -> None:
        self._store = store
        self._location = store.location
        self._purpose = purpose
        self._warn = warn
        self._claim = new_id()
        self._pid = os.getpid()
        self._written = False
        """True while our claim may be on the storage."""
        self._is_signed = False
        """True when our sign of life may be on the storage."""
        self.is_exclusive = False
        """True when this process holds the lock; False where there was a warning instead."""
        self._blocker = ""
        self._done = threading.Event()
        self._touching = threading.Lock()

    def take(self) -> bool:
        """Take the lock if it is free; False when another process holds it."""
        if not self._take_over(self._look()):
            return False
        _active.add(self._claim)
        self._written = True
        try:
            self._store.write_small(self._path(self._claim), json.dumps(describe(self._purpose)).encode())
        except UnsupportedError:
            return self._go_without("cannot be written")
        for _ in range(_ROUNDS):
            claims = self._look()
            others = claims.others(self._claim)
            if not others and self._claim in claims.silent:
                self.is_exclusive = True
                self._sweep(name for name in claims.names if name.partition(".")[0] not in claims.silent)
                with WHOLE:
                    threading.Thread(target=self._touch, name="edl-ckpt-lock", daemon=True).start()
                return True
            if others and others[0] < self._claim:  # the first of those who want the lock stays, the others go
                break
            time.sleep(ROUND_SECONDS)
        if not others:
            return self._go_without("does not list a file that was just written")
        self._blocker = others[0]
        self._withdraw()
        import random  # few wait for a lock

        time.sleep(random.uniform(0, ROUND_SECONDS))  # noqa: S311 - spreads attempts, hides nothing
        return False

    def _go_without(self, why: str) -> bool:
        """Warn that there is no lock, and let the command go on."""
        with suppress(EdlCkptError):
            self._withdraw()
        self._warn(f"{self._location}: this storage {why}, so it has no locks; {ADVICE}")
        return True

    def _path(self, name: str) -> str:
        return f"{LOCK_FILE}/{name}" if name else LOCK_FILE

    def _look(self) -> _Claims:
        return _parse(self._store.ages(LOCK_FILE))

    def _take_over(self, claims: _Claims) -> bool:
        """Remove stale claims; False when one is not stale."""
        for claim in claims.others(self._claim):
            self._blocker = claim
            if not self._is_stale(claim, claims.silent[claim]):
                return False
            owner = self._read_owner(claim)
            if not self._revoke(claim, self._is_stale):
                return False
            self._warn(f"{self._location}: took over the stale lock of {format_owner(owner)}")
        self._blocker = ""
        return True

    def _is_stale(self, claim: str, silent_seconds: float) -> bool:
        """Say whether the holder of a claim is dead here, or has been silent for so long that it counts as dead."""
        return silent_seconds >= owners.STALE_SECONDS or self._has_ended(claim)

    def _has_ended(self, claim: str) -> bool:
        """Say whether a claim is surely of no process any more: it sends no request."""
        owner = self._known_owner(claim)
        return has_ended(owner) or (is_me(owner) and claim not in _active)

    def _known_owner(self, claim: str) -> dict[str, Any]:
        """Return the process that the name of a claim names; earlier versions had one object without such a name."""
        return owner_in(claim) if claim else self._read_owner(claim)

    def _revoke(self, claim: str, is_stale: Callable[[str, float], bool]) -> bool:
        """Remove a claim, if its holder is silent up to the moment at which this process doubts it."""
        doubt = f"{claim}.{_DOUBT}.{self._claim}"
        self._store.write_small(self._path(doubt), b"{}")
        try:
            now = self._look()
            if claim in now.silent:
                if not is_stale(claim, max(now.silent[claim] - now.doubts.get(doubt, 0.0), 0.0)):
                    return False
                if not self._has_ended(claim):
                    self._store.write_small(self._path(f"{claim}.{_LOST}"), b"{}")
                self._store.remove(self._path(claim))
            own = {claim, doubt}
            self._sweep(name for name in now.names if name.partition(".")[0] == claim and name not in own)
        finally:  # after the claim: while both are there, its holder does not go on
            self._store.remove(self._path(doubt))
        return True

    def _sweep(self, names: Iterable[str]) -> None:
        """Remove names that belong to no claim any more; that may also be done another time."""
        with suppress(EdlCkptError):
            for name in names:
                self._store.remove(self._path(name))

    def _touch(self) -> None:
        """Write a sign of life every minute."""
        while not self._done.wait(TOUCH_SECONDS):
            with suppress(EdlCkptError):
                self._sign()

    def _sign(self) -> None:
        with self._touching:
            if not self._done.is_set():
                self._is_signed = True
                self._store.write_small(self._path(f"{self._claim}.{_ALIVE}"), b"{}")

    def _read_owner(self, claim: str) -> dict[str, Any]:
        """Return the description in a claim; what its name says where it cannot be read."""
        with suppress(EdlCkptError):
            data = self._store.read_small(self._path(claim)) or b"{}"
            return parse_document(data, self._path(claim)) or owner_in(claim)
        return owner_in(claim)

    def read(self) -> dict[str, Any]:
        """Return the description of the lock holder."""
        claims = self._look().others(self._claim)
        claim = self._blocker if self._blocker in claims or not claims else claims[0]
        return self._read_owner(claim) if claims else {}

    def check(self) -> bool:
        """Raise LockedError when another process has taken the lock over, or the claim was removed by hand.

        Returns True while a request may still arrive from a process that lost the lock.
        """
        if not self.is_exclusive:
            return False
        if self._pid != os.getpid():  # this process was forked: the lock is its parent's
            raise lost_lock(self._location.url, self._read_owner(self._claim))
        claims = self._look()
        if claims.silent.get(self._claim, 0.0) > owners.STALE_SECONDS / 2:
            self._sign()
            claims = self._look()
        if self._claim not in claims.silent or claims.is_doubted(self._claim) or "" in claims.silent:
            raise lost_lock(self._location.url, self.read())
        return claims.expects_late

    def release(self) -> None:
        """Give the lock back; nothing happens when this process has no claim."""
        with WHOLE:
            self._done.set()
        self.is_exclusive = False
        if self._written and self._pid == os.getpid():
            with suppress(EdlCkptError):
                self._withdraw()
        _active.discard(self._claim)  # a claim that could not be removed is stale from now on

    def _withdraw(self) -> None:
        """Remove our claim."""
        while not self._touching.acquire(timeout=LOOK_SECONDS):
            if stop_requested():  # the sign of life that is being written does not come to its end either
                return
        try:
            if self._is_signed:
                self._store.remove(self._path(f"{self._claim}.{_ALIVE}"))
            self._store.remove(self._path(self._claim))
        finally:
            self._touching.release()
        for directory in (LOCK_FILE, STATE_DIR):
            self._store.remove_directory(directory)
        self._written = self._is_signed = False

    def holders(self) -> list[Holder]:
        """Return the processes that have a claim now."""
        claims = self._look()
        others = ((claim, claims.silent[claim]) for claim in claims.others(self._claim))
        return [Holder(self._read_owner(c), not self._may_be_unlocked(c, silent), silent, c) for c, silent in others]

    def _may_be_unlocked(self, claim: str, silent_seconds: float) -> bool:
        """Say whether a person may remove a claim: its holder is dead, or missed its signs of life and is elsewhere."""
        elsewhere = not is_here(self._known_owner(claim))
        return self._is_stale(claim, silent_seconds) or (elsewhere and silent_seconds > MISSED_SECONDS)

    def remove(self, holder: Holder) -> bool:
        """Remove the claim of a dead holder; False when it showed a sign of life meanwhile."""
        done = self._revoke(holder.key, self._may_be_unlocked)
        for directory in (LOCK_FILE, STATE_DIR):
            self._store.remove_directory(directory)
        return done
