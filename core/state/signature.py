"""The description by which a process signs that it is at work, in a file under a lock that ends with the process."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakSet

from edl_ckpt.core.base.ids import kernel_id
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.storage.faults import storage_errors

_TOUCH_SECONDS: Final = 60.0


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


def describe(purpose: str) -> dict[str, Any]:
    """Return the description of this process that an owner's file contains."""
    return {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "kernel": kernel_id(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "purpose": purpose,
    }


_SIGNATURES: Final[WeakSet[Signature]] = WeakSet()


def _close_copies() -> None:
    """Close a forked process's copies of the files: each would keep a lock when the parent has ended."""
    for signature in list(_SIGNATURES):
        signature.is_ours = False
        os.close(signature.fd)
    _SIGNATURES.clear()


os.register_at_fork(after_in_child=_close_copies)
