"""Files that users name: only regular ones are opened or replaced. A pipe blocks, and replacing it destroys it.

Devices and sockets are refused for the same reasons. A link counts as what it leads to.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import IO, Any

from edl_ckpt.core.base.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.storage.faults import storage_errors


def _special(mode: int) -> str:
    """Return what a mode stands for, in words; '' for a regular file or a directory."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def mode_of(path: str) -> int | None:
    """Return the mode of what a path leads to, None when there is nothing; any other error is raised as one of ours.

    `os.path.isdir` and the like say False for every error.
    """
    try:
        with storage_errors(path):
            return os.stat(path).st_mode
    except NotFoundError:
        return None


def is_directory(path: str) -> bool:
    """Say whether a path leads to a directory; errors as `mode_of`."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_file(path: str) -> bool:
    """Say whether a path leads to a regular file; errors as `mode_of`."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISREG(mode)


def check_input(path: str) -> None:
    """Raise UsageError for a pipe, a device or a socket; what is not there is left to whoever opens it."""
    with suppress(OSError):
        kind = _special(os.stat(path).st_mode)
        if kind:
            raise UsageError(f"is {kind}, not a file", path=path, hint="write its content to a file first")


def check_target(path: str) -> None:
    """Raise RefusedError for a pipe, a device or a socket: writing could block for ever, and replacing destroys it."""
    with suppress(OSError):
        kind = _special(os.stat(path).st_mode)
        if kind:
            raise RefusedError(f"is {kind}, which edl-ckpt neither writes to nor replaces", path=path)


def open_input(path: str, mode: str = "r", **options: Any) -> IO[Any]:
    """Open a file for reading, without waiting for a writer should it be a pipe; errors as `check_input`."""
    check_input(path)
    with storage_errors(path):
        opened = open(path, mode, opener=_open_at_once, **options)  # noqa: SIM115 - the caller closes it
    kind = _special(os.fstat(opened.fileno()).st_mode)
    if kind:  # put there since we looked
        opened.close()
        raise UsageError(f"is {kind}, not a file", path=path)
    return opened


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
