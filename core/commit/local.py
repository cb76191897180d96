"""How a version becomes visible on a local disk: staged beside its target, flushed, then renamed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from edl_ckpt.core.commit.interface import Prove, Written, written_version
from edl_ckpt.core.errors import LockedError, NotFoundError, RefusedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.state.owner import (
    NO_LOCKS,
    OWNER_FILE,
    Signature,
    format_owner,
    if_abandoned,
    is_presumed_dead,
    owner_in,
    read_owner,
)
from edl_ckpt.core.state.paths import JOURNAL, META_DIR, PROGRESS, STAGE_DIR, STATE_DIR, seal_file
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import (
    _RENAME_EXCHANGE,
    NEW,
    Flusher,
    PreallocatedFile,
    _rename,
    check_space,
    flush_directory,
    make_inside,
    rename_new,
    replace_file,
    write_new,
)
from edl_ckpt.core.storage.local import LocalStore

JOURNAL_SCHEMA: Final = "edl-ckpt/journal/1"
_SEAL: Final = "seal.json"
_OLD_SEAL: Final = "old-seal.json"
_HOLD_ATTEMPTS: Final = 50


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
        self._hold = StageLock()

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
        replace_file(os.path.join(self.path, _SEAL), seal)


class StageLock:
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
                        raise LockedError(f"at work there: {format_owner(read_owner(path))}", path=directory) from None
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


def sweep_replacements(checkpoint_dir: str) -> None:
    """Remove the small files that dead processes were about to put in the place of others (`files.replace`)."""
    folder = os.path.join(checkpoint_dir, META_DIR)
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        owner = owner_in(name) if name.startswith(".") and name.endswith(NEW) else {}
        with suppress(OSError):
            if owner and is_presumed_dead(owner, time.time() - os.lstat(path).st_mtime):
                os.unlink(path)


class LocalOutput:
    """A version staged on a local disk."""

    def __init__(
        self, store: LocalStore, layout: Layout, number: int, purpose: str, replaces: Version | None, *, keep_old: bool
    ) -> None:
        self._location = store.location
        self._layout = layout
        self._number = number
        self._replaces = replaces
        self._keep_old = keep_old
        self._staging = Staging(store.root, purpose)
        self._stack = ExitStack()
        self._directory = ""
        self._files: list[PreallocatedFile] = []
        self._flusher: Flusher | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(self._staging)
        return self

    def create(self, sizes: Sequence[int]) -> Sequence[PreallocatedFile]:
        """Begin all shards, of these sizes."""
        self._staging.check_space(sum(sizes))
        replaced = os.path.basename(self._replaces.path) if self._replaces else ""
        self._directory = self._staging.directory(replaced or self._layout.version_dir(self._number))
        for ps_id, size in enumerate(sizes):
            path = os.path.join(self._directory, self._layout.shard_file(ps_id, len(sizes)))
            file = PreallocatedFile(path, size)
            self._stack.callback(file.close)
            self._files.append(file)
        self._flusher = self._stack.enter_context(Flusher(self._files))
        return self._files

    def publish(self, prove: Prove) -> None:
        """Flush while the proof is made, then rename."""
        assert self._flusher is not None  # noqa: S101 - `create` comes first
        self._flusher.all_written()
        sizes = [file.size_bytes for file in self._files]
        staged = written_version(self._location, self._directory, self._layout, self._number, sizes)
        seal = seal_bytes(prove(Written(staged, staged=True)))
        self._flusher.wait()
        for file in self._files:
            file.close()
        if self._replaces is None:
            self._staging.publish(self._directory, self._number, seal)
        else:
            names = [os.path.basename(shard.path) for shard in self._replaces.shards]
            self._staging.replace(
                self._directory, self._replaces.path, self._number, seal, keep_old=self._keep_old, old_names=names
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
