"""Files that users name: only regular ones are opened or replaced.

A pipe blocks, and replacing it destroys it. Devices and sockets are refused for the same reasons. A link counts as what
it leads to.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import IO, Any, Final

from edl_ckpt.core.base.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.storage.beneath import kind_of
from edl_ckpt.core.storage.faults import storage_errors

_MOST_TOML_BYTES: Final = 8 << 20


def _special(mode: int) -> str:
    """Return what a mode stands for, in words; '' for a regular file, a directory or nothing."""
    return "" if not mode or stat.S_ISREG(mode) or stat.S_ISDIR(mode) else kind_of(mode)


def mode_seen(path: str) -> int:
    """Return the mode of what a path leads to, 0 when that cannot be seen."""
    with suppress(OSError):
        return os.stat(path).st_mode
    return 0


def _mode_of(path: str) -> int:
    """Return the mode of what a path leads to, 0 when there is nothing; any other error is raised as one of ours.

    `os.path.isdir` and the like say False for every error.
    """
    with suppress(NotFoundError), storage_errors(path):
        return os.stat(path).st_mode
    return 0


def is_directory(path: str) -> bool:
    """Say whether a path leads to a directory; other errors than its absence are raised."""
    return stat.S_ISDIR(_mode_of(path))


def is_file(path: str) -> bool:
    """Say whether a path leads to a regular file; other errors than its absence are raised."""
    return stat.S_ISREG(_mode_of(path))


def check_input(path: str) -> None:
    """Raise UsageError for a pipe, a device or a socket; opening a missing file raises its own error."""
    kind = _special(mode_seen(path))
    if kind:
        raise UsageError(f"is {kind}, not a file", path=path, hint="write its content to a file first")


def check_target(path: str) -> None:
    """Raise RefusedError for a pipe, a device or a socket: writing could block for ever, and replacing destroys it."""
    kind = _special(mode_seen(path))
    if kind:
        raise RefusedError(f"is {kind}, which edl-ckpt neither writes to nor replaces", path=path)


def open_input(
    path: str,
    mode: str = "r",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> IO[Any]:
    """Open a file for reading, without waiting for a writer should it be a pipe; errors as `check_input`."""
    check_input(path)
    with storage_errors(path):
        opened = open(  # noqa: SIM115 - the caller closes it
            path, mode, opener=_open_at_once, encoding=encoding, errors=errors, newline=newline
        )
    kind = _special(os.fstat(opened.fileno()).st_mode)
    if kind:  # put there since we looked
        opened.close()
        raise UsageError(f"is {kind}, not a file", path=path)
    return opened


def read_toml(path: str) -> dict[str, Any]:
    """Return the document in a TOML file; UsageError for another content, and the errors of reading."""
    import tomllib  # few commands read any

    with storage_errors(path), open_input(path, "rb") as file:
        data = file.read(_MOST_TOML_BYTES + 1)
        if len(data) > _MOST_TOML_BYTES:
            raise UsageError(f"larger than {_MOST_TOML_BYTES >> 20} MiB, which no map is", path=path)
        try:
            return tomllib.loads(data.decode())
        except ValueError as error:  # a number of thousands of digits, too
            raise UsageError(f"not a TOML file: {error}", path=path) from None
        except RecursionError:
            raise UsageError("not a TOML file: nested too deeply", path=path) from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
