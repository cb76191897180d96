"""How a version becomes visible on a local disk: staged beside its target, flushed, then renamed.

Every operation that writes a version uses one `LocalOutput`. A new version takes one rename. A version in the place of
another takes one atomic exchange where the kernel has it, else two renames under a journal. A resumable output flushes
each shard as it is finished and notes it in the journal, so that the next run of the same work continues there. Its
shards are read back with the others before they are published. A move notes its progress, and when a signal or a kill
ends it, or a source that does not answer, the next run of the same move takes over its staging directory.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final, Self

from edl_ckpt.core.base.errors import (
    AuthError,
    CorruptError,
    EdlCkptError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
)
from edl_ckpt.core.base.ids import kernel_id
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.parallel import default_workers
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.words import command
from edl_ckpt.core.commit.deletion.loose import finish_publishing, is_there, marks_of, move_back
from edl_ckpt.core.commit.deletion.records import META, write_record
from edl_ckpt.core.commit.interface import FinishedSink, LockedLocation, NewVersion, Prove, VersionOutput, Written
from edl_ckpt.core.commit.journal import Journal, Note, parse_journal
from edl_ckpt.core.commit.progress import Progress
from edl_ckpt.core.commit.publish.carried import Carrying
from edl_ckpt.core.commit.publish.interrupted import taken_over
from edl_ckpt.core.commit.publish.staging import Staging
from edl_ckpt.core.commit.writers import WRITERS, StagedTargets, Writers
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.annotate import Describe
from edl_ckpt.core.state.document import MAX_SUMS_BYTES
from edl_ckpt.core.state.metadata import Drafts
from edl_ckpt.core.state.paths import (
    INTERRUPTED,
    JOURNAL,
    META_DIR,
    TRASH_DIR,
    is_document,
    resumable_stage,
    seal_file,
    version_file,
)
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.state.shard_note import forget_notes
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import Access, storage_errors
from edl_ckpt.core.storage.files import NEW, Flusher, PreallocatedFile, allocate_all
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.tree import digest_of
from edl_ckpt.core.storage.walk import local_tree

_SEAL: Final = "seal.json"
_OLD_SEAL: Final = "old-seal.json"
_LACKS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_NOTED_BYTES: Final = 5 << 20
"""Finished shards of so many bytes together are noted in the journal; a later run copies the others again."""
_FEW_SHARDS: Final = 64
"""Of so many shards each is noted at once."""
_DRAFTS: Final = "meta"
"""The directory of the metadata that comes with a version; an empty file stands for a document that goes."""


class OldAccess:
    """The access of a version that is replaced, for the one that takes its place; warns once of what is lost."""

    def __init__(self, old: Version, reporter: Reporter) -> None:
        self._old = old
        self._reporter = reporter
        self._warned = False
        self._shards = [Access.of(shard.path) for shard in old.shards]
        self._named = {old.name_of(file.path): file.path for file in old.files}
        self._directory = Access.of(old.path)

    def give_file(self, name: str, shard: int, file: PreallocatedFile) -> None:
        """Give a new file the access of the old one with its name, else of the old shard with its number.

        More shards than before get the access of the first one.
        """
        if name in self._named:
            self.warn(file.give(Access.of(self._named[name])))
        elif self._shards:
            self.warn(file.give(self._shards[shard if shard < len(self._shards) else 0]))

    def give_directory(self, directory: Directory) -> None:
        """Give the new directory the access of the old one, once all files are in it."""
        with storage_errors(directory.path):
            self.warn(self._directory.give(directory.fd))

    def warn(self, lost: Sequence[str]) -> None:
        """Say once what could not be kept; nothing for nothing."""
        if lost and not self._warned:
            self._warned = True
            self._reporter.warn(
                f"{self._old.path}: this user cannot keep the {' and '.join(lost)} of the replaced files;"
                " the new files have those of this process"
            )


def _carrying(new: NewVersion) -> Carrying | None:
    """Return what goes along into a version; None for files side by side."""
    if new.contents is None or not new.contents.tree:
        return None
    return Carrying(new.contents, frozenset(new.carried), new.replaces is not None)


class LocalOutput(VersionOutput):
    """A version that is written to a staging directory of a local disk."""

    def __init__(self, store: LocalStore, place: LockedLocation, new: NewVersion) -> None:
        super().__init__(place, new)
        self._store = store
        self._access = OldAccess(new.replaces, new.reporter) if new.replaces else None
        self._carrying = _carrying(new)
        self._taken_over = taken_over(store.root, new) if place.is_exclusive and not new.resumes else ""
        """The staging directory of the same move, which was interrupted; '' for none."""
        stage = os.path.basename(resumable_stage(new.key)) if new.resumes else self._taken_over
        self._staging = Staging(store.root, new.purpose, name=stage)
        self._directory = os.path.join(self._staging.path, self._name)
        self._files: dict[int, PreallocatedFile] = {}
        self._sizes: Sequence[int] = ()
        self._names: Sequence[str] = ()
        self._journal = Journal(new.number, new.name, keep_old=new.keep_old, loose=new.is_loose)
        self._flusher: Flusher | None = None
        self._finished: dict[str, Note] = {}
        self._noted: set[str] = set()
        """The finished shards whose notes the journal on the disk has."""
        self._unnoted_bytes = 0
        self._proving = False
        self._writers: dict[int | None, Writers] = {}
        """The records of each shard that is shared apart, or of all shards."""

    def __enter__(self) -> Self:
        staging = self.enter_context(self._staging)
        self._root, self._stage = staging.root, staging.place
        self.push(self._leave)
        return self

    def _leave(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Finish or roll back a commit that ended half-way; decide whether a later run can resume."""
        with suppress(EdlCkptError):  # then that run copies some shards again
            if self._finished.keys() - self._noted:
                self._place.check()
                self._write_notes()
        with suppress(EdlCkptError, ValueError):  # then the journal stays, and `publish` has said so
            settle_stage(self._root, self._stage)
        # What was read, or what was written, is damaged, or the name is taken: a later run must begin again.
        useless = isinstance(error, CorruptError | RefusedError) or (self._proving and isinstance(error, EdlCkptError))
        if useless and self._new.resumes is not None:
            self._stage.unlink(JOURNAL)
        if not self._may_go_on(error):
            with suppress(EdlCkptError):  # then it waits, and takes room until it is dropped
                self._end_progress()

    def _may_go_on(self, error: BaseException | None) -> bool:
        """Say whether the same move may go on: after a signal, or if its source or its cluster gave no answer.

        Any other error of the target may mean that it has lost what was written.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return True
        is_moving = self.progress is not None and self.progress.is_moving
        is_of_target = isinstance(error, EdlCkptError) and (error.path or "").startswith(self._staging.path)
        return isinstance(error, UnavailableError) and is_moving and not is_of_target

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all shards, of these sizes; those that an interrupted run had finished stay as they are."""
        self._sizes = sizes
        names = self._names = self._new.names(len(sizes))
        self._check_target()
        self.resumed = self._find_finished(names)
        self._finished = {names[i]: note for i, note in self.resumed.items()}
        self._noted = set(self._finished)
        # Tasks of an interrupted run may go on: none opens a file from here on.
        late = self._end_writers() if self._new.resumes is not None or self._taken_over else set()
        is_taken = bool(self._taken_over) and self._has_all_files()
        if not self.resumed and not is_taken:
            self._staging.clear()
            self._staging.inherit_access()
        inside = self.enter_context(self._stage.enter(self._name, make=True))
        if is_taken:
            self._open_files(inside)
            self._part_with(late)
        else:
            self._create_files(inside)
        if self._new.move_digest:
            self.progress = progress = Progress(self._stage, self._note_move)
            self.callback(progress.close)
        if self._new.resumes is None:
            # Not beside `finish`: of two flushes of one file, the kernel tells only the first that the disk failed.
            self._flusher = self.enter_context(Flusher(list(self._files.values())))
        return [self._files[i] if i in self._files else FinishedSink(inside.join(name)) for i, name in enumerate(names)]

    def _end_writers(self) -> set[int] | None:
        """Let no task of an interrupted run begin; return the files that some may still write, None for all."""
        late: set[int] | None = set()
        for name in self._stage.names():
            if name.startswith(WRITERS):
                own = Writers(self._stage, name, make=False).end()
                late = None if late is None or own is None else late | own
        return late

    def _create_files(self, inside: Directory) -> None:
        """Create and allocate all files but those that an interrupted run had finished."""
        self._staging.check_space(sum(size for i, size in enumerate(self._sizes) if i not in self.resumed))
        for i, name in enumerate(self._names):
            if i not in self.resumed:
                with inside.above(name, make=True) as (folder, last):
                    folder.remove(last)
                    self._files[i] = file = folder.create(last, self._sizes[i], waits=True)
                self.callback(file.close)
                self._protect(i, file)  # before there is anything to read in it
        allocate_all(list(self._files.values()), default_workers())

    def _has_all_files(self) -> bool:
        """Say whether the directory that was taken over has all files, each of its size."""
        if not self._stage.is_directory(self._name):
            return False
        with self._stage.enter(self._name) as inside:
            for name, size in zip(self._names, self._sizes, strict=True):
                with inside.above(name, make=True) as (folder, last):
                    found = folder.stat(last)
                is_alone = found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink == 1
                if found is None or not is_alone or found.st_size != size:
                    return False
        return True

    def _open_files(self, inside: Directory) -> None:
        """Open the files of a move that was interrupted."""
        for i, name in enumerate(self._names):
            with inside.above(name) as (folder, last):
                self._files[i] = file = PreallocatedFile(folder.join(last), None, directory=folder.fd)
            self.callback(file.close)
            self._protect(i, file)

    def _note_move(self) -> None:
        """Say in the staging directory that the same move can go on there."""
        sizes = dict(zip(self._names, self._sizes, strict=True))
        move = replace(self._journal, source=self._new.move_digest, sizes=sizes, work=self._new.purpose)
        self._stage.replace(INTERRUPTED, move.to_bytes())

    def _end_progress(self) -> None:
        """Let no later run go on where this one ends."""
        if self._new.move_digest:
            self._stage.unlink(INTERRUPTED)

    def _protect(self, number: int, file: PreallocatedFile) -> None:
        """Give a new file the access that it is to have."""
        name = self._names[number]
        if self._carrying is not None and name in self._carrying.names:
            lost = self._carrying.protect(name, file)
            if self._access is not None:
                self._access.warn(lost)
        elif self._access is not None:
            self._access.give_file(name, number, file)

    def _check_target(self) -> None:
        """Raise RefusedError when the name of a new version is taken, or the version to be replaced is a link."""
        found = self._root.stat(self._name)
        for name in self._names if self._new.is_loose else [self._name]:
            if self._new.replaces is None and self._root.stat(name) is not None:
                raise RefusedError("already exists; nothing was changed", path=self._store.path(name))
        if self._new.replaces is not None and found is not None and stat.S_ISLNK(found.st_mode):
            raise replaces_link(self._store.path(self._name))

    def _find_finished(self, names: Sequence[str]) -> dict[int, Note]:
        """Return the notes of the shards that an interrupted run of the same work had finished."""
        if self._new.resumes is None:
            return {}
        try:
            journal = read_journal(self._stage)
        except ValueError:
            return {}
        if journal is None or journal.source != self._new.resumes.source or not self._stage.is_directory(self._name):
            return {}
        found: dict[int, Note] = {}
        with self._stage.enter(self._name) as inside:
            for i, name in enumerate(names):
                note = journal.finished.get(name)
                with inside.above(name, make=True) as (folder, last):
                    there = folder.stat(last)
                is_whole = there is not None and stat.S_ISREG(there.st_mode) and there.st_size == self._sizes[i]
                if note is not None and self._new.resumes.accepts(i, note) and is_whole:
                    found[i] = note
        return found

    def finish(self, shard: int, note: Note) -> None:
        """Flush a shard to the disk, then note in the journal that it is there.

        Each time the whole journal is written, so of many small shards some are noted together.
        """
        assert self._new.resumes is not None  # noqa: S101 - only a resumable output has a journal of this kind
        self._end_sharing(shard)
        self._files[shard].flush()
        with self._lock:
            self._finished[self._names[shard]] = note
            self._unnoted_bytes += self._sizes[shard]
            if self._unnoted_bytes >= _NOTED_BYTES or len(self._names) <= _FEW_SHARDS:
                self._write_notes()

    def _write_notes(self) -> None:
        """Write the journal with the notes of all finished shards, where it lacks some of a resumable output."""
        if self._new.resumes is not None and self._finished.keys() - self._noted:
            journal = replace(self._journal, source=self._new.resumes.source, finished=self._finished)
            self._stage.replace(JOURNAL, journal.to_bytes())
            self._noted, self._unnoted_bytes = set(self._finished), 0

    def share(self, *, apart: bool = False) -> StagedTargets:
        """Return the staged files as a value, for other processes that write them."""
        records = WRITERS
        if apart:
            records = f"{WRITERS}-{uuid.uuid4().hex}"  # a resumed run has the staging directory of the one before it
            self._writers = {i: Writers(self._stage, f"{records}-{i}") for i in self._files}
        else:
            self._writers = {None: Writers(self._stage)}
        stage = os.path.abspath(self._staging.path)
        if self._flusher is not None:
            self._flusher.others_write()
        place, writers = os.path.join(stage, self._name), os.path.join(stage, records)
        return StagedTargets(place, tuple(self._names), writers, kernel_id(), begins=self._flusher is not None)

    def _end_sharing(self, shard: int | None) -> None:
        """Let no other process write any more: what one may still have open becomes a file without a name."""
        writers = self._writers.pop(shard, None)
        if writers is None:
            return
        unfinished = writers.end()
        own = set(self._files) if shard is None else {shard}
        self._part_with(own if unfinished is None else own & unfinished)

    def _part_with(self, late: set[int] | None) -> None:
        """Put copies in the place of files that other processes may still write: all of them for None."""
        with self._stage.enter(self._name) as inside:
            for number, file in self._files.items():
                if late is None or number in late:
                    with inside.above(self._names[number]) as (folder, name):
                        copied = folder.create(f"{name}{NEW}", file.size_bytes)
                        copied.copy_of(file)
                        self._protect(number, copied)
                        folder.rename(f"{name}{NEW}", folder, name)
                    file.become(copied)

    def publish(self, prove: Prove, describe: Describe | None = None) -> Seal:
        """Prove the staged version while it is flushed, stage its seal and metadata, then rename all of them."""
        for shard in list(self._writers):
            self._end_sharing(shard)
        self._write_notes()
        if self._flusher is not None:
            self._flusher.all_written()
        new = self._new
        version = new.written(self._store.location, self._directory, self._sizes)
        self._proving = True
        seal = prove(Written(version, staged=True))
        data = seal_bytes(seal)
        self._proving = False
        if self._flusher is not None:
            self._flusher.wait()
        for file in self._files.values():
            file.close()
        with COMMIT:
            with self._stage.enter(self._name) as inside:
                folders: Sequence[str] = ()
                if self._carrying is not None:
                    lost = self._finish_carrying(self._carrying, inside)
                    folders = self._carrying.directories
                    if self._access is not None:
                        self._access.warn(sorted(lost))
                if self._access is not None:
                    self._access.give_directory(inside)
                _flush_below(inside, self._names, folders)
                inode = os.fstat(inside.fd).st_ino
                marks = marks_of(inside, self._names) if new.is_loose else {}
            self._stage.replace(_SEAL, data)
            self._stage_metadata(describe)
            self._check_target()
            self._root.enter(META_DIR, make=True).close()  # now, not later: then only renames are left
            replaces, old = new.replaces is not None, new.old_names
            contents = new.contents if replaces else None
            tree = digest_of(contents.tree) if contents is not None else ""
            journal = replace(self._journal, replaces=replaces, old=old, inode=inode, marks=marks, tree=tree)
            self._place.check()
            look = contents.check_unchanged if contents is not None else None
            try:
                self._stage.replace(JOURNAL, journal.to_bytes())
                self._end_progress()
                put_in_place(self._root, self._stage, journal, look)
            except EdlCkptError as error:
                _settle_after(self._root, self._stage, journal, self._store.location, error)
            if replaces:
                forget_notes(self._store, [new.number])
                self._warn_of_change()
        return seal

    def _finish_carrying(self, carrying: Carrying, inside: Directory) -> set[str]:
        """Finish what goes along; LockedError where an entry of it is gone by now."""
        try:
            return carrying.finish(inside)
        except NotFoundError:
            carrying.contents.check_unchanged()
            raise

    def _warn_of_change(self) -> None:
        """Say where a replaced version is that changed at the moment of its replacement."""
        if not self._new.keep_old:
            with self._root.find(f"{TRASH_DIR}/{os.path.basename(self._stage.path)}") as trash:
                for name in trash.names():
                    path = trash.join(name)
                    self._new.reporter.warn(f"{path}: it changed while it was being replaced, and was kept here")

    def _stage_metadata(self, describe: Describe | None) -> None:
        if describe is not None:
            self._stage.remove(_DRAFTS)
            describe(drafts := Drafts(self._store))
            with self._stage.enter(_DRAFTS, make=True) as staged:
                for name, data in drafts.files.items():
                    staged.write_new(name, data)
                staged.flush()


def _flush_below(directory: Directory, names: Sequence[str], folders: Sequence[str]) -> None:
    """Flush a directory, and those below it that files of these paths are in, or that are named."""
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents if parent.name}
    for folder in sorted(parents | {*folders}, reverse=True):
        with directory.enter(folder) as inside:
            inside.flush()
    directory.flush()


def replaces_link(path: str) -> RefusedError:
    """Return why a version that is a symbolic link is not replaced in place."""
    return RefusedError(
        "is a symbolic link: replacing it would leave its shards where they are; nothing was changed",
        path=path,
        hint="write the result to another location with --output, or name the location that the link leads to",
    )


def _settle_after(root: Directory, stage: Directory, journal: Journal, location: Location, error: EdlCkptError) -> None:
    """Try once more to finish a commit that met an error, or to undo it; else raise it, and say what is there.

    Only a lack that has passed is no error then: what a disk with errors flushes at the second time may be lost.
    """
    finish, now = "", False
    try:
        settle_stage(root, stage)
    except (EdlCkptError, ValueError):
        finish = f"`{command('recover', str(location))}` finishes"
    with suppress(EdlCkptError):
        found = root.stat(journal.directory)
        is_new = found is not None and found.st_ino == journal.inode
        now = is_there(root, journal.marks) if journal.loose else is_new
    if now:
        if not finish and isinstance(error.__cause__, OSError) and error.__cause__.errno in _LACKS:
            return
        COMMIT.reached()
        rest = f", perhaps without its seal, tags or metrics: {finish} its commit" if finish else ""
        error.hint = f"version {journal.key} is in place{rest}"
    elif finish:
        error.hint = f"its commit had begun: {finish} or undoes it"
    raise error


def put_replaced_back(store: LocalStore, name: str, number: int, deletion: str) -> None:
    """Let a replaced version in the trash and the one in its place change places, with their seals.

    `name` is that of its directory, in place and in the deletion. The caller holds the lock. After a crash, the next
    command brings each of them to one of the two places, whole and with its seal.
    """
    with Staging(store.root, "undo") as staging, COMMIT:
        root, stage = staging.root, staging.place
        with root.enter(f"{TRASH_DIR}/{deletion}") as trash:
            found = trash.stat(name)
            journal = Journal(number, name, inode=found.st_ino if found else 0, keep_old=True, trash=deletion)
            try:
                stage.replace(JOURNAL, journal.to_bytes())
                trash.rename(name, stage, name)
                _take_seal(trash, META, number, stage, _SEAL)
                put_in_place(root, stage, journal)
            except EdlCkptError as error:
                _settle_after(root, stage, journal, store.location, error)


def put_in_place(root: Directory, stage: Directory, journal: Journal, look: Callable[[], None] | None = None) -> None:
    """Put a staged directory into a free place, or into that of a version, as its journal, which is written, says.

    `look` raises an error where the version is not the one that was read: then it stays.
    """
    name = journal.directory
    _take_seal(root, META_DIR, journal.key, stage, _OLD_SEAL)
    if journal.replaces:
        if look is not None:
            look()
        try:
            exchanged = stage.exchange(name, root, name)
        except UnsupportedError as error:  # a lower layer of overlayfs
            error.hint = "nothing was changed; try: --output LOCATION"
            raise
        if not exchanged:
            root.rename(name, stage, _old_name(name))
            stage.rename(name, root, name)
    elif journal.loose:
        move_back(stage, root, name, list(journal.marks))
    else:
        stage.rename_new(name, root, name)
    settle_stage(root, stage)


def _take_seal(place: Directory, folder: str, key: int | str, stage: Directory, name: str) -> None:
    """Move the seal of a version away, so that no seal ever stands beside files that it does not match."""
    seal = os.path.basename(seal_file(key))
    with place.find(folder) as meta:
        if meta.has_file(seal):
            meta.rename(seal, stage, name)


def read_journal(stage: Directory) -> Journal | None:
    """Return the journal of a local staging directory, None when it has none; ValueError when it is damaged.

    After a power cut one may be empty; nothing had been done when it was written.
    """
    data = stage.read(JOURNAL, MAX_SUMS_BYTES)
    return parse_journal(data, stage.join(JOURNAL)) if data else None


def settle_stage(root: Directory, stage: Directory) -> str | None:
    """Finish the commit that a journal began, or find it undone; return what was done, None for nothing.

    The disk tells which: the staged directory is known by its inode. Every step may be repeated. Raises ValueError,
    before anything changes, for a damaged journal, and RefusedError when neither version is in place.
    """
    journal = read_journal(stage)
    if journal is None or journal.source:
        return None
    version, name, old = journal.key, journal.directory, _old_name(journal.directory)
    what = f"the {'replacement' if journal.replaces else 'commit'} of version {version}"
    now = None if journal.loose else root.stat(name)
    if now is None and journal.replaces and stage.is_directory(name):  # killed between two renames
        stage.rename_new(name, root, name)
        now = root.stat(name)
    if now is None and journal.replaces:
        raise RefusedError(
            "neither the old version nor the new one is in place; nothing was changed",
            path=root.join(name),
            hint=f"look into {stage.path}",
        )
    # The number of a device may change when the machine boots, so it is compared with that of the stage.
    is_new = now is not None and (now.st_dev, now.st_ino) == (os.fstat(stage.fd).st_dev, journal.inode)
    if not (finish_publishing(root, stage, name, journal.marks) if journal.loose else is_new):
        _place_seal(root, stage, version, _OLD_SEAL)
        if journal.trash and stage.stat(name) is not None:
            _to_trash(root, stage, journal, name, journal.trash, _SEAL)
        stage.unlink(JOURNAL)
        return f"rolled back {what}{'; the old version is in place' if journal.replaces else ''}"
    root.flush()
    if stage.stat(name) is not None:
        stage.rename(name, stage, old)
    _place_seal(root, stage, version)
    place_metadata(root, stage, version)
    _put_away(root, stage, journal)
    stage.unlink(JOURNAL)
    return f"finished {what}; the new version is in place"


def _old_name(directory: str) -> str:
    """Return the name under which a version that is being replaced waits to be removed or kept."""
    return f"old-{directory}"


def _put_away(root: Directory, stage: Directory, journal: Journal) -> None:
    """Remove a replaced version, or put it into the trash under its own name; of a link, only the link goes."""
    old, gone = _old_name(journal.directory), f"gone-{journal.directory}"
    _remove_replaced(stage, gone)  # of a process that was killed while it removed it
    found = stage.stat(old)
    if found is None:
        return
    keep = journal.keep_old
    if stat.S_ISDIR(found.st_mode) and not keep:
        with stage.enter(old) as inside:
            keep = not set(journal.old).issuperset(inside.names()) or _has_changed(inside, journal)
    if not keep:
        stage.rename(old, stage, gone)
        _remove_replaced(stage, gone)
        return
    _to_trash(root, stage, journal, old, os.path.basename(stage.path), _OLD_SEAL)


def _remove_replaced(stage: Directory, gone: str) -> None:
    """Remove a version that was replaced; raise the error of the first file that cannot be removed.

    Where permissions forbid it, the commit has nothing left to do but that, so its journal goes: the location works on,
    and each command that takes the lock tries to remove the rest.
    """
    problems: list[EdlCkptError] = []
    stage.remove(gone, problems.append)
    if not problems:
        return
    if all(isinstance(problem, AuthError) for problem in problems):
        stage.unlink(JOURNAL)
    raise problems[0]


def _has_changed(old: Directory, journal: Journal) -> bool:
    """Say whether a replaced directory is not the one that was read: a job wrote into it at the last moment."""
    return bool(journal.tree) and digest_of(local_tree(old)) != journal.tree


def _to_trash(root: Directory, stage: Directory, journal: Journal, name: str, deletion: str, seal: str) -> None:
    """Put a directory of a staging directory into the trash; with a record and its seal if `undo` may bring it back."""
    with root.enter(f"{TRASH_DIR}/{deletion}", make=True) as trash:
        if journal.keep_old:
            write_record(trash, [journal.version], [journal.directory], replaced=True)
            _place_seal(trash, stage, journal.key, seal, META)
        stage.rename(name, trash, journal.directory)
        trash.flush()


def _place_seal(place: Directory, stage: Directory, key: int | str, name: str = _SEAL, folder: str = META_DIR) -> None:
    if stage.stat(name) is not None:
        with place.enter(folder, make=True) as meta:
            stage.rename(name, meta, os.path.basename(seal_file(key)))
            meta.flush()


def place_metadata(root: Directory, stage: Directory, key: int | str) -> None:
    """Put staged metadata into its place, that of the version first: so a tag that moves is never on no version."""
    if not stage.is_directory(_DRAFTS):
        return
    own = os.path.basename(version_file(key))
    with stage.enter(_DRAFTS) as staged, root.enter(META_DIR, make=True) as meta:
        for name in sorted(filter(is_document, staged.names()), key=lambda name: name != own):
            found = staged.stat(name)
            if found is not None and found.st_size:
                staged.rename(name, meta, name)
            else:
                meta.unlink(name)
        meta.flush()
