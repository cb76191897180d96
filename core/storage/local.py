"""The local disk, through `os` alone: a listing imports nothing, and a read is one `pread`."""

from __future__ import annotations

import os
import stat as stat_module
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from edl_ckpt.core.errors import EdlCkptError, LockedError, NotFoundError
from edl_ckpt.core.storage.faults import Fault, storage_errors
from edl_ckpt.core.storage.files import replace_file
from edl_ckpt.core.storage.interface import SMALL_BYTES, Entry, Inside, Properties, RangeReader
from edl_ckpt.core.storage.location import Location

_ATTEMPTS: Final = 3
"""How often something is read that another process may be replacing."""


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
                        f"the file became shorter while it was being read; it had {self.size_bytes} bytes",
                        path=self.path,
                        offset=offset + done,
                    )
                done += count
        self.bytes_read += done

    def view(self, offset: int, size: int) -> memoryview | None:  # noqa: ARG002 - the protocol has it
        """Return None. If another process truncates a mapped file, the kernel kills this one."""
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
                "the file changed while it was being read; another process is writing it",
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
    """A file in our own staging directory, which no other process changes, so it is mapped and not copied.

    One mapping for each view, which ends with it: pages of a mapping count as memory of the process.
    """

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return bytes of the page cache itself; None where the file system has no mappings."""
        import mmap

        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            held = mmap.mmap(self._fd, offset + size - start, prot=mmap.PROT_READ, offset=start)
        except OSError:  # a file system without mappings
            return None
        self.bytes_read += size
        return memoryview(held)[offset - start :]


def is_gone(path: str) -> bool:
    """Say whether nothing has a name: only that is absent, whatever other error there is."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


class LocalStore:
    """Directories and files of the local disk; `root` is the location's path."""

    properties = Properties(
        rename=True,
        exchange=True,
        trash=True,
        whole_listings=True,
        positional_write=True,
        round_trips=False,
    )

    def __init__(self, location: Location, root: str) -> None:
        self.location = location
        self.root = root

    def path(self, relative: str) -> str:
        """Return the full path of something below the location."""
        return os.path.join(self.root, relative)

    def entries(self, inside: Inside) -> list[Entry]:
        """Return the entries of the location, and those of each directory that `inside` accepts."""
        return self._list("", inside)

    def _list(self, relative: str, inside: Inside) -> list[Entry]:
        listed: list[Entry] = []
        for entry in self._scan(relative):
            if entry.is_dir and inside(entry.relative):
                listed += self._list_inside(entry, inside)
            else:
                listed.append(entry)
        return listed

    def _list_inside(self, entry: Entry, inside: Inside) -> list[Entry]:
        """Return a directory and its entries, nothing when it is gone, or its fault when it cannot be listed."""
        for attempt in range(_ATTEMPTS):
            try:
                return [entry, *self._list(entry.relative, inside)]
            except EdlCkptError as error:
                if is_gone(entry.path):  # another process deleted it between the two listings
                    return []
                # Another process may just be exchanging it for another one.
                if not isinstance(error, NotFoundError | LockedError) or attempt == _ATTEMPTS - 1:
                    return [replace(entry, fault=Fault.of(error, entry.path))]
        raise AssertionError  # the loop always returns

    def _scan(self, relative: str) -> list[Entry]:
        path = self.path(relative) if relative else self.root
        prefix = f"{relative}/" if relative else ""
        entries: list[Entry] = []
        with storage_errors(path), os.scandir(path) as found:
            for item in found:
                linked = False
                try:
                    linked = item.is_symlink()
                    info = item.stat()
                except OSError as error:
                    if not (isinstance(error, FileNotFoundError) and is_gone(item.path)):
                        fault = Fault.of(error, item.path)
                        if fault.kind is NotFoundError and isinstance(error, FileNotFoundError):
                            fault = replace(fault, message="the symbolic link leads nowhere")
                        entries.append(Entry(prefix + item.name, item.path, False, 0, 0.0, fault, linked))
                    continue
                is_dir = stat_module.S_ISDIR(info.st_mode)
                size = 0 if is_dir else info.st_size
                entries.append(Entry(prefix + item.name, item.path, is_dir, size, info.st_mtime, linked=linked))
        return entries

    def open(self, path: str, *, mapped: bool = False) -> RangeReader:
        """Open a file for ranged reads."""
        return MappedReader(path) if mapped else LocalReader(path)

    def names(self, relative: str) -> dict[str, str]:
        """Return the paths of a directory's files by name; {} when there is no such directory."""
        path = self.path(relative)
        try:
            with storage_errors(path):
                return {name: os.path.join(path, name) for name in os.listdir(path)}
        except NotFoundError:
            if os.path.islink(path):  # one that leads nowhere: what it leads to may be there again
                raise
            return {}

    def modified(self, relative: str) -> float:
        """Return when a file was last written, in seconds since the epoch."""
        path = self.path(relative)
        with storage_errors(path):
            return os.stat(path).st_mtime

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location; None when there is no such file."""
        path = self.path(relative)
        for attempt in range(_ATTEMPTS):
            try:
                with LocalReader(path) as reader:
                    return reader.read(0, min(reader.size_bytes, SMALL_BYTES))
            except NotFoundError as error:
                if not os.path.islink(path):
                    return None
                if attempt == _ATTEMPTS - 1:  # a link that leads nowhere: what it leads to may be there again
                    raise EdlCkptError(f"cannot be read: {error.message}", path=path) from error
        raise AssertionError  # the loop always ends by a return or a raise

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small file: staged beside its place, flushed, then renamed."""
        replace_file(self.path(relative), data)

    def remove(self, relative: str) -> None:
        """Remove a file, and the directories above it that are then empty; a missing file is no error."""
        path = self.path(relative)
        with storage_errors(path), suppress(FileNotFoundError):
            os.unlink(path)
        with suppress(OSError):  # not empty
            while relative := os.path.dirname(relative):
                os.rmdir(self.path(relative))
