"""The proof that a command still holds its lock.

A process that was stopped for longer than its lock is valid (SIGSTOP, a suspended machine) wakes up and goes on. So a
command proves that it still has the lock right before each step that cannot be undone. It may also stop between this
proof and its request. So a file of our state is replaced only while it is the one of before the proof, where the
storage knows conditional writes, and the lock is proved again after it. Where the storage does not, and a process lost
its lock in the last day, a copy of each new file is kept: the next holder puts back what a late request wrote over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.state.paths import KEPT_DIR
from edl_ckpt.core.storage.interface import Store, lists_marks
from edl_ckpt.core.storage.location import Location

_proofs: ContextVar[Mapping[str, Callable[[], bool]]] = ContextVar("edl_ckpt_locks")
"""How this thread proves each lock that it holds, by location."""


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
