"""An open directory below which no symbolic link is followed, for places where other people may write too.

Every name is one component, relative to the open directory, so a directory that is swapped for a link meanwhile
leads nowhere else. Only the top may be reached over links: the user named it. Files are opened without waiting, and
only regular ones with one name: a pipe would block, and a hard link may be the name of somebody's file elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.storage.faults import Fault, storage_errors
from edl_ckpt.core.storage.files import NEW, PreallocatedFile, exchange_names, rename_new
from edl_ckpt.core.storage.mounts import mount_of

_TOP: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY: Final = _TOP | os.O_NOFOLLOW
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ATTEMPTS: Final = 50
_MAX_DEPTH: Final = 64
"""A tree that is deeper is flattened while it is removed: each level takes an open file."""
_KINDS: Final = {
    0: "gone",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}

Result = TypeVar("Result")
Note = Callable[[EdlCkptError], None]
"""Takes the error of a file that cannot be removed."""


class ForeignError(RefusedError):
    """A name that we need stands for something that is not ours: a link, a pipe, a device, a directory, a file."""


@dataclass(slots=True, eq=False)
class Directory:
    """An open directory; a context manager, which closes it. `path` is for messages only."""

    fd: int
    path: str

    @staticmethod
    def open(path: str) -> Directory:
        """Open a directory that the user named; links on the way to it are followed."""
        with storage_errors(path):
            return Directory(os.open(path, _TOP), path)

    @staticmethod
    def beneath(root: str, relative: str) -> Directory:
        """Open a directory below one that the user named; one without names when there is none; errors as `enter`."""
        first, _, rest = relative.partition("/")
        path = os.path.join(root, first)
        try:
            # The flag is for the last component, so links on the way to the root are followed, and no other.
            with storage_errors(path):
                top = Directory(os.open(path, _DIRECTORY), path)
        except NotFoundError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return _Nowhere(-1, path)
            with Directory.open(root) as place:  # a link, or no directory: this finds the words
                return place.find(relative)
        if not rest:
            return top
        with top:
            return top.find(rest)

    def close(self) -> None:
        """Close the directory; nothing happens when it is closed."""
        fd, self.fd = self.fd, -1
        close_read(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join(self, name: str) -> str:
        """Return the path of a name, for messages."""
        return os.path.join(self.path, name)

    # Directories

    def enter(self, relative: str, *, make: bool = False) -> Directory:
        """Open a directory below this one; with `make`, those that are missing are made.

        Raises NotFoundError when there is none, ForeignError when a component is anything but a directory.
        """
        for _ in range(_ATTEMPTS if make else 0):
            with suppress(NotFoundError):  # another process removed one of them while it was empty
                return self._walk(relative.split("/"), make=make)
        return self._walk(relative.split("/"), make=make)

    def inside(self, relative: str, work: Callable[[Directory], Result]) -> Result:
        """Do something in a directory below this one, which is made where it is missing; errors as `enter`.

        It is done again when another process removed the directory meanwhile, while it was empty.
        """
        for _ in range(_ATTEMPTS):
            with self.enter(relative, make=True) as directory, suppress(NotFoundError):
                return work(directory)
        with self.enter(relative, make=True) as directory:
            return work(directory)

    def find(self, relative: str) -> Directory:
        """Return `enter`; a directory without names when there is no such one."""
        with suppress(NotFoundError):
            return self.enter(relative)
        return _Nowhere(-1, self.join(relative))

    def _walk(self, names: list[str], *, make: bool) -> Directory:
        here = self
        for name in names:
            try:
                there = here._step(name, make=make)
            finally:
                if here is not self:
                    here.close()
            here = there
        return here

    def _step(self, name: str, *, make: bool) -> Directory:
        path = self.join(name)
        with storage_errors(path):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(_single(name), dir_fd=self.fd)
            try:
                return Directory(os.open(_single(name), _DIRECTORY, dir_fd=self.fd), path)
            except OSError as error:
                if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                    raise
                raise self._foreign(name, "a directory") from None

    @contextmanager
    def above(self, relative: str, *, make: bool = False) -> Iterator[tuple[Directory, str]]:
        """Open the directory of a path below this one, and return it with the last name; errors as `enter`."""
        folder, _, name = relative.rpartition("/")
        with self.enter(folder, make=make) if folder else nullcontext(self) as directory:
            yield directory, name

    def make(self, name: str) -> Directory:
        """Make a directory whose name must be free, and open it."""
        with storage_errors(self.join(name)):
            os.mkdir(_single(name), dir_fd=self.fd)
        return self._step(name, make=False)

    def names(self) -> list[str]:
        """Return the names in this directory, sorted."""
        with storage_errors(self.path):
            return sorted(os.listdir(self.fd))

    def flush(self) -> None:
        """Flush the names in this directory to the disk."""
        with storage_errors(self.path):
            os.fsync(self.fd)

    def stat(self, name: str) -> os.stat_result | None:
        """Return what a name stands for, a link itself; None when it is not there."""
        with storage_errors(self.join(name)), suppress(FileNotFoundError):
            return os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False)
        return None

    def is_gone(self, name: str) -> bool:
        """Say whether nothing has a name: only that is absent, whatever other error there is."""
        with suppress(EdlCkptError):
            return self.stat(name) is None
        return False

    def is_directory(self, name: str) -> bool:
        """Say whether a name stands for a directory, not for a link to one."""
        return stat.S_ISDIR(self._mode(name))

    def is_file(self, name: str) -> bool:
        """Say whether a name stands for a regular file, not for a link to one."""
        return stat.S_ISREG(self._mode(name))

    def has_file(self, name: str) -> bool:
        """Say whether a regular file has this name; ForeignError when something else has it."""
        mode = self._mode(name)
        if mode and not stat.S_ISREG(mode):
            raise self._foreign(name, "a file")
        return bool(mode)

    def _mode(self, name: str) -> int:
        """Return the mode of what a name stands for, 0 when it is not there."""
        state = self.stat(name)
        return 0 if state is None else state.st_mode

    def _foreign(self, name: str, wanted: str) -> ForeignError:
        kind = kind_of(self._mode(name))
        if kind == wanted == "a file":
            kind = "a file with several names (hard links)"
        return ForeignError(
            f"is {kind}, and must be {wanted} of ours",
            path=self.join(name),
            hint="inspect it, and move it away",
        )

    # Files

    def open_file(self, name: str, flags: int) -> int:
        """Open a regular file and return its descriptor; the caller handles FileNotFoundError and its like.

        Raises ForeignError for anything else, and for a file to be written that has several names.
        """
        return self._open_stated(name, flags)[0]

    def _open_stated(self, name: str, flags: int) -> tuple[int, os.stat_result]:
        """Return `open_file`, and the state of the file."""
        try:
            fd = os.open(_single(name), flags | _FILE, 0o666, dir_fd=self.fd)
        except OSError as error:  # a link; a socket, or a pipe that nobody reads; a directory, to be written
            if error.errno not in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
                raise
            raise self._foreign(name, "a file") from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (found.st_nlink > 1 and flags & os.O_ACCMODE != os.O_RDONLY):
            os.close(fd)
            raise self._foreign(name, "a file")
        return fd, found

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the whole of a file, None when it is not there; UsageError when it has more bytes than `limit`."""
        path = self.join(name)
        with storage_errors(path):
            try:
                fd, found = self._open_stated(name, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                data, size = b"", found.st_size
                while len(data) <= limit and (part := os.read(fd, min(limit, max(size, 1 << 16)) + 1)):
                    data += part
            finally:
                close_read(fd)
        if len(data) > limit:
            raise UsageError(f"has {max(size, len(data))} bytes; no file of this kind has more than {limit}", path=path)
        return data

    def create(self, name: str, size_bytes: int, *, waits: bool = False) -> PreallocatedFile:
        """Begin a new file of known size; one that `waits` has its bytes after `allocate_all`."""
        return PreallocatedFile(self.join(name), size_bytes, directory=self.fd, waits=waits)

    def write_new(self, name: str, data: bytes) -> None:
        """Write a new small file and flush it to the disk."""
        file = self.create(_single(name), len(data))
        try:
            file.write(0, data)
            file.flush()
        finally:
            file.close()

    def replace(self, name: str, data: bytes, *, flush: bool = True) -> None:
        """Write a small file, new or in the place of an older one: staged beside its place, flushed, then renamed.

        The name of the staged file identifies its owner, so that recovery can remove one left by a killed process.
        Raises ForeignError when something else than a file has the name. Without `flush`, the caller flushes the names.
        """
        self.has_file(name)
        staged = f".{name}.{new_id()}{NEW}"
        try:
            self.write_new(staged, data)
            self.rename(staged, self, name)
        except BaseException:
            with suppress(OSError):
                os.unlink(staged, dir_fd=self.fd)
            raise
        if flush:
            self.flush()

    # Names

    def rename(self, name: str, to: Directory, new: str) -> None:
        """Rename, also to a name that is taken; a link is renamed itself."""
        with storage_errors(to.join(new)):
            os.rename(_single(name), _single(new), src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def link(self, name: str, to: Directory, new: str) -> bool:
        """Give a file a second name; False, and nothing is done, where that is not possible."""
        with suppress(OSError):
            os.link(_single(name), _single(new), src_dir_fd=self.fd, dst_dir_fd=to.fd, follow_symlinks=False)
            return True
        return False

    def rename_new(self, name: str, to: Directory, new: str) -> None:
        """Rename to a name that must be free; RefusedError when it is taken."""
        rename_new(_single(name), _single(new), self.fd, to.fd, shown=to.join(new))

    def exchange(self, name: str, to: Directory, other: str) -> bool:
        """Let two names change places in one step; False, and nothing is done, where the kernel cannot."""
        with storage_errors(to.join(other)):
            return exchange_names(_single(name), _single(other), self.fd, to.fd)

    def unlink(self, name: str) -> None:
        """Remove a name that is not a directory's; a missing one is no error."""
        with storage_errors(self.join(name)), suppress(FileNotFoundError):
            os.unlink(_single(name), dir_fd=self.fd)

    def remove_empty(self, name: str) -> None:
        """Remove an empty directory; a missing one is no error."""
        with storage_errors(self.join(name)), suppress(FileNotFoundError):
            os.rmdir(_single(name), dir_fd=self.fd)

    def rmdir(self, name: str) -> bool:
        """Remove a directory if it is empty and that is possible; say whether it was removed."""
        with suppress(OSError):
            os.rmdir(_single(name), dir_fd=self.fd)
            return True
        return False

    def remove(self, name: str, note: Note = lambda _: None) -> None:
        """Remove a directory with its content, or anything else of that name; links in it are removed, not followed.

        `note` gets why something cannot be removed; a missing name is no error. Where a file system is mounted, nothing
        is removed.
        """
        _remove(self.fd, _single(name), self.join(name), note, mount_of(self.fd))


class _Nowhere(Directory):
    """A directory that is not there: it has no names, and nothing can be made in it."""

    def names(self) -> list[str]:
        return []

    def stat(self, name: str) -> None:  # noqa: ARG002 - none is there
        return None

    def _open_stated(self, name: str, flags: int) -> tuple[int, os.stat_result]:  # noqa: ARG002 - as above
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.join(name))


def close_read(fd: int) -> None:
    """Close what was only read, perhaps once more (-1); an error in that loses nothing."""
    with suppress(OSError):
        os.close(fd)


def kind_of(mode: int) -> str:
    """Return what a mode stands for, in words; 0 is the mode of nothing."""
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def _single(name: str) -> str:
    """Return a name that is one component; anything else is a bug, or an attack that was not noticed before."""
    if "/" in name or name in {"", ".", ".."} or "\0" in name:
        raise RefusedError(f"{name!r} is not a name in a directory")
    return name


def _remove(
    parent: int, name: str, path: str, note: Note, mount: int | None, top: int | None = None, depth: int = 0
) -> bool:
    """Remove something with its content; say whether something from far below was moved to the directory `top`.

    `mount` is that of everything that may go.
    """
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            _try(os.unlink, parent, name, path, note)
        else:
            note(_why(path, error))
        return False
    try:
        if mount_of(fd) != mount:
            note(RefusedError("a file system is mounted here; nothing in it was removed", path=path))
            return False
        if depth > _MAX_DEPTH and top is not None:
            with suppress(OSError):
                os.rename(name, f"deep.{new_id()}", src_dir_fd=parent, dst_dir_fd=top)
                return True
        moved = _empty(fd, top, path, note, mount, depth)
        while moved and top is None:
            moved = _empty(fd, top, path, note, mount, depth)
    finally:
        close_read(fd)
    _try(os.rmdir, parent, name, path, note)
    return moved


def _empty(fd: int, top: int | None, path: str, note: Note, mount: int | None, depth: int) -> bool:
    """Remove the content of an open directory; returns as `_remove`."""
    try:
        names = os.listdir(fd)
    except OSError as error:
        note(_why(path, error))
        return False
    inner = fd if top is None else top
    moved = [_remove(fd, name, os.path.join(path, name), note, mount, inner, depth + 1) for name in names]
    return any(moved)


def _try(remove: Callable[..., None], parent: int, name: str, path: str, note: Note) -> None:
    try:
        remove(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # what is in it was noted
            note(_why(path, error))


def _why(path: str, error: OSError) -> EdlCkptError:
    return Fault.of(error, path).kind(f"cannot be removed ({error.strerror or error})", path=path)
