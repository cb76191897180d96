"""How a version becomes visible on storage without rename: uploaded, completed back to back, proved, sealed last.

Every operation that writes a version uses one `RemoteOutput` with one journal. Remote files appear one by one, each
whole. So all shards are first uploaded to the last byte, then completed together, then read back, and sealed at the
end. An orderly failure removes the shards that were completed, so that no reader finds a part of a version. After a
kill, the journal tells the next process which uploads and objects are ours. A resumable output keeps the uploads of
finished shards open; what an earlier run made visible is read back before it is sealed.

To replace a version, placeholder objects stand in its directory as long as both sets of shards are in it. ElasticDL
takes a directory for complete when it has as many entries as the first name says; with the placeholders there are
always more, so it never takes the mixture for a complete version.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, LockedError, RefusedError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.parallel import impatient, run_all, run_parallel
from edl_ckpt.core.base.words import counted, size
from edl_ckpt.core.commit.interface import (
    FinishedSink,
    LockedLocation,
    NewVersion,
    Prove,
    VersionOutput,
    Written,
)
from edl_ckpt.core.commit.journal import Journal, Note, parse_journal
from edl_ckpt.core.commit.publish.uploads import marked_uploads
from edl_ckpt.core.commit.sent_parts import SharedUpload, SharedUploads, TargetPart
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.sources.registry import completes
from edl_ckpt.core.state.annotate import Describe
from edl_ckpt.core.state.lock_proof import prove_lock, write_proved
from edl_ckpt.core.state.owner import format_owner, is_me, is_presumed_dead
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, resumable_stage, seal_file
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.state.shard_note import forget_notes
from edl_ckpt.core.state.signature import describe
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter, Sink, has_parts
from edl_ckpt.core.storage.parts import PART_MEMORY_BYTES, PartMemory

LOG: Final = logging.getLogger("edl_ckpt")
NOTED_BYTES: Final = 5 << 20
"""A shard of a copy that has so many bytes is noted in the journal as soon as it is uploaded."""
_COMPLETIONS: Final = 32
"""How many objects are begun, completed or dropped at a time."""


class RemoteOutput(VersionOutput):
    """A version that is written as objects, which become visible one by one after all of them were uploaded."""

    def __init__(self, store: ObjectStore, place: LockedLocation, new: NewVersion) -> None:
        super().__init__(place, new)
        self._store = store
        self._memory = PartMemory(PART_MEMORY_BYTES if new.memory_bytes is None else new.memory_bytes)
        self._stage = resumable_stage(new.key) if new.resumes else f"{STAGE_DIR}/{new_id()}"
        self._names: list[str] = []
        self._objects: dict[int, ObjectWriter] = {}
        """The objects that this run completes; not those that an earlier run made visible."""
        self._journal = Journal(new.number, new.name, loose=new.is_loose)
        """Names no shards until `create` has begun them."""
        self._is_listed = False
        """True when the journal on the storage lists our uploads, so that others can settle them."""
        self._decided = False

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all uploads, or take over those that an interrupted run had finished; list them in the journal."""
        self._names, old = self._new.names(len(sizes)), self._new.old_names
        if set(self._names) & set(old):
            raise RefusedError(
                "storage without rename cannot replace a version with one of the same shard count",
                path=self._store.path(self._name),
                hint="try: --output LOCATION",
            )
        wanted = dict(zip(self._names, sizes, strict=True))
        left, taken = self._look()
        earlier = self._earlier_journal(left, wanted)
        if earlier is None and left:  # it was settled, and its objects are gone
            taken = self._taken()
        if earlier is None and not old and (taken & set(self._names) if self._new.is_loose else taken):
            raise RefusedError("already exists; nothing was changed", path=self._store.path(self._name))
        write_ids = {} if earlier is None else self._take_over(earlier)
        fresh = [i for i in range(len(sizes)) if i not in self.resumed]
        for i in fresh:
            self._objects[i] = self._store.new_object(self._relative(i), sizes[i], self._memory)
        began = [self._relative(i) for i in fresh]
        with marked_uploads(self._store, began, self._new.purpose) if has_parts(self._store) else nullcontext():
            run_all(lambda i: self._objects[i].begin(), fresh, _COMPLETIONS)
            self._list_uploads(wanted, write_ids, old)
        finished = {i: FinishedSink(self._store.path(self._relative(i))) for i in self.resumed}
        return [finished.get(i) or self._objects[i] for i in range(len(sizes))]

    def _list_uploads(self, wanted: Mapping[str, int], write_ids: Mapping[str, str], old: tuple[str, ...]) -> None:
        """Write the journal, which lists all that has begun."""
        self._journal = replace(
            self._journal,
            owner=describe(self._new.purpose),
            sizes=wanted,
            source=self._new.resumes.source if self._new.resumes else "",
            finished={self._names[i]: note for i, note in self.resumed.items()},
            uploads={self._names[i]: item.upload_id for i, item in self._objects.items() if item.upload_id},
            write_ids={**write_ids} | {self._names[i]: item.write_id for i, item in self._objects.items()},
            old=old,
            markers=tuple(marker_names(len(old), len(wanted), secrets.token_hex(4)) if old else ()),
        )
        self._write_journal()
        self._is_listed = True

    def _look(self) -> tuple[bytes, set[str]]:
        """Return the journal of an interrupted run, and the names that are taken, once the lock is proved.

        The three requests go together: on far storage each of them takes as long as all.
        """
        looks: list[Callable[[], object]] = [self._place.check, self._left, self._taken]
        _, left, taken = run_parallel(lambda look: look(), looks, len(looks))
        assert isinstance(left, bytes)  # noqa: S101 - for the types
        assert isinstance(taken, set)  # noqa: S101
        return left, taken

    def _left(self) -> bytes:
        """Return the journal that an interrupted run left; b'' for none."""
        return (self._store.read_small(f"{self._stage}/{JOURNAL}") if self._new.resumes else None) or b""

    def _taken(self) -> set[str]:
        return {*self._store.names("" if self._new.is_loose else self._name)}

    def _relative(self, shard: int) -> str:
        return self._journal.path(self._names[shard])

    def _write_journal(self) -> None:
        self._place.check()
        self._store.write_small(f"{self._stage}/{JOURNAL}", self._journal.to_bytes())

    def _earlier_journal(self, left: bytes, wanted: Mapping[str, int]) -> Journal | None:
        """Return the journal of an interrupted run of the same work; what another work left is dropped."""
        if self._new.resumes is None:
            return None
        try:
            journal = parse_journal(left, self._store.path(f"{self._stage}/{JOURNAL}"))
        except ValueError:  # there is none, or it says nothing that can be relied on
            return None
        if not self._place.is_exclusive:
            found = self._store.stat(f"{self._stage}/{JOURNAL}")
            age = found.age_seconds if found else 0.0
            if not is_me(journal.owner) and not is_presumed_dead(journal.owner, age):
                raise LockedError(f"{format_owner(journal.owner)} is writing there", path=self._store.path(self._name))
        same = (journal.directory, journal.sizes) == (self._name, wanted)
        if same and journal.source == self._new.resumes.source:
            return journal
        settle_remote(self._store, self._stage, journal)
        return None

    def _take_over(self, earlier: Journal) -> dict[str, str]:
        """Take over the finished shards of an interrupted run, and drop its other uploads; return their write ids."""
        assert self._new.resumes is not None  # noqa: S101 - or there is no earlier journal
        write_ids: dict[str, str] = {}
        for i, name in enumerate(self._names):
            note, upload_id = earlier.finished.get(name), earlier.uploads.get(name, "")
            write_id = earlier.write_ids.get(name, "")
            if note is not None and self._new.resumes.accepts(i, note):
                item = None
                visible = is_visible(self._store, self._relative(i), write_id)
                if not visible and upload_id:
                    item = self._store.resume_object(self._relative(i), earlier.sizes[name], upload_id, write_id)
                if item is not None:
                    self._objects[i] = item
                if visible or item is not None:
                    self.resumed[i], write_ids[name] = note, write_id
                    continue
            if upload_id:
                self._store.abort_upload(self._relative(i), upload_id)
        return write_ids

    def finish(self, shard: int, note: Note) -> None:
        """Make sure that a shard is uploaded, and note in the journal that it is.

        The notes of small shards can wait until `publish`: they are copied again as fast as they are noted.
        """
        item = self._objects[shard]
        item.finish()
        with self._lock:
            self._journal = replace(self._journal, finished={**self._journal.finished, self._names[shard]: note})
            if item.size_bytes >= NOTED_BYTES:
                self._write_journal()

    def share(self, *, apart: bool = False) -> SharedUploads:  # noqa: ARG002 - each upload has an end of its own
        """Return the open uploads as a value, for other processes that send their parts."""
        if not has_parts(self._store):
            raise UnsupportedError("a cluster cannot write to this storage", path=self._store.path(self._name))
        opened = {
            i: SharedUpload(self._relative(i), item.size_bytes, item.upload_id)
            for i, item in self._objects.items()
            if i not in self.resumed and item.upload_id
        }
        return SharedUploads(self._store.location, opened, self._store.properties.part_bytes)

    def take(self, parts: Iterable[TargetPart]) -> None:
        """Take the parts of uploads that other processes have sent."""
        for target, part in parts:
            self._objects[target].take([part])

    def publish(self, prove: Prove, describe: Describe | None = None) -> Seal:
        """Complete all objects, prove them, and only then remove the shards that they replace."""
        run_all(lambda item: item.finish(), list(self._objects.values()), _COMPLETIONS)
        self._memory.close()
        if self._memory.spooled_bytes:
            LOG.info(
                "%s: %s went by the local disk, because open parts took all of their %s of memory",
                self._name,
                size(self._memory.spooled_bytes),
                size(self._memory.limit_bytes),
            )
        if self._new.resumes and any(item.size_bytes < NOTED_BYTES for item in self._objects.values()):
            self._write_journal()  # so that a later run knows the small shards when they are visible
        self._place.check()  # who has the lock now would have aborted our uploads: then nothing below takes effect
        old_seal = seal_file(self._new.key)
        if not self._new.replaces and self._store.stat(old_seal) is not None:  # of another version that had this number
            self._store.remove(old_seal)
        for name in self._journal.markers:
            self._store.write_small(f"{self._name}/{name}", b"")
        for group in self._in_order():
            run_all(lambda o: o.complete(), group, _COMPLETIONS)
        seal = prove(self.written())
        if self._new.replaces and self._new.contents is not None:
            self._new.contents.check_unchanged({*self._journal.sizes, *self._journal.markers})
        self._place.check()
        self._journal = replace(self._journal, seal=json.loads(seal_bytes(seal)))
        with COMMIT:
            self._decided = True  # from here on the journal on the storage decides, here or in `recover`
            if self._new.replaces:
                self._write_journal()
            settle_remote(self._store, self._stage, self._journal)
            if self._new.replaces:
                forget_notes(self._store, [self._new.number])
        if describe is not None:
            describe(None)
        return seal

    def _in_order(self) -> list[list[ObjectWriter]]:
        """Return the objects as they appear; what makes a version of another system whole is last."""
        last = [i for i in self._objects if completes(self._names[i])]
        rest = [i for i in self._objects if i not in last]
        last = last or (rest[:1] if self._new.copies else [])
        return [[self._objects[i] for i in group] for group in ([i for i in rest if i not in last], last)]

    def written(self) -> Written:
        """Return the new shards, as the proof reads them."""
        directory = self._store.path("" if self._new.is_loose else self._name).rstrip("/")
        sizes = list(self._journal.sizes.values())
        version = self._new.written(self._store.location, directory, sizes)
        # Objects completed by an earlier run have not been verified in this one.
        verified = len(self._objects) == len(sizes) and all(item.verified for item in self._objects.values())
        return Written(version, staged=False, verified=verified)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._memory.close()
        if not self._decided:
            with impatient(error):
                self._undo(error)

    def _undo(self, error: BaseException | None) -> None:
        """Drop what was not decided, as far as the storage answers; `recover` does the rest."""
        try:
            self._place.check()
        except EdlCkptError:  # another process has the lock, or that is not known
            self._leave()
            return
        kept = [] if self._new.resumes is None or isinstance(error, CorruptError) else self._to_keep()
        dropped = [item for i, item in self._objects.items() if i not in kept]
        for group in reversed(self._in_order()):
            run_all(self._drop, [item for item in group if item in dropped], _COMPLETIONS)
        if not self._journal.sizes:
            return
        with suppress(EdlCkptError):
            if not kept:
                settle_remote(self._store, self._stage, self._journal)
                return
            names = {self._names[i] for i in kept}
            self._journal = replace(
                self._journal,
                finished={name: note for name, note in self._journal.finished.items() if name in names},
                uploads={name: upload for name, upload in self._journal.uploads.items() if name in names},
            )
            self._write_journal()

    def _to_keep(self) -> list[int]:
        """Return the finished shards that a later run can take over: open uploads, and what an earlier run completed.

        Objects that this run completed are not among them: no reader may find a part of a version.
        """
        finished = [i for i, name in enumerate(self._names) if name in self._journal.finished]
        noted = finished if self._journal.sizes else list(self.resumed)
        waiting = {i for i, item in self._objects.items() if item.upload_id and not item.completed}
        return [i for i in noted if i in waiting or i not in self._objects]

    def _drop(self, item: ObjectWriter) -> None:
        with suppress(EdlCkptError):
            self._discard(item)

    def _discard(self, item: ObjectWriter) -> None:
        """Abort an upload, or remove the object that it became, unless another process has replaced that."""
        relative = item.path.removeprefix(self._store.path(""))
        if not item.completed:
            item.abort()
        elif not item.write_id or is_visible(self._store, relative, item.write_id):
            self._store.remove(relative)

    def _leave(self) -> None:
        """End a run that has lost the lock: drop what is surely its own, and nothing that the new holder may use.

        The new holder has settled what our journal lists, or will. A copy's uploads may be resumed by it, and a version
        all of whose shards are visible stays, as after a kill.
        """
        if self._is_listed and (self._new.resumes is not None or not all(o.write_id for o in self._objects.values())):
            return
        with suppress(EdlCkptError):  # then the journal stays, and `recover` goes on
            whole = not self._new.replaces and _all_visible(self._store, self._journal)
            for item in () if whole else self._objects.values():
                self._discard(item)
            if self._journal.sizes:
                self._store.remove_many([f"{self._name}/{name}" for name in self._journal.markers])
                self._store.remove(f"{self._stage}/{JOURNAL}")


def marker_names(old: int, new: int, unique: str) -> list[str]:
    """Return names that ElasticDL reads as "of 0", so many that a directory with both sets has more than either wants.

    A part of each name is unique, so that a process that wakes up late never removes those of another.

    >>> marker_names(4, 6, "0a1b")
    ['resharding-0a1b-0.0', 'resharding-0a1b-0.1', 'resharding-0a1b-0.2']
    """
    return [f"resharding-{unique}-0.{k}" for k in range(max(new - old, 0) + 1)]


def is_visible(store: ObjectStore, relative: str, write_id: str) -> bool:
    """Say whether an object is visible that was written under a write id."""
    found = store.stat(relative) if write_id else None
    return found is not None and found.write_id == write_id


def settle_remote(store: ObjectStore, stage: str, journal: Journal) -> str:
    """Finish a commit as its journal says, or undo it; return what was done. Every step may be repeated.

    A commit that was proved is finished: the old shards are removed, the seal is written, the placeholders go last. One
    that was not proved is undone: its uploads are aborted, and its own objects are removed. One set of shards is only
    removed when the other one is complete; if neither is, RefusedError, and nothing is changed. A new version all of
    whose shards are visible stays: a job may rely on it by now. A process that was stopped may write its journal again
    after another one has settled it; then none of its objects are there, and only the journal goes.
    """
    is_sealed_last = journal.seal is not None and not journal.old
    visible = is_sealed_last or _all_visible(store, journal)
    if journal.seal is not None and visible:
        if journal.old:
            prove_lock(store.location)
            store.remove_many(list(map(journal.path, journal.old)))
        seal = json.dumps(journal.seal, ensure_ascii=False) + "\n"
        write_proved(store, seal_file(journal.key), name_bytes(seal))  # it ends with a proof of the lock
        done = f"finished the replacement of version {journal.key}; the new version is in place"
    elif not journal.old and visible:
        prove_lock(store.location)
        done = f"version {journal.key} is complete but not sealed; to seal it: edl-ckpt verify --seal"
    else:
        done = _undo(store, journal)
        prove_lock(store.location)
    store.remove_many(list(map(journal.path, journal.markers)))
    store.remove(f"{stage}/{JOURNAL}")
    return done


def _undo(store: ObjectStore, journal: Journal) -> str:
    ours = _own_objects(store, journal)
    if ours:
        _check_complete(store, journal)
    prove_lock(store.location)
    aborted = [store.abort_upload(journal.path(name), each) for name, each in journal.uploads.items()]
    stay = "" if all(aborted) else f"; this service cannot abort {counted(aborted.count(False), 'upload')} of it"
    for relative in ours or _own_objects(store, journal):  # an upload may have been completed until it was aborted
        store.remove(relative)
    if journal.old:
        return f"rolled back the replacement of version {journal.key}; the old version is in place{stay}"
    if journal.source:
        return f"discarded {journal.in_words('the')}{stay}"
    return f"removed the unfinished version {journal.key}{stay}"


def _own_objects(store: ObjectStore, journal: Journal) -> list[str]:
    """Return the visible objects that a commit wrote.

    Without write ids: a replacement holds the lock, so objects with the new names are its own.
    """
    found: list[str] = []
    for name, write_id in sorted(journal.write_ids.items(), key=lambda item: not completes(item[0])):
        relative = journal.path(name)
        if is_visible(store, relative, write_id) if write_id else journal.old and store.stat(relative) is not None:
            found.append(relative)
    return found


def _check_complete(store: ObjectStore, journal: Journal) -> None:
    """Raise RefusedError unless all replaced shards are visible."""
    for name in journal.old:
        if store.stat(journal.path(name)) is None:
            raise RefusedError(
                f"{name} is missing or has changed; nothing was changed",
                path=store.path(journal.directory),
                hint="neither the old version nor the new one is complete; inspect both before you delete a file",
            )


def _all_visible(store: ObjectStore, journal: Journal) -> bool:
    """Say whether all shards that a journal names are visible, each the one that was uploaded."""
    for name, size_bytes in journal.sizes.items():
        found = store.stat(journal.path(name))
        if found is None or found.size_bytes != size_bytes or found.write_id not in {None, journal.write_ids.get(name)}:
            return False
    return bool(journal.sizes)
