"""Nameless local files: a place to write at any offset before data goes to storage that cannot do that."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import IO

from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.local import LocalReader


class SpoolFile:
    """A local temporary file, in $TMPDIR, written at any offset and without a name."""

    def __init__(self, size_bytes: int) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
        self.path = f"/proc/self/fd/{self._file.fileno()}"
        self.bytes_written = 0
        self._lock = threading.Lock()
        if size_bytes:
            self.grow(0, size_bytes)

    def grow(self, offset: int, size_bytes: int) -> None:
        """Allocate the space of `size_bytes` at `offset`, so that a full disk fails here; NoSpaceError."""
        with storage_errors(tempfile.gettempdir()):
            os.posix_fallocate(self._file.fileno(), offset, size_bytes)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data).cast("B")
        done = 0
        with storage_errors(tempfile.gettempdir()):
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], offset + done)
        with self._lock:
            self.bytes_written += done

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`."""
        with storage_errors(tempfile.gettempdir()):
            return os.pread(self._file.fileno(), size, offset)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer from `offset` on."""
        done = 0
        with storage_errors(tempfile.gettempdir()):
            while done < len(buffer):
                done += os.preadv(self._file.fileno(), [buffer[done:]], offset + done)

    def close(self) -> None:
        """Close the file, which removes it."""
        self._file.close()

    def __del__(self) -> None:
        """Remove a file that nobody has any more."""
        if hasattr(self, "_file"):
            self._file.close()


class SpooledReader(LocalReader):
    """A reader of a temporary file without a name; `path` names its source in messages."""

    def __init__(self, file: IO[bytes], path: str) -> None:  # its parent opens a path; this has none
        self.path = path
        self.bytes_read = 0
        self._fd = os.dup(file.fileno())
        self._stat = os.fstat(self._fd)
        self.size_bytes = self._stat.st_size
