"""How a version becomes visible on a local disk: staged beside its target, flushed, then renamed.

Every operation that writes a version uses one `LocalOutput`. A new version takes one rename. A version in the place of
another takes one atomic exchange where the kernel has it, else two renames under a journal. A resumable output flushes
each shard as it is finished and notes it in the journal, so that the next run of the same work continues there. Its
shards are read back with the others before they are published.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final, Self

from edl_ckpt.core.commit.access import OldAccess, inherit_access
from edl_ckpt.core.commit.interface import FinishedSink, LockedLocation, Note, Prove, Resume, Written, written_version
from edl_ckpt.core.commit.journal import Journal, parse_journal
from edl_ckpt.core.commit.staging import Staging
from edl_ckpt.core.errors import CorruptError, EdlCkptError, NotFoundError, RefusedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.owner import is_presumed_dead, owner_in
from edl_ckpt.core.state.paths import JOURNAL, META_DIR, TRASH_DIR, resumable_stage, seal_file
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import (
    NEW,
    Flusher,
    PreallocatedFile,
    exchange,
    flush_directory,
    make_inside,
    rename_new,
    replace_file,
    write_new,
)
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.core.storage.regular import open_input

_SEAL: Final = "seal.json"
_OLD_SEAL: Final = "old-seal.json"


class LocalOutput:
    """A version that is written to a staging directory of a local disk."""

    def __init__(
        self,
        place: LockedLocation,
        store: LocalStore,
        layout: Layout,
        number: int,
        purpose: str,
        *,
        replaces: Version | None,
        keep_old: bool,
        resumes: Resume | None,
        reporter: Reporter = SILENT,
    ) -> None:
        self._place = place
        self._store = store
        self._layout = layout
        self._number = number
        self._replaces = replaces
        self._keep_old = keep_old
        self._resumes = resumes
        self._access = OldAccess(replaces, reporter) if replaces else None
        self._name = os.path.basename(replaces.path) if replaces else layout.version_dir(number)
        self._staging = Staging(store.root, purpose, name=os.path.basename(resumable_stage(number)) if resumes else "")
        self._directory = os.path.join(self._staging.path, self._name)
        self._stack = ExitStack()
        self._files: dict[int, PreallocatedFile] = {}
        self._sizes: Sequence[int] = ()
        self._flusher: Flusher | None = None
        self._resumed: dict[int, Note] = {}
        self._finished: dict[str, Note] = {}
        self._lock = threading.Lock()
        self._proving = False

    @property
    def resumed(self) -> Mapping[int, Note]:
        """Return the notes of the shards that an interrupted run had finished."""
        return self._resumed

    def __enter__(self) -> Self:
        self._stack.enter_context(self._staging)
        self._stack.push(self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _leave(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Finish or roll back a replacement that failed half-way; decide whether a later run can resume."""
        if self._resumes is None:
            settle_stage(self._store.root, self._staging.path)
            return
        # What was read, or what was written, is damaged: a later run must begin again.
        damaged = isinstance(error, CorruptError) or (self._proving and isinstance(error, EdlCkptError))
        if damaged:
            self._forget_progress()

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all shards, of these sizes; those that an interrupted run had finished stay as they are."""
        if self._replaces is None and os.path.lexists(self._store.path(self._name)):
            raise RefusedError("already exists; nothing was changed", path=self._store.path(self._name))
        self._sizes = sizes
        paths = [os.path.join(self._directory, self._layout.shard_file(i, len(sizes))) for i in range(len(sizes))]
        self._resumed = self._find_finished(paths)
        self._finished = {os.path.basename(paths[i]): note for i, note in self._resumed.items()}
        if not self._resumed:
            self._staging.clear()
            inherit_access(self._store.root, self._staging.path)
            self._staging.directory(self._name)
        self._staging.check_space(sum(size for i, size in enumerate(sizes) if i not in self._resumed))
        for i, path in enumerate(paths):
            if i not in self._resumed:
                with storage_errors(path), suppress(FileNotFoundError):
                    os.unlink(path)
                self._files[i] = file = PreallocatedFile(path, sizes[i])
                self._stack.callback(file.close)
                if self._access is not None:  # before there is anything to read in it
                    self._access.give_file(i, file)
        if self._resumes is None:
            # Not beside `finish`: of two flushes of one file, the kernel tells only the first that the disk failed.
            self._flusher = self._stack.enter_context(Flusher(list(self._files.values())))
        return [self._files[i] if i in self._files else FinishedSink(path) for i, path in enumerate(paths)]

    def _find_finished(self, paths: Sequence[str]) -> dict[int, Note]:
        """Return the notes of the shards that an interrupted run of the same work had finished."""
        if self._resumes is None:
            return {}
        try:
            journal = read_journal(self._staging.path)
        except ValueError:
            return {}
        if journal is None or journal.source != self._resumes.source:
            return {}
        found: dict[int, Note] = {}
        for i, path in enumerate(paths):
            note = journal.finished.get(os.path.basename(path))
            with suppress(OSError):
                if note is not None and self._resumes.accepts(i, note) and os.lstat(path).st_size == self._sizes[i]:
                    found[i] = note
        return found

    def finish(self, shard: int, note: Note) -> None:
        """Flush a shard to the disk, then note in the journal that it is there."""
        assert self._resumes is not None  # noqa: S101 - only a resumable output has a journal of this kind
        file = self._files[shard]
        file.flush()
        with self._lock:
            self._finished[os.path.basename(file.path)] = note
            journal = Journal(self._number, self._name, source=self._resumes.source, finished=self._finished)
            replace_file(self._staging.journal, journal.to_bytes())

    def publish(self, prove: Prove) -> None:
        """Prove the staged version while it is flushed, then rename it."""
        if self._flusher is not None:
            self._flusher.all_written()
        version = written_version(self._store.location, self._directory, self._layout, self._number, self._sizes)
        self._proving = True
        seal = seal_bytes(prove(Written(version, staged=True)))
        self._proving = False
        if self._flusher is not None:
            self._flusher.wait()
        for file in self._files.values():
            file.close()
        self._place.check()
        self._forget_progress()  # from here on the staged version is published, or dropped
        if self._access is not None:
            self._access.give_directory(self._directory)
        flush_directory(self._directory)
        replace_file(os.path.join(self._staging.path, _SEAL), seal)
        if self._replaces is None:
            self._publish_new()
        else:
            self._replace(self._replaces)

    def _forget_progress(self) -> None:
        if self._resumes is not None:
            with storage_errors(self._staging.journal), suppress(FileNotFoundError):
                os.unlink(self._staging.journal)

    def _publish_new(self) -> None:
        """Make the staged version visible under a name that must be free, RefusedError when it is taken; seal it."""
        root = self._store.root
        # Now, not later: once the version is visible, nothing may fail.
        make_inside(os.path.join(root, META_DIR), exist_ok=True)
        self._take_old_seal()
        try:
            rename_new(self._directory, self._store.path(self._name))
        except BaseException:
            _place_seal(root, self._staging.path, self._number, _OLD_SEAL)
            raise
        flush_directory(root)
        _place_seal(root, self._staging.path, self._number)

    def _replace(self, old: Version) -> None:
        """Put the staged version in the place of an existing one, and remove that or move it to the trash.

        It goes to the trash too when it has files that the listing did not show: those are not ours to remove.
        """
        with storage_errors(self._directory):
            inode = os.stat(self._directory).st_ino
        names = sorted(os.path.basename(shard.path) for shard in old.shards)
        journal = Journal(self._number, self._name, old=tuple(names), inode=inode, keep_old=self._keep_old)
        write_new(self._staging.journal, journal.to_bytes())
        flush_directory(self._staging.path)
        self._take_old_seal()
        with storage_errors(old.path):
            if not exchange(self._directory, old.path):
                os.rename(old.path, _old_path(self._staging.path, self._name))
                os.rename(self._directory, old.path)
        settle_stage(self._store.root, self._staging.path)

    def _take_old_seal(self) -> None:
        """Put an older seal aside, so that no seal ever stands beside files that it does not match."""
        path = self._store.path(seal_file(self._number))
        with storage_errors(path), suppress(FileNotFoundError):
            os.rename(path, os.path.join(self._staging.path, _OLD_SEAL))


def read_journal(stage: str) -> Journal | None:
    """Return the journal of a local staging directory, None when it has none; ValueError when it is damaged."""
    path = os.path.join(stage, JOURNAL)
    try:
        with storage_errors(path), open_input(path, "rb") as file:
            data = file.read()
    except NotFoundError:
        return None
    return parse_journal(data)


def settle_stage(checkpoint_dir: str, stage: str) -> str | None:
    """Finish the replacement that a journal began, or find it undone; return what was done, None for nothing.

    The disk tells which: the staged directory is known by its inode. Every step may be repeated.
    """
    path = os.path.join(stage, JOURNAL)
    try:
        journal = read_journal(stage)
    except ValueError:  # cut short, so nothing had been done when it was written
        with storage_errors(path):
            os.unlink(path)
        return None
    if journal is None:
        return None
    version, target = journal.version, os.path.join(checkpoint_dir, journal.directory)
    staged, old = os.path.join(stage, journal.directory), _old_path(stage, journal.directory)
    with storage_errors(target):
        if not os.path.lexists(target) and os.path.isdir(staged):  # killed between two renames
            os.rename(staged, target)
        now = os.stat(target) if os.path.lexists(target) else None
        if now is None:
            raise RefusedError(
                "neither the old version nor the new one is in place; nothing was changed",
                path=target,
                hint=f"look into {stage}",
            )
        # The number of a device may change when the machine boots, so it is compared with that of the stage.
        if (now.st_dev, now.st_ino) != (os.stat(stage).st_dev, journal.inode):
            _place_seal(checkpoint_dir, stage, version, _OLD_SEAL)
            os.unlink(path)
            return f"rolled back the replacement of version {version}; the old version is in place"
        flush_directory(checkpoint_dir)
        if os.path.lexists(staged):
            os.rename(staged, old)
    _place_seal(checkpoint_dir, stage, version)
    _put_away(checkpoint_dir, stage, journal)
    with storage_errors(path):
        os.unlink(path)
    return f"finished the replacement of version {version}; the new version is in place"


def _old_path(stage: str, directory: str) -> str:
    """Return where a version that is being replaced waits to be removed or kept."""
    return os.path.join(stage, f"old-{directory}")


def _put_away(checkpoint_dir: str, stage: str, journal: Journal) -> None:
    """Remove a replaced version, or put it into the trash under its own name."""
    old = _old_path(stage, journal.directory)
    with storage_errors(old):
        if not os.path.isdir(old):
            return
        if not journal.keep_old and set(journal.old).issuperset(os.listdir(old)):
            shutil.rmtree(old)
            return
        trash = os.path.join(checkpoint_dir, TRASH_DIR, os.path.basename(stage))
        make_inside(trash, exist_ok=True)
        os.rename(old, os.path.join(trash, journal.directory))
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
    """Remove the temporary small files of dead processes: each was about to replace another (`files.replace_file`)."""
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
