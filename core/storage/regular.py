"""Files that users name. Only regular ones are opened or replaced: a pipe blocks, and replacing it destroys it.

Devices and sockets are refused for the same reasons. A link counts as what it leads to. Streams are outputs that are no
files: open descriptors, pipes and character devices; written into, and never replaced. A pipe that nobody reads is
refused, because to open it would take until somebody does.

Making and removing whole directories.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from edl_ckpt.core.base.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.storage.beneath import kind_of
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.local import is_gone

STDOUT: Final = "/dev/stdout"
_MOST_TOML_BYTES: Final = 8 << 20
_NAMED: Final = {STDOUT: 1, "/dev/stderr": 2}
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_READER_SECONDS: Final = 0.5
"""How long a reader that was started together with us has to open a pipe."""
_POLL_SECONDS: Final = 0.05


def _special(mode: int) -> str:
    """Return what a mode stands for, in words; '' for a regular file, a directory or nothing."""
    return "" if not mode or stat.S_ISREG(mode) or stat.S_ISDIR(mode) else kind_of(mode)


def _mode(path: str) -> int:
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
    """Raise UsageError for a pipe, a device or a socket; what is not there is left to whoever opens it."""
    kind = _special(_mode(path))
    if kind:
        raise UsageError(f"is {kind}, not a file", path=path, hint="write its content to a file first")


def check_target(path: str) -> None:
    """Raise RefusedError for a pipe, a device or a socket: writing could block for ever, and replacing destroys it."""
    kind = _special(_mode(path))
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


def read_toml(path: str) -> dict[str, Any]:
    """Return the document in a TOML file; UsageError for another content, and the errors of reading."""
    import tomllib  # few commands read any

    with storage_errors(path), open_input(path, "rb") as file:
        data = file.read(_MOST_TOML_BYTES + 1)
        if len(data) > _MOST_TOML_BYTES:
            raise UsageError(f"larger than {_MOST_TOML_BYTES >> 20} MiB, which no map is", path=path)
        try:
            return tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"not a TOML file: {error}", path=path) from None
        except RecursionError:
            raise UsageError("not a TOML file: nested too deeply", path=path) from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def descriptor_of(path: str) -> int | None:
    """Return the open descriptor that a path names, None for any other path.

    >>> descriptor_of("/dev/stdout"), descriptor_of("/dev/fd/63"), descriptor_of("/dev/null")
    (1, 63, None)
    """
    match = _DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else _NAMED.get(path)


def is_stream(path: str) -> bool:
    """Say whether a path names a descriptor, or leads to a pipe or a character device; what is not there does not."""
    mode = _mode(path)
    return descriptor_of(path) is not None or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def open_stream(path: str) -> IO[bytes]:
    """Open a stream for writing; RefusedError for a pipe that nobody reads. Closing it leaves a descriptor open."""
    number = descriptor_of(path)
    with storage_errors(path):
        return open(_open_pipe(path) if number is None else os.dup(number), "wb")


def _open_pipe(path: str) -> int:
    """Open a pipe or a device without waiting, and let its writes wait."""
    until = time.monotonic() + _READER_SECONDS
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise RefusedError("is a pipe without a reader", path=path, hint="start its reader first") from None
            time.sleep(_POLL_SECONDS)
        else:
            os.set_blocking(fd, True)
            return fd


def remove_tree(path: str) -> None:
    """Remove a directory with its content, or anything else of that name without opening it; errors are ignored.

    `shutil.rmtree` opens what it is given, and so waits for ever at a pipe.
    """
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


@contextmanager
def made_directory(path: str | None, *, keep: bool = True) -> Iterator[None]:
    """Make a directory and those above it; at the end remove those that were made and are empty.

    Those that a block has made without an error stay, unless `keep` is False.
    """
    missing: list[str] = []
    above = os.path.abspath(path) if path is not None else ""
    while above and is_gone(above):
        missing.append(above)
        above = os.path.dirname(above)
    if path is not None:
        with storage_errors(path):
            try:
                os.makedirs(path, exist_ok=True)
            except FileExistsError:  # `makedirs` takes any error in looking at it for a file in its place
                os.listdir(path)
    stay = False
    try:
        yield
        stay = keep
    finally:
        if not stay:
            with suppress(OSError):
                for folder in missing:
                    os.rmdir(folder)
