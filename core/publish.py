"""How anything new becomes visible: staged beside its target, flushed, then put in place by one rename.

ElasticDL's scan looks at every name in checkpoint_dir; the only place it tolerates is a directory whose children end
in -0 (`core/README.md`, section State). So everything is staged in `.edl-ckpt-0/stage-0/<id>/`, and what is replaced is
put there by one rename before its bytes are removed, or moved to the trash. A crash at any instant leaves the old state
or the new one: what takes several steps is written into a journal first, which `settle_stage` finishes or finds undone,
here or in whatever command comes next (`recovery.py`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from edl_ckpt.core.errors import LockedError, NoSpaceError, NotFoundError, RefusedError
from edl_ckpt.core.layout import JOURNAL, PROGRESS, STAGE_DIR, STATE_DIR
from edl_ckpt.core.metadata import META_DIR
from edl_ckpt.core.owner import (
    NO_LOCKS,
    OWNER_FILE,
    Signature,
    if_abandoned,
    is_dead_in_silence,
    new_id,
    owner_in,
    read_owner,
    told,
)
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.seal import seal_file
from edl_ckpt.core.store import storage_errors

JOURNAL_SCHEMA: Final = "edl-ckpt/journal/1"
_SEAL: Final = "seal.json"
_OLD_SEAL: Final = "old-seal.json"

_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100
_SPARE_BYTES: Final = 1 << 20
_FLUSHERS: Final = 4
_FLUSH_BYTES: Final = 64 << 20
_OLD: Final = ".old"
_HOLD_ATTEMPTS: Final = 50
_NAME_PART: Final = 100
"""How much of a target's name is in that of what is staged beside it: a name has 255 bytes at most."""


class StagedFile:
    """A file of known size that is written at any offset, from several threads."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.bytes_written = 0
        self._lock = threading.Lock()
        with storage_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                if size_bytes:
                    self._allocate(size_bytes)
            except BaseException:
                os.close(self._fd)
                raise

    def _allocate(self, size_bytes: int) -> None:
        """Take the space now, so that a full disk fails here and not after an hour of writing."""
        try:
            os.posix_fallocate(self._fd, 0, size_bytes)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
            os.ftruncate(self._fd, size_bytes)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data).cast("B")
        done = 0
        with storage_errors(self.path):
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], offset + done)
        with self._lock:
            self.bytes_written += done

    def flush(self) -> None:
        """Bring the file to the disk; an error here is final, the file must be written again."""
        with storage_errors(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; an error here means that the bytes are not safe."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with storage_errors(self.path):
                os.close(fd)


class Staging:
    """A private directory in `.edl-ckpt-0/stage-0/` of a local checkpoint_dir, gone when the block ends.

    Its owner's file is locked meanwhile, so that nobody takes it for a leftover; entering removes those of dead runs.
    """

    def __init__(self, checkpoint_dir: str, purpose: str, *, name: str = "") -> None:
        self.checkpoint_dir = checkpoint_dir
        self.id = name or new_id()
        self.keep = False
        """Set it to leave the directory as it is, for somebody to go on with."""
        self.path = os.path.join(checkpoint_dir, STAGE_DIR, self.id)
        self._purpose = purpose
        self._named = bool(name)
        self._hold = Hold()

    def __enter__(self) -> Self:
        with storage_errors(self.checkpoint_dir):
            os.makedirs(self.checkpoint_dir, exist_ok=True)
        try:
            try:
                make_inside(self.path, exist_ok=self._named)
                self._hold.take(self.path, self._purpose)
            except NotFoundError:  # empty for an instant, and another process tidied up in it
                self._hold.release()
                make_inside(self.path, exist_ok=True)
                self._hold.take(self.path, self._purpose)
            sweep_stages(self.checkpoint_dir)
        except LockedError:  # somebody else's
            self._hold.release()
            raise
        except BaseException:  # a signal may end us right here
            if not self._named or (self._hold.held and not os.path.lexists(os.path.join(self.path, PROGRESS))):
                remove_stage(self.path)
            elif not self._hold.held:  # perhaps somebody else's: only what is empty goes
                _remove_empty(self.path)
            self._hold.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """Remove the directory; but what a journal in it says must be done comes first, or it stays for `recover`."""
        try:
            settle_stage(self.checkpoint_dir, self.path)
        finally:
            if not self.keep and not os.path.lexists(os.path.join(self.path, JOURNAL)):
                remove_stage(self.path)
            self._hold.release()

    def clear(self) -> None:
        """Remove what is in the directory."""
        with storage_errors(self.path):
            names = set(os.listdir(self.path)) - {OWNER_FILE}
        for name in names:
            path = os.path.join(self.path, name)
            with storage_errors(path):
                if os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def check_space(self, size_bytes: int) -> None:
        """Raise NoSpaceError when the filesystem has no room for this many bytes more."""
        check_space(self.path, size_bytes, shown=self.checkpoint_dir)

    def directory(self, name: str) -> str:
        """Make a directory inside the staging area and return its path."""
        path = os.path.join(self.path, name)
        with storage_errors(path):
            os.mkdir(path)
        return path

    def publish(self, staged: str, version: int, seal: bytes) -> None:
        """Make a staged version visible under a name that must be free, RefusedError when it is taken; seal it last."""
        target = os.path.join(self.checkpoint_dir, os.path.basename(staged))
        flush_directory(staged)
        self._stage_seal(seal)
        # Now, not later: once the version is there, nothing is to fail.
        make_inside(os.path.join(self.checkpoint_dir, META_DIR), exist_ok=True)
        self._take_seal(version)  # of a version that had this number once
        try:
            rename_new(staged, target)
        except BaseException:
            _place_seal(self.checkpoint_dir, self.path, version, _OLD_SEAL)
            raise
        flush_directory(self.checkpoint_dir)
        _place_seal(self.checkpoint_dir, self.path, version)

    def replace(
        self, staged: str, target: str, version: int, seal: bytes, *, keep_old: bool, old_names: Sequence[str]
    ) -> None:
        """Put a staged version in the place of an existing one, with its seal.

        One atomic exchange where the kernel has it, else two renames. The old one is removed for good, or moved to the
        trash when `keep_old` is said or it holds more than `old_names`: what came meanwhile is somebody else's.
        """
        flush_directory(staged)
        self._stage_seal(seal)
        with storage_errors(staged):
            held = os.stat(staged)
        journal = {
            "schema": JOURNAL_SCHEMA,
            "version": version,
            "target": os.path.basename(target),
            "inode": held.st_ino,
            "keep_old": keep_old,
            "old_names": sorted(old_names),
        }
        write_new(os.path.join(self.path, JOURNAL), json.dumps(journal).encode())
        flush_directory(self.path)
        self._take_seal(version)
        with storage_errors(target):
            try:
                _rename(staged, target, _RENAME_EXCHANGE)
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                    raise
                os.rename(target, _old_path(self.path, journal))
                os.rename(staged, target)
        settle_stage(self.checkpoint_dir, self.path)

    def _take_seal(self, version: int) -> None:
        """Put an older seal aside: none is ever beside files that it is not of."""
        path = os.path.join(self.checkpoint_dir, seal_file(version))
        with storage_errors(path), suppress(FileNotFoundError):
            os.rename(path, os.path.join(self.path, _OLD_SEAL))

    def _stage_seal(self, seal: bytes) -> None:
        write_again(os.path.join(self.path, _SEAL), seal)


class Hold:
    """The owner's file of a staging directory, locked and signed while we are at work in it."""

    def __init__(self) -> None:
        self._fd = -1
        self._locked = False
        self._signature: Signature | None = None

    @property
    def held(self) -> bool:
        """Return True once the file is ours."""
        return self._locked

    def take(self, directory: str, purpose: str) -> None:
        """Lock the file; LockedError when somebody is at work there.

        Whoever only looks whether its owner is dead holds it for a moment.
        """
        path = os.path.join(directory, OWNER_FILE)
        with storage_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            for attempt in range(_HOLD_ATTEMPTS):
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if attempt == _HOLD_ATTEMPTS - 1:
                        raise LockedError(f"at work there: {told(read_owner(path))}", path=directory) from None
                    time.sleep(0.01)
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                    break
                else:
                    break
            named, held = os.stat(path), os.fstat(self._fd)
            if (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino):  # somebody tidied up before we had the lock
                raise NotFoundError("was removed meanwhile", path=path)
        self._locked = True
        self._signature = Signature(self._fd, path, purpose)

    def release(self) -> None:
        """Give it back."""
        if self._signature is not None:
            self._signature.end()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def sweep_stages(checkpoint_dir: str) -> list[str]:
    """Remove what dead runs were staging, unless it holds a file that says how to go on; return what was removed."""
    top = os.path.join(checkpoint_dir, STAGE_DIR)
    try:
        names = sorted(os.listdir(top))
    except OSError:
        return []
    removed: list[str] = []
    for name in names:
        path = os.path.join(top, name)
        with if_abandoned(path) as dead:
            kept = any(os.path.lexists(os.path.join(path, file)) for file in (JOURNAL, PROGRESS))
            if dead and not kept:
                remove_stage(path)
                removed.append(path)
        if not dead and not owner_in(name):  # its name tells no owner: when nothing is in it, nobody misses it
            with suppress(OSError):
                os.rmdir(path)
    return removed


def remove_stage(path: str) -> None:
    """Remove a staging directory, its owner's file last, and the directories above it that are empty then."""
    with suppress(OSError):
        for name in os.listdir(path):
            if name != OWNER_FILE:
                inner = os.path.join(path, name)
                shutil.rmtree(inner, ignore_errors=True)
                with suppress(OSError):
                    os.unlink(inner)
    shutil.rmtree(path, ignore_errors=True)
    _remove_empty(path)


def _remove_empty(path: str) -> None:
    """Remove a staging directory, and the directories above it, as far as they are empty."""
    state = os.path.dirname(os.path.dirname(path))
    inside = (os.path.join(state, name) for name in ("trash-0", "meta-0"))
    for directory in (path, os.path.dirname(path), *inside, state):
        with suppress(OSError):  # others are at work in it, or it holds something to keep
            os.rmdir(directory)


def settle_stage(checkpoint_dir: str, stage: str) -> str | None:
    """Finish what the journal of a staging directory began, or find it undone; return what was done, None for nothing.

    Which it is, the disk tells: the staged directory is known by its inode. Every step may be done again.
    """
    path = os.path.join(stage, JOURNAL)
    try:
        with storage_errors(path), open(path, encoding="utf-8") as file:
            journal = json.load(file)
        target = os.path.join(checkpoint_dir, os.path.basename(str(journal["target"])))
        version, keep_old = int(journal["version"]), bool(journal["keep_old"])
        inode, old_names = int(journal["inode"]), set(journal["old_names"])
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # cut short: nothing was done yet when it was written
        with storage_errors(path):
            os.unlink(path)
        return None
    staged = os.path.join(stage, os.path.basename(target))
    old = _old_path(stage, journal)
    with storage_errors(target):
        if not os.path.lexists(target) and os.path.isdir(staged):  # between two renames
            os.rename(staged, target)
        now = os.stat(target) if os.path.lexists(target) else None
        if now is None:
            raise RefusedError(
                "neither the old version nor the new is where it should be; nothing was changed",
                path=target,
                hint=f"look into {stage}",
            )
        if (now.st_dev, now.st_ino) != (os.stat(stage).st_dev, inode):  # a device's number may be another after a boot
            _place_seal(checkpoint_dir, stage, version, _OLD_SEAL)
            os.unlink(path)
            return f"version {version} is the old one, whole: what was to replace it is dropped"
        flush_directory(checkpoint_dir)
        if os.path.lexists(staged):
            os.rename(staged, old)
    _place_seal(checkpoint_dir, stage, version)
    with storage_errors(old):
        if os.path.isdir(old):
            if keep_old or not old_names.issuperset(os.listdir(old)):
                _keep(old, checkpoint_dir, os.path.basename(stage))
            else:
                shutil.rmtree(old)
        os.unlink(path)
    return f"version {version} is the new one, whole: what was left to do for it is done"


def _old_path(stage: str, journal: Mapping[str, Any]) -> str:
    """Return where a version that is being replaced waits to be removed or kept."""
    return os.path.join(stage, f"old-{os.path.basename(str(journal['target']))}")


def _keep(old: str, checkpoint_dir: str, name: str) -> None:
    """Put a replaced version into the trash, under its own name."""
    trash = os.path.join(checkpoint_dir, STATE_DIR, "trash-0", name)
    make_inside(trash, exist_ok=True)
    os.rename(old, os.path.join(trash, os.path.basename(old).removeprefix("old-")))
    flush_directory(trash)


def _place_seal(checkpoint_dir: str, stage: str, version: int, name: str = _SEAL) -> None:
    staged, target = os.path.join(stage, name), os.path.join(checkpoint_dir, seal_file(version))
    if os.path.lexists(staged):
        with storage_errors(target):
            make_inside(os.path.dirname(target), exist_ok=True)
            os.replace(staged, target)
        flush_directory(os.path.dirname(target))


def forget_seal(checkpoint_dir: str, version: int) -> None:
    """Remove the seal of a version, when it has one."""
    path = os.path.join(checkpoint_dir, seal_file(version))
    with storage_errors(path), suppress(FileNotFoundError):
        os.unlink(path)


def check_space(path: str, size_bytes: int, *, shown: str | None = None) -> None:
    """Raise NoSpaceError when the filesystem of a directory has no room for this many bytes more."""
    with storage_errors(shown or path):
        stat = os.statvfs(path)
    free = stat.f_bavail * stat.f_frsize
    if free < size_bytes + _SPARE_BYTES:
        raise NoSpaceError(
            f"{size_bytes} bytes are needed, {free} are free", path=shown or path, hint="nothing was written"
        )


class StagedOutput:
    """A file or a directory that is written under a hidden name beside its target, and renamed when it is whole.

    A context manager; what was not published is removed at its end. Entering raises RefusedError when the target
    exists and `force` is not said, NotFoundError when its directory does not.
    """

    def __init__(self, target: str, *, is_directory: bool, force: bool) -> None:
        self.target = target
        self._force = force
        self._is_directory = is_directory
        folder, name = os.path.split(target)
        self.path = os.path.join(folder, f".{name[:_NAME_PART]}.{new_id()}.edl-ckpt")
        self._folder = folder or "."
        self._others: list[str] = []

    def __enter__(self) -> Self:
        with storage_errors(self._folder):
            os.stat(self._folder)
        with storage_errors(self._folder):
            _sweep_outputs(self._folder)
        if os.path.lexists(self.target) and not self._force:
            raise RefusedError("exists already; nothing was changed", path=self.target, hint="--force replaces it")
        if self._is_directory:
            with storage_errors(self.path):
                os.mkdir(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in (self.path, *self._others):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                os.unlink(path)

    def also(self, path: str) -> None:
        """Remove another path at the end too."""
        self._others.append(path)

    def publish(self) -> None:
        """Put what was written in its place; what `force` replaces is there until the new one is."""
        if self._is_directory:
            flush_directory(self.path)
        if not self._force or not os.path.lexists(self.target):
            rename_new(self.path, self.target)
        else:
            with storage_errors(self.target):
                self._replace()
        flush_directory(self._folder)

    def _replace(self) -> None:
        """Exchange both where the kernel can, and leave the old one to be removed; else one rename, or two."""
        try:
            _rename(self.path, self.target, _RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise
            if not self._is_directory and not os.path.isdir(self.target):
                os.replace(self.path, self.target)
                return
            old = f"{self.path}{_OLD}"
            os.rename(self.target, old)
            try:
                os.rename(self.path, self.target)
            except BaseException:
                os.rename(old, self.target)
                raise
            self.also(old)


def _sweep_outputs(folder: str) -> None:
    """Remove what dead runs left beside targets in a folder: hidden names that end as ours do."""
    for name in os.listdir(folder):
        owner = owner_in(name) if name.startswith(".") and ".edl-ckpt" in name else {}
        path = os.path.join(folder, name)
        with suppress(OSError):
            if not owner or not is_dead_in_silence(owner, time.time() - os.lstat(path).st_mtime):
                continue
            target = os.path.join(folder, name[1:].rsplit(".", 3)[0])
            if name.endswith(_OLD) and not os.path.lexists(target):  # killed between two renames
                if len(os.path.basename(target)) < _NAME_PART:
                    os.rename(path, target)
                continue
            shutil.rmtree(path, ignore_errors=True)
            os.unlink(path)


def rename_new(old: str, new: str) -> None:
    """Rename to a name that must be free; RefusedError when it is taken."""
    with storage_errors(new):
        try:
            _rename(old, new, _RENAME_NOREPLACE)
        except FileExistsError:
            raise RefusedError("exists already; nothing was changed", path=new) from None


def replace_file(staging: Staging, target: str, data: bytes) -> None:
    """Put a small file of our own state in the place of an older one, or of none: flushed, then one rename."""
    staged = os.path.join(staging.path, os.path.basename(target))
    write_new(staged, data)
    with storage_errors(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(staged, target)
    flush_directory(os.path.dirname(target))


def write_new(path: str, data: bytes) -> None:
    """Write a new small file and bring it to the disk."""
    file = StagedFile(path, len(data))
    try:
        file.write(0, data)
        file.flush()
    finally:
        file.close()


def write_again(path: str, data: bytes) -> None:
    """Put a small file in the place of an older one, or of none, within a directory that is ours."""
    new = f"{path}.new"
    with storage_errors(new), suppress(FileNotFoundError):
        os.unlink(new)
    write_new(new, data)
    with storage_errors(path):
        os.replace(new, path)


def make_inside(path: str, *, exist_ok: bool = False) -> None:
    """Make a directory below the state directory, though another process removes the empty ones above it."""
    with storage_errors(path):
        for attempt in range(20):
            try:
                os.makedirs(path, exist_ok=exist_ok)
            except FileNotFoundError:
                if attempt == 19:
                    raise
            else:
                return


def flush_file(path: str) -> None:
    """Bring a file that another library wrote to the disk."""
    with storage_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def flush_directory(path: str) -> None:
    """Bring the names in a directory to the disk."""
    with storage_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@functools.cache
def _renameat2() -> Callable[[bytes, bytes, int], int] | None:
    """Return the C library's renameat2, which Python's os does not offer, or None."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

    def call(old: bytes, new: bytes, flags: int) -> int:
        return int(function(_AT_FDCWD, old, _AT_FDCWD, new, flags))

    return call


def _rename(old: str, new: str, flags: int) -> None:
    """Rename with flags; without the system call, NOREPLACE is checked by hand and EXCHANGE raises ENOSYS."""
    call = _renameat2()
    if call is not None:
        if call(os.fsencode(old), os.fsencode(new), flags) == 0:
            return
        code = ctypes.get_errno()
        if flags == _RENAME_EXCHANGE or code not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(code, os.strerror(code), old, None, new)
    elif flags == _RENAME_EXCHANGE:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), old)
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new)


def flush_all(files: Sequence[StagedFile]) -> None:
    """Flush several files at a time: a disk takes them together."""
    for _ in run_parallel(StagedFile.flush, files, _FLUSHERS):
        pass


class Flusher:
    """Brings files to the disk in the background while they are written and read back, so that the disk never rests.

    Leaving the block waits until every byte is there; an error of the disk is raised then.
    """

    def __init__(self, files: Sequence[StagedFile]) -> None:
        self._files = files
        self._written = threading.Event()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        # A daemon: a signal may end the block before it has begun, and then nobody tells the thread to stop.
        self._thread = threading.Thread(target=self._work, name="edl-ckpt-flush", daemon=True)

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error

    def _run(self) -> None:
        seen = 0
        while not self._written.wait(0.01):
            written = sum(file.bytes_written for file in self._files)
            if written - seen >= _FLUSH_BYTES:
                seen = written
                for file in self._files:
                    if self._written.is_set():
                        break
                    file.flush()
        if not self._stop.is_set():
            flush_all(self._files)

    def all_written(self) -> None:
        """Say that nothing more will be written: the last flush begins."""
        self._written.set()

    def wait(self) -> None:
        """Wait until every byte is on the disk; an error of the disk is raised."""
        self._end(stop=False)
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except BaseException:  # a signal may end us right here
            self._end(stop=True)
            raise
        return self

    def _end(self, *, stop: bool) -> None:
        if stop:
            self._stop.set()
        self._written.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(stop=error is not None)
        if error is None and self._error is not None:
            raise self._error
