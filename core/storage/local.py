"""The local disk, through `os` alone: a listing imports nothing, and a read is one `pread`.

Of files that users name, only regular ones are opened or replaced: a pipe blocks, and replacing it destroys it. Devices
and sockets are refused for the same reasons. A link counts as what it leads to. Streams are outputs that are no files:
open descriptors, pipes and character devices; written into, and never replaced. A pipe that nobody reads is refused,
because to open it would take until somebody does.
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
from dataclasses import replace
from typing import IO, Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.storage.beneath import Directory, ForeignError, close_read, kind_of
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
from edl_ckpt.core.storage.location import Fact, Location, disk_facts
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
        return Entry(relative, path, is_dir, 0 if is_dir else info.st_size, info.st_mtime)
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
            return [replace(entry, fault=Fault.of(error, entry.path))]

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
                            fault = replace(fault, message="the symbolic link leads nowhere")
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

    def open(self, path: str) -> RangeReader:
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
        with Directory.beneath(self.root, folder) as directory:
            try:
                return directory.read(name, SMALL_BYTES)
            except ForeignError:
                if directory.is_directory(name):  # somebody else's, and no file
                    return None
                raise

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small file of our state: staged beside its place, flushed, then renamed."""
        folder, name = os.path.split(relative)

        def write(directory: Directory) -> None:
            directory.replace(name, data, flush=False)
            COMMIT.reached()
            directory.flush()

        with Directory.open(self.root) as root:
            root.inside(folder, write)

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
