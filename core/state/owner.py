"""Owners: a small file names the process that is at work (which process, where, since when), under the kernel's lock.

The kernel's lock ends with its process, so an unlocked file was left by a killed process. On this host that is certain
at once. A process that it forks would keep the lock, and so closes its copy of the file. A file system may not pass
locks on between hosts, so an owner on another host counts as dead when it has not touched its file for ten minutes. The
lock of a location and the staging directories both work this way.

The holder of a location's lock, as a person sees it, and the proof that a command still holds its lock.

A process that was stopped for longer than its lock is valid (SIGSTOP, a suspended machine) wakes up and goes on. So a
command proves that it still has the lock right before each step that cannot be undone. It may also stop between this
proof and its request. So a file of our state is replaced only while it is the one of before the proof, where the
storage knows conditional writes, and the lock is proved again after it. Where the storage does not, and a process lost
its lock in the last day, a copy of each new file is kept: the next holder puts back what a late request wrote over.

Setting aside: what stands where we need its name and cannot be used is renamed, never opened, emptied or removed.

It goes to `.edl-ckpt-0/stage-0/damaged-...`, where nothing looks again, so it is reported once. The caller sees to it
that no other process of ours does the same at that moment.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakSet

from edl_ckpt.core.base.errors import EdlCkptError, LockedError
from edl_ckpt.core.base.ids import host_name, kernel_id
from edl_ckpt.core.base.interruption import COMMIT, WHOLE
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.state.paths import KEPT_DIR, STAGE_DIR, damaged_name, is_resumable
from edl_ckpt.core.storage.beneath import Directory, close_read, kind_of
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import Store, lists_marks
from edl_ckpt.core.storage.location import Location

OWNER_FILE: Final = "owner.json"
_OWNER_BYTES: Final = 1 << 16
STALE_SECONDS: Final = 600.0
"""An owner on another host counts as dead when it has not touched its file for this long."""
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""The errors by which a file system without locks can be recognised."""
_TOUCH_SECONDS: Final = 60.0
_SIGNING_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 24 * 3600.0
_ID = re.compile(r"\d{8}T\d{6}-(?P<host>[^-]*)-(?P<pid>\d+)-[0-9a-f]{8}")


class Signature:
    """The description of this process in an owner's file, which it touches every minute until `end`."""

    def __init__(self, fd: int, path: str, purpose: str) -> None:
        self.fd = fd
        self.is_ours = True
        """False in a forked process, which has no part in the locks of its parent."""
        self._done = threading.Event()
        with storage_errors(path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(describe(purpose)).encode(), 0)
        with WHOLE:
            threading.Thread(target=self._touch, name="edl-ckpt-owner", daemon=True).start()
        _SIGNATURES.add(self)

    def _touch(self) -> None:
        while not self._done.wait(_TOUCH_SECONDS):
            try:
                os.utime(self.fd)
            except OSError:
                return

    def end(self) -> None:
        """Stop touching the file; the caller closes its descriptor."""
        _SIGNATURES.discard(self)
        with WHOLE:
            self._done.set()


_SIGNATURES: Final[WeakSet[Signature]] = WeakSet()


def _close_copies() -> None:
    """Close a forked process's copies of the files: each would keep a lock when the parent has ended."""
    for signature in list(_SIGNATURES):
        signature.is_ours = False
        os.close(signature.fd)
    _SIGNATURES.clear()


os.register_at_fork(after_in_child=_close_copies)


def describe(purpose: str) -> dict[str, Any]:
    """Return the description of this process that an owner's file contains."""
    return {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "kernel": kernel_id(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "purpose": purpose,
    }


def format_owner(owner: Mapping[str, Any]) -> str:
    """Return an owner in words."""
    if not owner:
        return "another edl-ckpt"
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')} ({owner.get('purpose')})"


def read_owner(directory: Directory, name: str = OWNER_FILE) -> dict[str, Any]:
    """Return the description in an owner's file, {} when there is no file or it is damaged."""
    with suppress(EdlCkptError):
        data = directory.read(name, _OWNER_BYTES)
        return parse_document(data, directory.join(name)) if data else {}
    return {}


def is_here(owner: Mapping[str, Any]) -> bool:
    """Say whether an owner is, or was, a process of this host since its last boot, which can be looked up."""
    return owner.get("host") == os.uname().nodename and owner.get("kernel") == kernel_id()


def is_me(owner: Mapping[str, Any]) -> bool:
    """Say whether an owner is this process."""
    return owner.get("pid") == os.getpid() and is_here(owner)


def is_dead(owner: Mapping[str, Any], silent_seconds: float) -> bool:
    """Say whether an owner whose file cannot be locked is dead: here by its process, elsewhere by its silence."""
    if is_here(owner) and isinstance(owner.get("pid"), int):
        return not _is_alive(owner["pid"])
    return silent_seconds > STALE_SECONDS


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Say whether an owner is surely dead: it was a process of this host that is no more."""
    return is_here(owner) and is_dead(owner, 0.0)


def processes_at(path: str) -> list[int]:
    """Return the other processes that have a file open, as far as this user may look."""
    found: set[int] = set()
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):  # it was closed meanwhile
            found |= {int(link.split("/")[2])} if os.path.samefile(link, path) else set()
    return sorted(found - {os.getpid()})


def is_presumed_dead(owner: Mapping[str, Any], age_seconds: float) -> bool:
    """Like is_dead, for owners without a heartbeat: remote ones count as dead after a day."""
    return is_dead(owner, age_seconds - _SILENT_SECONDS)


def owner_in(name: str) -> dict[str, Any]:
    """Return the owner that a name with a `new_id` in it describes, {} for another name."""
    match = _ID.search(name)
    if match is None:
        return {}
    here = {"host": os.uname().nodename, "kernel": kernel_id()} if match["host"] == host_name() else {}
    return {"pid": int(match["pid"]), "host": match["host"], **here}


def is_stage_name(name: str) -> bool:
    """Say whether we give such names to staging directories.

    >>> is_stage_name("20261121T211600-host_0a1b2c3d-7-0a1b2c3d"), is_stage_name("copy-100"), is_stage_name("mine")
    (True, True, False)
    """
    number = name.rpartition("-")[2]
    return bool(_ID.fullmatch(name)) or (is_resumable(name) and number.isascii() and number.isdigit())


def has_our_owner(directory: Directory) -> bool:
    """Say whether the owner's file of a staging directory is one that we wrote, or that we were about to write."""
    with suppress(EdlCkptError):
        data = directory.read(OWNER_FILE, _OWNER_BYTES)
        if data is None or not data.strip(b"\0"):  # after a power cut, a file may be zeros
            return data is not None
        owner = parse_document(data, directory.join(OWNER_FILE))
        return isinstance(owner.get("pid"), int) and isinstance(owner.get("host"), str)
    return False


@contextmanager
def if_abandoned(directory: Directory) -> Iterator[bool]:
    """Say whether the owner of an open staging directory is dead, False where that cannot be known.

    No other process takes the directory over while the block runs.
    """
    fd = -1
    try:
        try:
            fd = directory.open_file(OWNER_FILE, os.O_RDWR)
            dead = _is_abandoned_file(fd, directory)
        except FileNotFoundError:  # killed before it made the file, or about to make it
            dead = is_dead(owner_in(os.path.basename(directory.path)), time.time() - os.fstat(directory.fd).st_mtime)
        except (OSError, EdlCkptError):
            dead = False
        yield dead
    finally:
        close_read(fd)


def lock_file(fd: int) -> bool | None:
    """Take the kernel's lock on an open file; False when another process has it, None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, *_NO_LOCKS}:
            raise
        return None if error.errno in _NO_LOCKS else False
    return True


def is_abandoned(root: str, relative: str) -> bool:
    """Say whether the owner of a staging directory, given by its path below a location, is dead at this moment."""
    with suppress(EdlCkptError, OSError), Directory.beneath(root, relative) as stage, if_abandoned(stage) as dead:
        return dead
    return False


def _is_abandoned_file(fd: int, directory: Directory) -> bool:
    """Say whether the owner of an open owner's file is dead; if it is, the file is locked by this process now."""
    silent = time.time() - os.fstat(fd).st_mtime
    is_locked = lock_file(fd)
    if not is_locked:
        return is_locked is None and is_dead(read_owner(directory), silent)
    owner = read_owner(directory)
    silent = time.time() - os.fstat(fd).st_mtime
    if not owner:  # the process that makes the file locks and signs it a moment later
        return silent > _SIGNING_SECONDS or is_dead(owner_in(os.path.basename(directory.path)), silent)
    # A process of this kernel has ended, or we could not lock its file; the lock of another host may not reach us.
    return is_here(owner) or is_dead(owner, silent)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


_proofs: ContextVar[Mapping[str, Callable[[], bool]]] = ContextVar("edl_ckpt_locks")
"""How this thread proves each lock that it holds, by location."""


class LostLockError(LockedError):
    """Another process has the lock that this command had, so the command ends here."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock, or held it when it died.

    `silent_seconds` is the time since its last sign of life; None where the storage does not say.
    """

    owner: Mapping[str, Any]
    is_alive: bool
    silent_seconds: float | None
    key: str = field(default="", repr=False)
    """The name of its claim, on storage where each process has one."""
    kept_by: Sequence[int] = ()
    """The processes of this host that have the file of a dead holder open, and so may keep its lock."""


@contextmanager
def provable(location: Location, proof: Callable[[], bool]) -> Iterator[None]:
    """Let `prove_lock` find the proof of a lock that this thread holds while the block runs."""
    before = _proofs.get({})
    _proofs.set({**before, location.url.rstrip("/"): proof})
    try:
        yield
    finally:
        _proofs.set(before)


def prove_lock(location: Location) -> bool:
    """Raise LostLockError unless this thread still holds the lock of a location that it took.

    Every step that changes a location and cannot be undone calls this first. Nothing happens without a lock. Returns
    True while a request may still arrive from a process that lost the lock.
    """
    proof = _proofs.get({}).get(location.url.rstrip("/"))
    return proof is not None and proof()


def write_proved(store: Store, relative: str, data: bytes) -> None:
    """Write a file of META_DIR, the lock of which this thread holds before and after; LockedError when it was lost.

    Then the file of another process is still there, or the next holder of the lock puts it back.
    """
    seen = store.stat(relative) if lists_marks(store) else None
    if prove_lock(store.location):
        store.write_small(f"{KEPT_DIR}/{base_name(relative)}", data)
    with COMMIT:
        if lists_marks(store):
            store.write_over(relative, data, seen)
        else:
            store.write_small(relative, data)
        prove_lock(store.location)


def lost_lock(place: str, owner: Mapping[str, Any]) -> LostLockError:
    """Return the error of a command that lost the lock; `owner` is the holder now, {} when there is none."""
    holder = format_owner(owner) if owner else "no process"
    return LostLockError(
        f"this command lost the lock while it was stopped; the lock is held by {holder} now",
        path=place,
        hint="nothing further was changed; try again",
    )


def set_aside(state: Directory, directory: Directory, name: str, why: str, *, was: str = "") -> str:
    """Move a name of a directory away; return what was done, in words. `was` is the name it had before, if another."""
    new = damaged_name(was or name)
    before = make_way(state, os.path.basename(STAGE_DIR))
    with state.enter(os.path.basename(STAGE_DIR), make=True) as stages:
        directory.rename(name, stages, new)
        stages.flush()
    done = f"{directory.join(was or name)} {why}; it was set aside as {STAGE_DIR}/{new}"
    return f"{before}; {done}" if before else done


def make_way(state: Directory, name: str) -> str:
    """Set aside what has the name of one of our directories and is none; return what was done, '' for nothing."""
    found = state.stat(name)
    if found is None or stat.S_ISDIR(found.st_mode):
        return ""
    moved = f"{damaged_name('')}0"  # its own name must be free before there is a place to put it
    state.rename(name, state, moved)
    return set_aside(state, state, moved, f"is {kind_of(found.st_mode)}", was=name)
