"""The local disk, through `os` alone: a listing imports nothing, and a read is one `pread`."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import IO, Final

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.storage.beneath import Directory, ForeignError, close_read, kind_of
from edl_ckpt.core.storage.disk_facts import disk_facts
from edl_ckpt.core.storage.facts import Fact
from edl_ckpt.core.storage.faults import Fault, storage_errors
from edl_ckpt.core.storage.interface import (
    SMALL_BYTES,
    Entry,
    Inside,
    Level,
    ObjectStat,
    OnDisk,
    Properties,
    RangeReader,
)
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.tree import Tree
from edl_ckpt.core.storage.walk import local_tree

_ATTEMPTS: Final = 3
"""How often something is read that another process may be replacing."""


class LocalReader(RangeReader, OnDisk):
    """A local file read with `pread`, and not mapped: when another process truncates it, the kernel kills this one.

    Of a temporary file without a name, which is open already, `path` names the source in messages.
    """

    def __init__(self, path: str, file: IO[bytes] | None = None) -> None:
        self.path = path
        self.bytes_read = 0
        with storage_errors(path):
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.dup(file.fileno()) if file else os.open(path, flags)
            self._stat = os.fstat(fd)
        if not stat.S_ISREG(self._stat.st_mode):
            os.close(fd)
            raise NotFoundError("not a regular file", path=path)
        if file is None:
            self.keep(fd, flags)
        else:  # it has no name by which it could be opened again
            self._fd = fd
        self.size_bytes = self._stat.st_size
        # every machine sees these alike on a file system that they share
        self.generation = f"{self._stat.st_ino}-{self._stat.st_size}-{self._stat.st_mtime_ns}"

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        with storage_errors(self.path):
            if self.is_kept_open:
                data = os.pread(self._fd, size, offset)
            else:
                with self.used() as fd:
                    data = os.pread(fd, size, offset)
        if len(data) != size:
            buffer = bytearray(size)
            self.read_into(offset, memoryview(buffer))
            return bytes(buffer)
        self.bytes_read += size
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        OnDisk.read_into(self, offset, buffer)
        self.bytes_read += len(buffer)

    def add_moved(self, size_bytes: int) -> None:
        """Count bytes that the kernel has read."""
        self.bytes_read += size_bytes

    def failed(self, error: int, offset: int) -> EdlCkptError:
        """Return what the number of a system's error means; -1 for a file that has become shorter."""
        if error >= 0:
            return super().failed(error, offset)
        # The kernel reads many bytes in a call: of these the first that is missing is named.
        with suppress(OSError, LockedError), self.used() as fd:
            offset = max(offset, os.fstat(fd).st_size)
        return self.shorter(offset)

    def close(self) -> None:
        """Close the file."""
        fd = self.let_go()
        if fd >= 0:
            close_read(fd)

    def check_unchanged(self) -> None:
        """Raise LockedError when the file's size or time is not what it was when it was opened."""
        with storage_errors(self.path), self.used() as fd:
            now = os.fstat(fd)
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise LockedError(
                "the file changed while it was being read; another process is writing it",
                path=self.path,
                hint="try again when the job has finished saving",
            )


def is_gone(path: str) -> bool:
    """Say whether nothing has a name: only that is absent, whatever other error there is."""
    with suppress(EdlCkptError):
        return not is_there(path)
    return False


def _is_private(relative: str) -> bool:
    """Say whether a path below a location is hidden: there is our state, and there no link is followed."""
    return relative.startswith(".")


def _private_entry(relative: str, path: str, info: os.stat_result) -> Entry:
    """Return an entry of our state; it has a fault when it is neither a file nor a directory."""
    is_dir = stat.S_ISDIR(info.st_mode)
    if is_dir or stat.S_ISREG(info.st_mode):
        if is_dir:
            return Entry(relative, path, True, 0, info.st_mtime)
        return Entry(relative, path, False, info.st_size, info.st_mtime, mark=file_mark(info))
    fault = Fault(ForeignError, f"is {kind_of(info.st_mode)}, which is not ours", path)
    return Entry(relative, path, False, 0, info.st_mtime, fault)


def file_mark(found: os.stat_result) -> str:
    """Return the mark of a file on a disk: a rename keeps it, and every other change gives another one."""
    return f"{found.st_ino:x}_{found.st_size:x}_{found.st_mtime_ns:x}"


def is_there(path: str) -> bool:
    """Say whether something has a name, a link itself too; raises the error of looking, which says neither."""
    with storage_errors(path), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(path)
        return True
    return False


class LocalStore:
    """Directories and files of the local disk; `root` is the location's path.

    Links among the versions of a location are followed, and inside of them links to files; links to directories are
    not. No link is followed in a hidden directory, where our state is.
    """

    properties = Properties(rename=True, trash=True, positional_write=True, round_trips=False)

    def __init__(self, location: Location, root: str) -> None:
        self.location = location
        self.root = root
        self._kept: dict[tuple[int, str], Directory] = {}
        """The directories that a thread keeps open; another one may close its own at any time."""

    def facts(self) -> Iterator[Fact]:
        """Yield what is known of the file system without a write."""
        return disk_facts(self.root)

    def path(self, relative: str) -> str:
        """Return the full path of something below the location."""
        return os.path.join(self.root, relative)

    def entries(self, inside: Inside) -> list[Entry]:
        """Return the entries of the location, and those of each directory that `inside` accepts."""
        return self._list("", inside)

    def _list(self, relative: str, inside: Inside) -> list[Entry]:
        listed: list[Entry] = []
        for entry in self._scan(relative):
            is_link_below = entry.linked and bool(relative)  # it may lead anywhere, and to a directory above it
            if entry.is_dir and not is_link_below and inside(entry.relative):
                listed += self._list_inside(entry, inside)
            else:
                listed.append(entry)
        return listed

    def _list_inside(self, entry: Entry, inside: Inside, attempts: int = _ATTEMPTS) -> list[Entry]:
        """Return a directory and its entries, nothing when it is gone, or its fault when it cannot be listed."""
        try:
            return [entry, *self._list(entry.relative, inside)]
        except EdlCkptError as error:
            if is_gone(entry.path):  # another process deleted it between the two listings
                return []
            # Another process may just be exchanging it for another one.
            if attempts > 1 and isinstance(error, NotFoundError | LockedError):
                return self._list_inside(entry, inside, attempts - 1)
            return [entry._replace(fault=Fault.of(error, entry.path))]

    def _scan(self, relative: str) -> list[Entry]:
        path = self.path(relative) if relative else self.root
        prefix = f"{relative}/" if relative else ""
        entries: list[Entry] = []
        if _is_private(relative):
            return self._scan_private(relative)
        with storage_errors(path), os.scandir(path) as found:
            for item in found:
                linked = False
                try:
                    linked = item.is_symlink()
                    if not relative and _is_private(item.name):
                        info = item.stat(follow_symlinks=False)
                        entries.append(_private_entry(item.name, item.path, info))
                        continue
                    info = item.stat()
                except OSError as error:
                    if not (isinstance(error, FileNotFoundError) and is_gone(item.path)):
                        fault = Fault.of(error, item.path)
                        if fault.kind is NotFoundError and isinstance(error, FileNotFoundError):
                            fault = fault._replace(message="the symbolic link leads nowhere")
                        entries.append(Entry(prefix + item.name, item.path, False, 0, 0.0, fault, linked))
                    continue
                is_dir = stat.S_ISDIR(info.st_mode)
                size = 0 if is_dir else info.st_size
                mark = "" if is_dir else file_mark(info)
                changed = 0 if is_dir else info.st_ctime_ns
                relative_path, modified = prefix + item.name, info.st_mtime
                entries.append(Entry(relative_path, item.path, is_dir, size, modified, None, linked, mark, changed))
        return entries

    def _scan_private(self, relative: str) -> list[Entry]:
        entries: list[Entry] = []
        with Directory.open(self.root) as root, root.enter(relative) as directory, storage_errors(directory.path):
            for item in list(os.scandir(directory.fd)):
                with suppress(FileNotFoundError):
                    info = item.stat(follow_symlinks=False)
                    entries.append(_private_entry(f"{relative}/{item.name}", directory.join(item.name), info))
        return entries

    def raw_tree(self, relative: str) -> Tree:
        """Return every entry below a directory, to which links may lead; below it none is followed."""
        with Directory.open(self.path(relative)) as directory:
            return local_tree(directory)

    def open(self, path: str, *, listed_bytes: int = 0) -> RangeReader:  # noqa: ARG002 - the protocol has it
        """Open a file for ranged reads."""
        return LocalReader(path)

    def names(self, relative: str) -> dict[str, str]:
        """Return the paths of a directory's files by name; {} when there is no such directory."""
        path = self.path(relative)
        if _is_private(relative):
            with Directory.beneath(self.root, relative) as directory:
                return {name: directory.join(name) for name in directory.names()}
        try:
            with storage_errors(path):
                return {name: os.path.join(path, name) for name in os.listdir(path)}
        except NotFoundError:
            if os.path.islink(path):  # one that leads nowhere: what it leads to may be there again
                raise
            return {}

    def level(self, relative: str, most_requests: int) -> Level:  # noqa: ARG002 - a name here takes no request
        """Return the names right in a directory; none when there is no such directory."""
        path = self.path(relative)
        try:
            with storage_errors(path), os.scandir(path) as found:
                return Level({item.name: _may_be_directory(item) for item in found})
        except NotFoundError:
            if os.path.islink(path):  # one that leads nowhere: what it leads to may be there again
                raise
            return Level({})

    def ages(self, relative: str) -> dict[str, float]:
        """Return the seconds since each file of a directory was written, by its name."""
        now = time.time()

        def age(path: str) -> float:
            with storage_errors(path):
                return now - os.stat(path).st_mtime

        return {name: age(path) for name, path in self.names(relative).items()}

    def stat(self, relative: str) -> ObjectStat | None:
        """Return the state of a file; None when there is no such file."""
        path = self.path(relative)
        found: os.stat_result | None = None
        if _is_private(relative):
            folder, name = os.path.split(relative)
            with Directory.beneath(self.root, folder) as directory:
                found = directory.stat(name)
        else:
            with suppress(NotFoundError), storage_errors(path):
                found = os.stat(path)
        if found is None:
            return None
        age = time.time() - found.st_mtime
        return ObjectStat(found.st_size, "", age, file_mark(found), modified=found.st_mtime)

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small file below the location; None when there is no such file."""
        folder, name = os.path.split(relative)
        kept = self._kept.get((get_ident(), folder))
        if kept is not None:
            return _read_small(kept, name)
        with Directory.beneath(self.root, folder) as directory:
            return _read_small(directory, name)

    @contextmanager
    def kept_open(self, folder: str) -> Iterator[None]:
        """Keep a directory of ours open in the block, for `read_small` of its files; of one that is not there, do not.

        Each of a thousand reads would open it again, and the directory above it.
        """
        key, directory = (get_ident(), folder), None
        if key not in self._kept:
            with suppress(EdlCkptError):  # each read says why
                directory = Directory.beneath(self.root, folder)
        if directory is None:
            yield
            return
        with directory:
            self._kept[key] = directory
            try:
                yield
            finally:
                del self._kept[key]

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small file: staged beside its place, flushed, then renamed."""
        folder, name = os.path.split(relative)

        def write(directory: Directory) -> None:
            directory.replace(name, data, flush=False)
            COMMIT.reached()
            directory.flush()

        with Directory.open(self.root) as root:
            if folder:
                root.inside(folder, write)
            else:
                write(root)

    def remove(self, relative: str) -> None:
        """Remove a file of our state, and the directories above it that are then empty; a missing one is no error."""
        folder, name = os.path.split(relative)
        with Directory.open(self.root) as root, root.find(folder) as directory:
            if directory.has_file(name):
                directory.unlink(name)
        while folder:
            folder, name = os.path.split(folder)
            with Directory.beneath(self.root, folder) if folder else Directory.open(self.root) as above:
                if not above.rmdir(name):
                    return


def _may_be_directory(item: os.DirEntry[str]) -> bool:
    """Say whether something is a directory, or cannot be looked at; a link to one is one."""
    try:
        return item.is_dir() or (item.is_symlink() and not os.path.exists(item.path))
    except OSError:
        return True


def _read_small(directory: Directory, name: str) -> bytes | None:
    try:
        return directory.read(name, SMALL_BYTES)
    except ForeignError:
        if directory.is_directory(name):  # somebody else's, and no file
            return None
        raise
