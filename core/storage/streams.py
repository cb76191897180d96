"""Streams: outputs that are no files, but open descriptors, pipes and character devices.

They are written into, and never replaced. A pipe that no process reads is refused, because to open it would take until
one does.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from typing import IO, Final

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.user_files import mode_seen

STDOUT: Final = "/dev/stdout"


_NAMED: Final = {STDOUT: 1, "/dev/stderr": 2}
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_READER_SECONDS: Final = 0.5
"""How long a reader that was started together with us has to open a pipe."""
_POLL_SECONDS: Final = 0.05


def descriptor_of(path: str) -> int | None:
    """Return the open descriptor that a path names, None for any other path.

    >>> descriptor_of("/dev/stdout"), descriptor_of("/dev/fd/63"), descriptor_of("/dev/null")
    (1, 63, None)
    """
    match = _DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else _NAMED.get(path)


def is_stream(path: str) -> bool:
    """Say whether a path names a descriptor, or leads to a pipe or a character device; what is not there does not."""
    mode = mode_seen(path)
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
