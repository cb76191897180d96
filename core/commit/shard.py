"""How one shard of a version becomes visible on its own, while other servers save theirs.

The servers of a job save without a coordinator, so a shard is written without the lock of the location. On a disk it is
staged, flushed and renamed; on object storage it is one object. The shard that is the first of its version takes the
version's directory along, so that no reader finds an empty one. Its note (`state/shard_note.py`) is there before the
shard is. Only who replaces a shard, or finds a seal, takes the lock, for an instant: the seal goes before the first
shard is replaced. Who seals a version holds the same lock, so no seal ever stands over a mixture of two runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from edl_ckpt.core.checkpoint.runs import object_mark
from edl_ckpt.core.commit.access import inherit_access
from edl_ckpt.core.commit.recovery import location_lock, made_directory
from edl_ckpt.core.commit.staging import Staging
from edl_ckpt.core.errors import EdlCkptError, NotFoundError, RefusedError
from edl_ckpt.core.format.names import Layout, parse_shard_file, parse_single_file, parse_version_dir
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.document import check_schema, schema_at_head
from edl_ckpt.core.state.holder import prove_lock
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.paths import notes_dir, seal_file
from edl_ckpt.core.state.shard_note import (
    EARLIER,
    NoteName,
    ShardNote,
    file_mark,
    note_bytes,
    note_names,
    run_digest,
)
from edl_ckpt.core.storage import LocalStore, ObjectStore, open_store
from edl_ckpt.core.storage.access import Access
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import Flusher, PreallocatedFile
from edl_ckpt.core.storage.interface import ObjectWriter, Sink
from edl_ckpt.core.storage.location import Location

_ATTEMPTS: Final = 20
_PURPOSE: Final = "save a shard"


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """The place of one server's shard: a location, its layout, the version, and which of how many servers."""

    location: Location
    layout: Layout
    version: int
    ps_id: int
    ps_num: int

    @property
    def directory(self) -> str:
        """Return the name of the version's directory."""
        return self.layout.version_dir(self.version)

    @property
    def name(self) -> str:
        """Return the name of the shard's file."""
        return self.layout.shard_file(self.ps_id, self.ps_num)

    @property
    def path(self) -> str:
        """Return the full path or URL of the shard."""
        return open_store(self.location).path(f"{self.directory}/{self.name}")

    def other_shards(self) -> list[str]:
        """Return the shards of another number of servers in the version's directory, in order."""
        names = sorted(open_store(self.location).names(self.directory))
        return [name for name in names if (parsed := parse_shard_file(name)) and parsed[1] != self.ps_num]

    def check_number(self, names: Iterable[str]) -> None:
        """Raise RefusedError when one of the names at the location takes the version's number in another layout."""
        taken = {name for name in names if parse_single_file(name) == self.version}
        taken |= {name for name in names if (parsed := parse_version_dir(name)) and parsed[1] == self.version}
        if taken - {self.directory}:
            raise RefusedError(
                f"version {self.version} exists there already in another layout, as {min(taken - {self.directory})}",
                path=self.location.url,
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
        self.check_number(list(open_store(self.location).names("")))
        others = self.other_shards()
        if others:
            raise self.refuse_directory(others[0])


@dataclass(frozen=True, slots=True)
class Published:
    """A shard that is visible: the name of its note, and whether it took the place of another one."""

    note: NoteName
    replaced: bool


class ShardOutput(Protocol):
    """A shard being written; a context manager that leaves nothing of a shard that was not published."""

    def create(self, size_bytes: int) -> Sink:
        """Begin the shard, of this size; NoSpaceError when there is no room for it."""
        ...

    def written(self) -> None:
        """Begin to flush what was written: nothing more comes."""
        ...

    def publish(self, note: ShardNote) -> Published:
        """Make the shard visible, whole, with its note."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_shard(
    place: ShardPlace, *, wait_seconds: float = LOCK_WAIT_SECONDS, reporter: Reporter = WARNINGS
) -> ShardOutput:
    """Return where to write a shard. The caller needs no lock: replacing a shard takes it, for `wait_seconds`."""
    store = open_store(place.location)
    kind = LocalShard if isinstance(store, LocalStore) else RemoteShard
    return kind(place, wait_seconds=wait_seconds, reporter=reporter)


class _Notes:
    """The note on a shard, which is there before the shard, and the seal, which goes before a shard is replaced."""

    def __init__(self, place: ShardPlace, store: LocalStore | ObjectStore) -> None:
        self._place = place
        self._store = store
        self._name: NoteName | None = None

    def write(self, note: ShardNote, mark: str) -> None:
        """Write the note on a file with this mark."""
        self._name = NoteName(self._place.ps_id, self._place.ps_num, run_digest(note.run, note.older), mark)
        self._store.write_small(self._path(str(self._name)), note_bytes(note))

    def keep(self, *, replaced: bool) -> Published:
        """Remove all other notes on the shard: they are about files that it replaced, or that never became visible."""
        name, self._name = self._name, None
        assert name is not None  # noqa: S101 - it was written before the shard became visible
        for other in note_names(self._store, self._place.version):
            if (other.ps_id, other.ps_num) == (self._place.ps_id, self._place.ps_num) and other != name:
                self._store.remove(self._path(str(other)))
        return Published(name, replaced)

    def drop(self, visible: Callable[[], str]) -> None:
        """Remove the note, unless the visible shard, of which `visible` gives the mark, is the one that it is about.

        A rename or a request that failed may have taken effect all the same.
        """
        name, self._name = self._name, None
        if name is not None:
            with suppress(EdlCkptError):
                if visible() != name.mark:
                    self._store.remove(self._path(str(name)))

    def retire_seal(self) -> None:
        """Take the seal of the version away; it stays among the notes, because it names the run of the other shards."""
        seal = seal_file(self._place.version)
        data = self._store.read_small(seal)
        if data is not None:
            check_schema(schema_at_head(data), self._store.path(seal))
            if self._store.read_small(self._path(EARLIER)) is None:
                self._store.write_small(self._path(EARLIER), data)
            prove_lock(self._place.location)
            self._store.remove(seal)

    def has_seal(self) -> bool:
        """Say whether the version has a seal."""
        folder, name = os.path.split(seal_file(self._place.version))
        return (
            name in self._store.names(folder)
            if isinstance(self._store, LocalStore)
            else (self._store.stat(f"{folder}/{name}") is not None)
        )

    def _path(self, name: str) -> str:
        return f"{notes_dir(self._place.version)}/{name}"


class LocalShard:
    """A shard that is written to a staging directory of a local disk."""

    def __init__(self, place: ShardPlace, *, wait_seconds: float, reporter: Reporter) -> None:
        store = open_store(place.location)
        assert isinstance(store, LocalStore)  # noqa: S101 - `open_shard` looked
        self._place = place
        self._store = store
        self._wait_seconds = wait_seconds
        self._reporter = reporter
        self._staging = Staging(store.root, _PURPOSE)
        self._notes = _Notes(place, store)
        self._stack = ExitStack()
        self._file: PreallocatedFile | None = None
        self._flusher: Flusher | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(made_directory(self._store.root))
        self._stack.enter_context(self._staging)
        self._stack.callback(self._notes.drop, self._visible_mark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def create(self, size_bytes: int) -> Sink:
        """Begin the shard in the staging directory, in a directory with the name of the version."""
        inherit_access(self._staging.root, self._staging.place)
        self._staging.check_space(size_bytes)
        with self._staging.place.enter(self._place.directory, make=True) as inside:
            self._file = inside.create(self._place.name, size_bytes)
        self._stack.callback(self._file.close)
        self._flusher = self._stack.enter_context(Flusher([self._file]))
        return self._file

    def written(self) -> None:
        """Begin the last flush."""
        if self._flusher is not None:
            self._flusher.all_written()

    def publish(self, note: ShardNote) -> Published:
        """Flush the shard, note it, and rename it to its place."""
        assert self._file is not None and self._flusher is not None  # noqa: S101, PT018 - made by `create`
        self.written()
        self._flusher.wait()
        self._file.close()
        with self._staging.place.enter(self._place.directory) as inside:
            found = inside.stat(self._place.name)
            inside.flush()
        assert found is not None  # noqa: S101 - the directory is ours alone
        mark = file_mark(found)
        if not self._is_taken() and self._publish_new(note, mark):
            return self._notes.keep(replaced=False)
        location = self._place.location
        with location_lock(location, _PURPOSE, wait_seconds=self._wait_seconds, reporter=self._reporter, create=True):
            self._place.check_alone()
            self._notes.retire_seal()
            self._notes.write(note, mark)
            prove_lock(location)
            self._replace()
            return self._notes.keep(replaced=True)

    def _is_taken(self) -> bool:
        """Say whether the shard's name is taken, or the version has a seal that its present files may have."""
        return self._notes.has_seal() or self._visible_mark() != ""

    def _visible_mark(self) -> str:
        """Return the mark of the file that has the shard's name now, '' when there is none."""
        directory = self._staging.root.find(self._place.directory)
        if directory is None:
            return ""
        with directory:
            found = directory.stat(self._place.name)
        return "" if found is None else file_mark(found)

    def _publish_new(self, note: ShardNote, mark: str) -> bool:
        """Rename the shard to a name that must be free; False when another process took it a moment ago."""
        self._notes.write(note, mark)
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
        self._notes.drop(self._visible_mark)
        return False

    def _replace(self) -> None:
        """Rename the shard over the one that is there, whose access it keeps; the caller holds the lock."""
        name = self._place.name
        with (
            self._staging.root.enter(self._place.directory, make=True) as version,
            self._staging.place.enter(self._place.directory) as inside,
        ):
            if version.has_file(name):
                self._keep_access(version, inside)
            inside.rename(name, version, name)
            version.flush()
        self._staging.root.flush()

    def _keep_access(self, version: Directory, inside: Directory) -> None:
        path = inside.join(self._place.name)
        with storage_errors(path):
            old, new = (each.open_file(self._place.name, os.O_RDONLY) for each in (version, inside))
            try:
                lost = Access.of(old).give(new)
            finally:
                os.close(old)
                os.close(new)
        if lost:
            self._reporter.warn(f"{self._place.path}: this user cannot keep the {' and '.join(lost)} of the old shard")


class RemoteShard:
    """A shard that is one object: its bytes are uploaded, and it is visible, whole, once it is completed."""

    def __init__(self, place: ShardPlace, *, wait_seconds: float, reporter: Reporter) -> None:
        store = open_store(place.location)
        assert not isinstance(store, LocalStore)  # noqa: S101 - `open_shard` looked
        self._place = place
        self._store = store
        self._wait_seconds = wait_seconds
        self._reporter = reporter
        self._notes = _Notes(place, store)
        self._object: ObjectWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._object is not None and not self._object.completed:
            with suppress(EdlCkptError):
                self._object.abort()
        self._notes.drop(self._visible_mark)

    def create(self, size_bytes: int) -> Sink:
        """Begin the upload."""
        self._object = self._store.new_object(f"{self._place.directory}/{self._place.name}", size_bytes)
        self._object.begin()
        return self._object

    def written(self) -> None:
        """Do nothing: each part is uploaded when it is full."""

    def publish(self, note: ShardNote) -> Published:
        """Complete the upload on the condition that the name is free, else in the place of the object that is there."""
        assert self._object is not None  # noqa: S101 - made by `create`
        self._object.finish()
        mark = object_mark(self._object.write_id or None, self._object.size_bytes)
        if not self._is_taken():
            self._notes.write(note, mark)
            self._place.check_alone()
            try:
                self._object.complete()
            except RefusedError:  # another process took the name a moment ago
                self._notes.drop(self._visible_mark)
            else:
                return self._notes.keep(replaced=False)
        location = self._place.location
        with location_lock(location, _PURPOSE, wait_seconds=self._wait_seconds, reporter=self._reporter, create=True):
            self._place.check_alone()
            self._notes.retire_seal()
            self._notes.write(note, mark)
            prove_lock(location)
            self._object.complete(replace=True)
            return self._notes.keep(replaced=True)

    def _is_taken(self) -> bool:
        return self._notes.has_seal() or self._visible_mark() != ""

    def _visible_mark(self) -> str:
        """Return the mark of the object that has the shard's name now, '' when there is none."""
        found = self._store.stat(f"{self._place.directory}/{self._place.name}")
        return "" if found is None else object_mark(found.write_id, found.size_bytes)
