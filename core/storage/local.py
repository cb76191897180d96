"""The local disk, through `os` alone: a listing imports nothing, and a read is one `pread`."""

from __future__ import annotations

import os
import stat as stat_module
from contextlib import suppress
from types import TracebackType
from typing import Self

from edl_ckpt.core.errors import LockedError, NotFoundError
from edl_ckpt.core.format.names import parse_version_dir
from edl_ckpt.core.state.paths import STATE_DIR
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import SMALL_BYTES, Entry, RangeReader, Scan


class LocalReader:
    """A local file read with `pread`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bytes_read = 0
        with storage_errors(path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._stat = os.fstat(self._fd)
        if not stat_module.S_ISREG(self._stat.st_mode):
            os.close(self._fd)
            raise NotFoundError("not a regular file", path=path)
        self.size_bytes = self._stat.st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        with storage_errors(self.path):
            data = os.pread(self._fd, size, offset)
        if len(data) != size:
            buffer = bytearray(size)
            self.read_into(offset, memoryview(buffer))
            return bytes(buffer)
        self.bytes_read += size
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        done = 0
        with storage_errors(self.path):
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
                if count == 0:
                    raise LockedError(
                        f"the file became shorter while it was read ({self.size_bytes} bytes before)",
                        path=self.path,
                        offset=offset + done,
                    )
                done += count
        self.bytes_read += done

    def view(self, offset: int, size: int) -> memoryview | None:  # noqa: ARG002 - of the protocol
        """Return None: a mapping of a file that somebody else may truncate kills the process."""
        return None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def check_unchanged(self) -> None:
        """Raise LockedError when the file's size or time is not what it was when it was opened."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise LockedError(
                "the file changed while it was read; somebody is writing it",
                path=self.path,
                hint="try again when the job has finished saving",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MappedReader(LocalReader):
    """A file in our own staging area, which nobody else touches: what is asked for of it is mapped, not copied.

    One mapping for each view, which ends with it: pages of a mapping count as memory of the process.
    """

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return bytes of the page cache itself, None where the file system has no mappings."""
        import mmap

        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            held = mmap.mmap(self._fd, offset + size - start, prot=mmap.PROT_READ, offset=start)
        except OSError:  # a file system without mappings
            return None
        self.bytes_read += size
        return memoryview(held)[offset - start :]


class LocalStore:
    """Directories and files of the local disk."""

    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = root
        self.location = root

    def scan(self, path: str) -> Scan:
        """Return what is in a directory and in each version directory in it."""
        top = self._entries(path)
        children: dict[str, list[Entry]] = {}
        for entry in top:
            if entry.is_dir and parse_version_dir(entry.name):
                try:
                    children[entry.name] = self._entries(entry.path)
                except NotFoundError:
                    continue  # deleted between the two listings: savers and pruners do that
        kept = [e for e in top if not (parse_version_dir(e.name) and e.is_dir) or e.name in children]
        return Scan(kept, children, None)

    def _entries(self, path: str) -> list[Entry]:
        entries: list[Entry] = []
        with storage_errors(path), os.scandir(path) as found:
            for item in found:
                try:
                    info = item.stat()
                except FileNotFoundError:
                    if item.is_symlink():
                        entries.append(Entry(item.name, item.path, is_dir=False, size_bytes=0, modified=0.0))
                    continue
                except OSError:
                    entries.append(Entry(item.name, item.path, is_dir=False, size_bytes=0, modified=0.0))
                    continue
                is_dir = stat_module.S_ISDIR(info.st_mode)
                size = 0 if is_dir else info.st_size
                entries.append(Entry(item.name, item.path, is_dir, size, info.st_mtime))
        return entries

    def open(self, path: str) -> RangeReader:
        """Open a file for ranged reads."""
        return LocalReader(path)

    def names(self, relative: str) -> dict[str, str]:
        """Return the files of a directory below the location, their paths by their names; {} when there is none."""
        path = os.path.join(self.root, relative)
        try:
            with storage_errors(path):
                return {name: os.path.join(path, name) for name in os.listdir(path)}
        except NotFoundError:
            return {}

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location, None when there is none; errors as reading."""
        try:
            with LocalReader(os.path.join(self.root, relative)) as reader:
                return reader.read(0, min(reader.size_bytes, SMALL_BYTES))
        except NotFoundError:
            return None

    def write_small(self, relative: str, data: bytes) -> None:
        """Put a small file in its place: staged, flushed, then one rename."""
        from edl_ckpt.core.commit.local import Staging, replace_file

        with Staging(self.root, "metadata") as staging:
            replace_file(staging, os.path.join(self.root, relative), data)

    def remove(self, relative: str) -> None:
        """Remove a file, and the directories of our state that are empty then; one that is gone is no error."""
        path = os.path.join(self.root, relative)
        with storage_errors(path), suppress(FileNotFoundError):
            os.unlink(path)
        with suppress(OSError):  # not empty
            os.rmdir(os.path.dirname(path))
            os.rmdir(os.path.join(self.root, STATE_DIR))
