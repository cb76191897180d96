"""How one shard of a version becomes visible on its own, while other servers save theirs.

The servers of a job save without a coordinator, so a shard is written without the lock of the location. On a disk it is
staged, flushed and renamed; on object storage it is one object. The shard that is the first of its version takes the
version's directory along, so that no reader finds an empty one. Its note (`state/shard_note.py`) is there before the
shard is. Only who replaces a shard, or finds a seal, takes the lock, for an instant: the seal goes before the first
shard is replaced. Who seals a version holds the same lock, so no seal ever stands over a mixture of two runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, Self

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.commit.publish.staging import Staging
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.sources.elasticdl.peek import numbers_of
from edl_ckpt.core.sources.registry import shard_named
from edl_ckpt.core.state.document import check_schema, schema_at_head
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import notes_dir, seal_file
from edl_ckpt.core.state.shard_note import EARLIER, NoteName, ShardNote, note_bytes, note_names, run_digest
from edl_ckpt.core.storage import LocalStore, ObjectStore
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.directories import made_directory
from edl_ckpt.core.storage.faults import Access, storage_errors
from edl_ckpt.core.storage.files import Flusher, PreallocatedFile
from edl_ckpt.core.storage.interface import ObjectStat, ObjectWriter, Sink
from edl_ckpt.core.storage.local import file_mark

_ATTEMPTS: Final = 20
_STEP_BYTES: Final = 8 << 20
SHARD_PURPOSE: Final = "save a shard"


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """The place of one server's shard: an opened location, its layout, the version, and which of how many servers."""

    store: LocalStore | ObjectStore
    layout: Layout
    version: int
    ps_id: int
    ps_num: int
    file: str = ""
    """The path of a file of the shard below the location, where a repair replaces one of any name."""
    like: str = ""
    """The path of another file of the version below the location: a file that was missing gets its access."""

    @property
    def directory(self) -> str:
        """Return the name of the version's directory."""
        return self.relative.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Return the name of the shard's file."""
        return self.relative.rpartition("/")[2]

    @property
    def relative(self) -> str:
        """Return the path of the shard below the location."""
        shard = f"{self.layout.version_dir(self.version)}/{self.layout.shard_file(self.ps_id, self.ps_num)}"
        return self.file or shard

    @property
    def path(self) -> str:
        """Return the full path or URL of the shard."""
        return self.store.path(self.relative)

    def other_shards(self) -> list[str]:
        """Return the shards of another number of servers in the version's directory, in order."""
        names = sorted(self.store.names(self.directory))
        return [name for name in names if (parsed := shard_named(name)) and parsed.ps_num != self.ps_num]

    def check_number(self, names: Iterable[str]) -> None:
        """Raise RefusedError when one of the names at the location takes the version's number in another layout."""
        taken = {name for name in names if self.version in numbers_of([name])} - {self.directory}
        if taken:
            raise RefusedError(
                f"version {self.version} exists there already in another layout, as {min(taken)}",
                path=self.store.location.url,
                hint="nothing was changed",
            )

    def refuse_directory(self, other: str) -> RefusedError:
        """Return the error for a directory with the shard of another number of servers."""
        return RefusedError(
            f"has {other} of another number of servers; this is server {self.ps_id} of {self.ps_num}",
            path=os.path.dirname(self.path),
            hint="remove that version first (edl-ckpt prune), or save in another location",
        )

    def check_alone(self) -> None:
        """Raise RefusedError when the shard could not stand with what is there by now."""
        self.check_number(list(self.store.names("")))
        for other in self.other_shards():
            raise self.refuse_directory(other)


@dataclass(frozen=True, slots=True)
class SavedPlace:
    """A shard that is visible: the name of its note, and whether it took the place of another one."""

    note: NoteName
    replaced: bool


Hold = Callable[[], AbstractContextManager[object]]
"""Takes the lock of the location while a shard is replaced."""


class ShardOutput(ExitStack[None]):
    """A shard being written; a context manager that leaves nothing of a shard that was not published.

    The note on the shard is there before the shard. The seal goes before a shard is replaced.
    """

    def __init__(self, place: ShardPlace, hold: Hold, reporter: Reporter) -> None:
        super().__init__()
        self._place = place
        self._hold = hold
        self._reporter = reporter
        self._note: NoteName | None = None

    def create(self, size_bytes: int) -> Sink:
        """Begin the shard, of this size; NoSpaceError when there is no room for it."""
        raise NotImplementedError

    def written(self) -> None:
        """Begin to flush what was written: nothing more comes."""

    def publish(self, note: ShardNote) -> SavedPlace:
        """Make the shard visible, whole, with its note; only the replacement of a shard takes the lock."""
        mark = self._finish()
        has_seal = self._place.store.stat(seal_file(self._place.version)) is not None
        if not has_seal and self._visible_mark() == "":  # present files may have that seal
            self._write_note(note, mark)
            if self._publish_new():
                return self._keep_note(replaced=False)
            self._drop_note()
        with self._hold():
            self._place.check_alone()
            self._retire_seal()
            self._write_note(note, mark)
            prove_lock(self._place.store.location)
            self._replace()
            return self._keep_note(replaced=True)

    def take_place(self, kept: str) -> str:
        """Put the file where one is missing or damaged; the caller holds the lock. Servers have no part in this.

        Returns the path `kept`, to which a file that was there is moved first, or '' for none.
        """
        self._finish()
        prove_lock(self._place.store.location)
        was = self._visible_mark()
        self._replace(kept)
        return kept if was else ""

    def _write_note(self, note: ShardNote, mark: str) -> None:
        """Write the note on a file with this mark."""
        self._note = NoteName(self._place.ps_id, self._place.ps_num, run_digest(note.run, note.older), mark)
        self._place.store.write_small(self._path_of(str(self._note)), note_bytes(note))

    def _keep_note(self, *, replaced: bool) -> SavedPlace:
        """Remove all other notes on the shard: they are about files that it replaced, or that never became visible."""
        name, self._note = self._note, None
        assert name is not None  # noqa: S101 - it was written before the shard became visible
        for other in note_names(self._place.store, self._place.version):
            if (other.ps_id, other.ps_num) == (self._place.ps_id, self._place.ps_num) and other != name:
                self._place.store.remove(self._path_of(str(other)))
        return SavedPlace(name, replaced)

    def _drop_note(self) -> None:
        """Remove the note, unless the visible shard is the one that it is about.

        A rename or a request that failed may have taken effect all the same.
        """
        name, self._note = self._note, None
        if name is not None:
            with suppress(EdlCkptError):
                if self._visible_mark() != name.mark:
                    self._place.store.remove(self._path_of(str(name)))

    def _retire_seal(self) -> None:
        """Take the seal of the version away; it stays among the notes, because it names the run of the other shards."""
        store, seal = self._place.store, seal_file(self._place.version)
        data = store.read_small(seal)
        if data is not None:
            check_schema(schema_at_head(data), store.path(seal))
            if store.read_small(self._path_of(EARLIER)) is None:
                store.write_small(self._path_of(EARLIER), data)
            prove_lock(self._place.store.location)
            store.remove(seal)

    def _path_of(self, name: str) -> str:
        return f"{notes_dir(self._place.version)}/{name}"

    def _finish(self) -> str:
        """Make every byte safe; return the mark of the file."""
        raise NotImplementedError

    def _visible_mark(self) -> str:
        """Return the mark of the file that has the shard's name now, '' when there is none."""
        raise NotImplementedError

    def _publish_new(self) -> bool:
        """Give the shard a name that must be free; False when another process took it a moment ago."""
        raise NotImplementedError

    def _replace(self, kept: str = "") -> None:
        """Put the shard in the place of the one that is there, which goes to `kept`; the caller holds the lock."""
        raise NotImplementedError


class DiskShard(ShardOutput):
    """A shard that is written to a staging directory of a local disk; `create` makes its file."""

    _file: PreallocatedFile
    _flusher: Flusher

    def __init__(self, store: LocalStore, place: ShardPlace, hold: Hold, reporter: Reporter) -> None:
        super().__init__(place, hold, reporter)
        self._staging = Staging(store.root, SHARD_PURPOSE)

    def __enter__(self) -> Self:
        self.enter_context(made_directory(self._staging.checkpoint_dir))  # type: ignore[arg-type]  # swallows nothing
        self.enter_context(self._staging)
        self.callback(self._drop_note)
        return self

    def create(self, size_bytes: int) -> Sink:
        """Begin the shard in the staging directory, in a directory with the name of the version."""
        self._staging.inherit_access()
        self._staging.check_space(size_bytes)
        with self._staging.place.above(self._place.relative, make=True) as (inside, name):
            self._file = inside.create(name, size_bytes)
        self.callback(self._file.close)
        self._flusher = self.enter_context(Flusher([self._file]))
        return self._file

    def written(self) -> None:
        """Begin the last flush."""
        self._flusher.all_written()

    def _finish(self) -> str:
        self.written()
        self._flusher.wait()
        self._file.close()
        with self._staging.place.above(self._place.relative) as (inside, name):
            found = inside.stat(name)
            inside.flush()
        assert found is not None  # noqa: S101 - the directory is ours alone
        return file_mark(found)

    def _visible_mark(self) -> str:
        root = self._staging.root
        with root.find(self._place.directory) if self._place.directory else nullcontext(root) as directory:
            found = directory.stat(self._place.name)
        return "" if found is None else file_mark(found)

    def _publish_new(self) -> bool:
        root, stage, name = self._staging.root, self._staging.place, self._place.directory
        for _ in range(_ATTEMPTS):
            self._place.check_alone()
            if root.stat(name) is None:
                with suppress(RefusedError):  # another server made the directory a moment ago
                    stage.rename_new(name, root, name)
                    root.flush()
                    return True
            try:
                with root.enter(name) as version, stage.enter(name) as inside:
                    inside.rename_new(self._place.name, version, self._place.name)
                    version.flush()
                    return True
            except NotFoundError:  # another server removed its last shard of an old version, and the empty directory
                continue
            except RefusedError:
                break
        return False

    def _replace(self, kept: str = "") -> None:
        root, relative = self._staging.root, self._place.relative
        self._make_directories(root)
        with root.above(relative, make=True) as (version, name), self._staging.place.above(relative) as (inside, _):
            if version.has_file(name):
                self._give_access(version, name, inside)
                if kept:
                    with root.above(kept, make=True) as (trash, last):
                        if not version.link(name, trash, last):
                            version.rename(name, trash, last)
                        trash.flush()
            elif self._place.like:
                with root.above(self._place.like) as (neighbours, neighbour):
                    if neighbours.is_file(neighbour):
                        self._give_access(neighbours, neighbour, inside)
            inside.rename(name, version, name)
            version.flush()
        root.flush()

    def _make_directories(self, root: Directory) -> None:
        """Make the directories of the shard that are missing in its version, with the access of the version."""
        first, *folders = self._place.directory.split("/")
        if not first:  # loose files
            return
        for depth in range(1, len(folders) + 1 if root.is_directory(first) else 1):
            path = "/".join([first, *folders[:depth]])
            with root.above(path) as (above, name):
                if above.stat(name) is None:
                    with above.make(name) as made, root.enter(first) as version, storage_errors(made.path):
                        self._warn(Access.of(version.path, version.fd).give(made.fd))

    def _give_access(self, folder: Directory, name: str, inside: Directory) -> None:
        """Give the new shard the access of a file."""
        with storage_errors(self._place.path):
            old, new = folder.open_file(name, os.O_RDONLY), inside.open_file(self._place.name, os.O_RDONLY)
            try:
                lost = Access.of(self._place.path, old).give(new)
            finally:
                os.close(old)
                os.close(new)
        self._warn(lost)

    def _warn(self, lost: Sequence[str]) -> None:
        if lost:
            self._reporter.warn(f"{self._place.path}: this user cannot keep the {' and '.join(lost)} of the old shard")


class ObjectShard(ShardOutput):
    """A shard that is one object: its bytes are uploaded, and it is visible, whole, once it is completed."""

    _object: ObjectWriter

    def __init__(self, store: ObjectStore, place: ShardPlace, hold: Hold, reporter: Reporter) -> None:
        super().__init__(place, hold, reporter)
        self._store = store
        self.callback(self._drop_note)

    def create(self, size_bytes: int) -> Sink:
        """Begin the upload."""
        self._object = self._store.new_object(self._place.relative, size_bytes)
        self.callback(self._abort, self._object)
        self._object.begin()
        return self._object

    def _abort(self, upload: ObjectWriter) -> None:
        with suppress(EdlCkptError):
            if not upload.completed:
                upload.abort()

    def _finish(self) -> str:
        self._object.finish()
        return ObjectStat(self._object.size_bytes, "", 0.0, self._object.write_id or None).mark

    def _visible_mark(self) -> str:
        found = self._store.stat(self._place.relative)
        return "" if found is None else found.mark

    def _publish_new(self) -> bool:
        self._place.check_alone()
        try:
            self._object.complete()
        except RefusedError:  # another process took the name a moment ago
            return False
        return True

    def _replace(self, kept: str = "") -> None:
        if kept and self._visible_mark():
            with self._store.open(self._place.path) as old:
                copy = self._store.new_object(kept, old.size_bytes)
                self.callback(self._abort, copy)
                copy.begin()
                for start in range(0, old.size_bytes, _STEP_BYTES):
                    copy.write(start, old.read(start, min(_STEP_BYTES, old.size_bytes - start)))
                copy.finish()
                copy.complete()
        self._object.complete(replace=True)
