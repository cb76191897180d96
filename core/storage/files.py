"""Files on the local disk: allocated before they are written, flushed, then renamed to their place.

Nothing here decides where a file belongs. A failed flush is final: the file must be written again.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self, cast

from edl_ckpt.core.base.errors import NoSpaceError, RefusedError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.words import size
from edl_ckpt.core.storage.faults import Access, lacking, storage_errors
from edl_ckpt.core.storage.interface import OnDisk, Sink

NEW: Final = ".new"
"""The ending of a staged file that is about to replace another one."""
_RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100
_SYNC_FILE_RANGE_WRITE: Final = 2
_SPARE_BYTES: Final = 1 << 20
_FLUSHERS: Final = 4
_COPY_BYTES: Final = 4 << 20
_FLUSH_BYTES: Final = 64 << 20
_OTHERS_SECONDS: Final = 0.25
"""How often a flush begins of what other processes write."""
THREADED_BYTES: Final = 64 << 20
"""Fewer bytes are allocated by one thread: a disk only notes them, and memory clears them within 30 ms."""
_FILE_FLUSH_BYTES: Final = 1 << 20
"""Bytes of a file that are worth a call to begin its flush: a thousand files would take it a thousand times."""


class PreallocatedFile(OnDisk, Sink):
    """A new file of known size, or with None one that this process has made; several threads write, at any offset.

    With the descriptor of its directory, only the last part of the path is looked up, there. One that `waits` has no
    bytes before `allocate_all`.
    """

    def __init__(self, path: str, size_bytes: int | None, *, directory: int | None = None, waits: bool = False) -> None:
        flags = os.O_NOFOLLOW if size_bytes is None else os.O_CREAT | os.O_EXCL
        with storage_errors(path):
            name = path if directory is None else os.path.basename(path)
            flags |= os.O_RDWR | os.O_CLOEXEC
            fd = os.open(name, flags, 0o666, dir_fd=directory)
            try:
                allocate(fd, 0 if waits else size_bytes or 0)
                self._take(path, os.fstat(fd).st_size if size_bytes is None else size_bytes)
                self.keep(fd, flags)
            except BaseException:
                os.close(fd)
                raise

    def _take(self, path: str, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.bytes_written = 0
        self._lock = threading.Lock()

    def allocate(self) -> None:
        """Allocate the space of a file that has waited for it."""
        with storage_errors(self.path), self.used() as fd:
            allocate(fd, self.size_bytes)

    def give(self, access: Access) -> tuple[str, ...]:
        """Give the file the access of another one; return what could not be kept."""
        with storage_errors(self.path), self.used() as fd:
            return access.give(fd)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data).cast("B")
        with storage_errors(self.path):
            if self.is_kept_open:
                _write_to(self._fd, view, offset)
            else:
                with self.used() as fd:
                    _write_to(fd, view, offset)
        self.add_moved(len(view))

    def add_moved(self, size_bytes: int) -> None:
        """Count bytes that were written."""
        with self._lock:
            self.bytes_written += size_bytes

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Return at least one byte that was written, as the file has it, without a copy where it can be mapped."""
        import mmap

        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            with self.used() as fd:
                mapped = mmap.mmap(fd, offset + size_bytes - start, prot=mmap.PROT_READ, offset=start)
        except OSError:  # a file system without mappings
            data = bytearray(size_bytes)
            self.read_into(offset, memoryview(data))
            return memoryview(data)
        return memoryview(mapped)[offset - start :]

    def start_flush(self, offset: int, size_bytes: int) -> None:
        """Let the kernel begin to write some bytes that are final, where it can; `flush` waits, and reports errors."""
        if self.is_kept_open:  # one that is not waits for its flush
            begin_flush(self._fd, offset, size_bytes)

    def copy_of(self, other: PreallocatedFile) -> None:
        """Take all bytes of another file, by reference or within the storage where it can do that."""
        at = 0
        with storage_errors(self.path), self.used() as own, other.used() as theirs:
            while at < other.size_bytes:
                count = -1
                with lacking({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}):
                    count = os.copy_file_range(theirs, own, other.size_bytes - at, at, at)
                if count < 0:
                    data = bytearray(min(_COPY_BYTES, other.size_bytes - at))
                    other.read_into(at, memoryview(data))
                    self.write(at, memoryview(data))
                    count = len(data)
                if count == 0:
                    raise OSError(errno.EIO, "the file became shorter while it was being copied", other.path)
                at += count

    def become(self, other: PreallocatedFile) -> None:
        """Be another file from now on, in one step for all threads; this one's own is closed, and so is the other."""
        with storage_errors(self.path), other.used() as theirs:
            if self.is_kept_open:
                os.dup2(theirs, self._fd, inheritable=False)
            else:  # it has the name of the other one by now
                found = os.fstat(theirs)
                self._identity = found.st_dev, found.st_ino
        other.close()

    def flush(self) -> None:
        """Flush the file to the disk. An error here is final: the file must be written again."""
        with storage_errors(self.path), self.used() as fd:
            os.fsync(fd)

    def close(self) -> None:
        """Close the file. An error here means that its bytes are not safe."""
        fd = self.let_go()
        if fd >= 0:
            with storage_errors(self.path):
                os.close(fd)


def _write_to(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


class ScratchFile(PreallocatedFile):
    """A file without a name, for what does not fit into memory: whatever happens, nothing of it remains.

    It is in $TMPDIR unless a directory is given; `path` is that, for messages.
    """

    def __init__(self, size_bytes: int = 0, directory: str | None = None) -> None:
        import tempfile

        self._fd, place = -1, directory or tempfile.gettempdir()
        with storage_errors(place):
            with tempfile.TemporaryFile(dir=place) as file:
                self._take(place, size_bytes)
                self._fd = os.dup(file.fileno())  # always kept: it has no name
            allocate(self._fd, size_bytes)

    @property
    def link(self) -> str:
        """Return a path by which this process can open it."""
        return f"/proc/self/fd/{self._fd}"

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes that were written."""
        with storage_errors(self.path):
            return os.pread(self._fd, size_bytes, offset)

    def grow(self, size_bytes: int) -> None:
        """Allocate so many more bytes at its end; NoSpaceError on a full disk."""
        with storage_errors(self.path):
            allocate(self._fd, size_bytes, self.size_bytes)
        self.size_bytes += size_bytes

    def __del__(self) -> None:
        """Close a file that was dropped."""
        self.close()


def allocate(file: int, size_bytes: int, offset: int = 0) -> None:
    """Allocate the space of a file now, so that a full disk fails here and not after an hour of writing."""
    if not size_bytes:
        return
    with lacking({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}):
        os.posix_fallocate(file, offset, size_bytes)
        return
    os.ftruncate(file, offset + size_bytes)


def allocate_all(files: Sequence[PreallocatedFile], workers: int) -> None:
    """Allocate the space of files that wait for it, several at a time: in memory that takes as long as writing them."""
    threads = workers if sum(file.size_bytes for file in files) > THREADED_BYTES else 1

    def fill(first: int) -> None:
        for file in files[first::threads]:
            file.allocate()

    run_all(fill, range(threads), threads)


def check_space(directory: str | int, size_bytes: int, *, shown: str | None = None, hint: str = "") -> None:
    """Raise NoSpaceError when the file system of a directory lacks room for this many more bytes, plus a reserve.

    The directory is a path or an open one. `hint` goes on after "nothing was written".
    """
    path = shown or str(directory)
    with storage_errors(path):
        stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    if free < size_bytes + _SPARE_BYTES:
        raise NoSpaceError(
            f"needs {size(size_bytes)} plus a reserve of {size(_SPARE_BYTES)}; {size(free)} are free",
            path=path,
            hint=f"nothing was written{hint}",
        )


def rename_new(
    old: str, new: str, old_in: int = _AT_FDCWD, new_in: int = _AT_FDCWD, *, shown: str | None = None
) -> None:
    """Rename, also between open directories, to a name that must be free; raise RefusedError when it is taken."""
    path = shown or new
    with storage_errors(path):
        try:
            _rename(old, new, _RENAME_NOREPLACE, old_in, new_in)
        except FileExistsError:
            raise RefusedError("already exists; nothing was changed", path=path) from None


def begin_flush(file: int, offset: int, size_bytes: int) -> None:
    """Let the kernel begin to write some bytes of an open file, where it can; a flush waits, and reports errors."""
    import ctypes  # only what writes needs it

    begin = _of_c("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if begin is not None:
        begin(file, offset, size_bytes, _SYNC_FILE_RANGE_WRITE)


def flush_path(path: str) -> None:
    """Flush a file that another library wrote, or the names in a directory, to the disk."""
    with storage_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def exchange_names(one: str, other: str, one_in: int = _AT_FDCWD, other_in: int = _AT_FDCWD) -> bool:
    """Let two paths, or names in open directories, change places; False, without a change, where the kernel cannot."""
    with lacking({errno.EINVAL, errno.ENOSYS}):
        _rename(one, other, RENAME_EXCHANGE, one_in, other_in)
        return True
    return False


def renameat2() -> Callable[..., int] | None:
    """Return the call of the C library that renames with flags, None where there is none."""
    import ctypes  # only what writes needs it

    return _of_c("renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


@functools.cache
def _of_c(name: str, *arguments: type) -> Callable[..., int] | None:
    """Return a function of the C library that Python's os module lacks; None where the C library lacks it too."""
    import ctypes  # only what writes needs it

    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = arguments
    return cast("Callable[..., int]", function)


def _rename(old: str, new: str, flags: int, old_in: int, new_in: int) -> None:
    """Rename with flags. Without the system call, NOREPLACE is checked by hand and EXCHANGE raises ENOSYS."""
    import ctypes  # only what writes needs it

    call = renameat2()
    if call is not None:
        if call(old_in, os.fsencode(old), new_in, os.fsencode(new), flags) == 0:
            return
        code = ctypes.get_errno()
        if flags == RENAME_EXCHANGE or code not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(code, os.strerror(code), old, None, new)
    elif flags == RENAME_EXCHANGE:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), old)
    source, target = (None if folder == _AT_FDCWD else folder for folder in (old_in, new_in))
    with suppress(FileNotFoundError):
        os.stat(new, dir_fd=target, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)


def flush_all(files: Sequence[PreallocatedFile]) -> None:
    """Flush several files at a time, which a disk does faster."""

    def flush(first: int) -> None:
        for file in files[first::_FLUSHERS]:
            file.flush()

    run_all(flush, range(_FLUSHERS), _FLUSHERS)  # a task for each of a thousand files would cost more


class Flusher:
    """Flushes files in the background while they are written and read back, so that the disk is always busy.

    Leaving the block waits until every byte is there; an error of the disk is raised then.
    """

    def __init__(self, files: Sequence[PreallocatedFile]) -> None:
        self._files = files
        self._written = threading.Event()
        self._stop = threading.Event()
        self._others = False
        self._error: BaseException | None = None
        # A daemon, because a signal may end the block before it begins, and then nothing stops the thread.
        self._thread = threading.Thread(target=self._work, name="edl-ckpt-flush", daemon=True)

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error

    def _run(self) -> None:
        seen, begun = 0, [0] * len(self._files)
        while not self._written.wait(_OTHERS_SECONDS if self._others else 0.01):
            if self._others:
                for file in self._files:
                    if not self._written.is_set():
                        file.start_flush(0, 0)
                continue
            written = sum(file.bytes_written for file in self._files)
            if written - seen >= _FLUSH_BYTES:
                seen = written
                for number, file in enumerate(self._files):
                    if self._written.is_set():
                        break
                    if file.bytes_written - begun[number] >= _FILE_FLUSH_BYTES:
                        begun[number] = file.bytes_written
                        file.start_flush(0, 0)  # all of it; a flush each time would also wait for the disk's own cache
        if not self._stop.is_set():
            flush_all(self._files)

    def others_write(self) -> None:
        """Begin a flush at times: other processes write, and how much is not known here."""
        self._others = True

    def all_written(self) -> None:
        """Begin the last flush: nothing more will be written."""
        with WHOLE:
            self._written.set()

    def wait(self) -> None:
        """Wait until every byte is on the disk; raise the error of a failed flush."""
        self._end(stop=False)
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        try:
            with WHOLE:
                self._thread.start()
        except BaseException:  # a signal may arrive right here
            self._end(stop=True)
            raise
        return self

    def _end(self, *, stop: bool) -> None:
        with WHOLE:
            if stop:
                self._stop.set()
            self._written.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._end(stop=error is not None)
        if error is None and self._error is not None:
            raise self._error
