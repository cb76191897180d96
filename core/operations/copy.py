"""Copying versions to another location, byte for byte: checked while they are read, proved when they are written.

Every chunk of every shard is summed as it is read. A sealed source must have the sums of its seal; what arrived must
have the sums of what was read, and the fingerprint of the seal where there is one. Shards that are whole are written
down, so that an interrupted copy goes on where it stopped. What is known of a version (metrics, tags, note) goes with
it, and what was copied is sealed.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.checkpoint.fingerprint import fingerprint_checkpoint
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.checkpoint.sealing import batches, checksum, cut, make_seal, rereads_correctly, sums_of
from edl_ckpt.core.commit.interface import written_version
from edl_ckpt.core.commit.local import Staging
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.commit.remote import drop_uploads, is_visible
from edl_ckpt.core.errors import CorruptError, EdlCkptError, LockedError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format.model import Listing, State, Version
from edl_ckpt.core.format.names import SINGLE_FILE
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.annotate import copy_metadata
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.owner import describe, format_owner, is_me, is_presumed_dead
from edl_ckpt.core.state.paths import PROGRESS, STAGE_DIR, seal_file
from edl_ckpt.core.state.seal import (
    Chunk,
    Seal,
    SealedShard,
    base_name,
    differing_sizes,
    now_text,
    read_seal,
    seal_bytes,
)
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile, replace_file
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter, RangeReader, Sink

PROGRESS_SCHEMA: Final = "edl-ckpt/progress/1"


@dataclass(frozen=True, slots=True)
class CopyEntry:
    """A version in a plan: `why` it is skipped or refused, '' where it is to be copied."""

    version: Version
    to: str
    skipped: bool = False
    refused: bool = False
    why: str = ""
    there: Version | None = None
    """A version that looks the same and is not sealed: sealed, if it is the same, and refused, if it is not."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is to be copied to a location, and what is there already."""

    target: Location
    entries: tuple[CopyEntry, ...]
    warnings: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of what is to be copied."""
        return sum(e.version.size_bytes for e in self.entries if not (e.skipped or e.refused))


@dataclass(frozen=True, slots=True)
class CopiedVersion:
    """A version that was copied, or was there already."""

    ref: str
    to: str
    size_bytes: int
    fingerprint: str
    skipped: bool
    resumed_bytes: int = 0
    """Of shards that an interrupted copy had brought already."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a copy did, and what it could not do and why."""

    copied: tuple[CopiedVersion, ...]
    bytes_copied: int
    seconds: float
    failed: tuple[tuple[str, EdlCkptError], ...] = ()


def plan_copy(
    versions: Sequence[Version],
    target: LocationLike,
) -> CopyPlan:
    """Return what copying versions to a location means; nothing is read but listings and seals.

    A version that is there with the same content is skipped. Raises UsageError for a target that is where they are.
    """
    where = Location.of(target)
    for version in versions:
        if version.location.is_same_place(where):
            raise UsageError("a copy goes to another location", path=where.url)
    try:
        held = list_versions(where)
    except NotFoundError:
        if where.local_path is not None and os.path.lexists(where.local_path):
            raise NotFoundError("not a directory", path=where.url) from None
        held = Listing(where, ())
    store = open_store(where)
    warnings = [
        f"{v.ref}: {v.state}, so not copied" for v in versions if v.state is not State.COMPLETE and len(versions) > 1
    ]
    wanted = [v for v in versions if v.state is State.COMPLETE or len(versions) == 1]
    entries = (_entry(v, where, [h for h in held.versions if h.version == v.version], store) for v in wanted)
    return CopyPlan(where, tuple(entries), tuple(warnings))


def _entry(version: Version, target: Location, there: Sequence[Version], store: Any) -> CopyEntry:
    to = f"{target}@{version.version}"
    if version.layout is SINGLE_FILE:
        return CopyEntry(version, to, refused=True, why="one file without shards: reshard it with --output")
    if not there:
        return CopyEntry(version, to)
    held = there[0]
    if held.state is not State.COMPLETE or not held.fingerprint:
        if _has_progress(store, version.version):
            return CopyEntry(version, to)
        if _sizes(held) == _sizes(version) and held.state is State.COMPLETE and not held.seal_fault:
            return CopyEntry(version, to, why="is there, not sealed: will be compared", there=held)
        what = "it is not sealed there" if held.state is State.COMPLETE else f"it is {held.state} there"
        return CopyEntry(version, to, refused=True, why=f"exists there already, and {what}: look at it")
    if version.fingerprint == held.fingerprint:
        return CopyEntry(version, to, skipped=True, why="is there, sealed with the same fingerprint")
    seal = read_seal(store, version.version)
    if not version.fingerprint and seal is not None and seal.origin == identity(version):
        return CopyEntry(version, to, skipped=True, why="was copied from these very files")
    return CopyEntry(version, to, refused=True, why="exists there already with other content")


def _sizes(version: Version) -> dict[str, int]:
    return {base_name(shard.path): shard.size_bytes for shard in version.shards}


def _has_progress(store: Any, number: int) -> bool:
    return store.read_small(f"{STAGE_DIR}/{_stage_name(number)}/{PROGRESS}") is not None


def _stage_name(number: int) -> str:
    return f"copy-{number}"


def identity(version: Version) -> str:
    """Return a digest of what a listing tells of a version's files: names, sizes and times."""
    files = [(base_name(s.path), s.size_bytes, s.modified) for s in version.shards]
    return hashlib.blake2b(repr(files).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def execute_copy(
    plan: CopyPlan,
    *,
    workers: int | None = None,
    reporter: Reporter = SILENT,
    wait_seconds: float = LOCK_WAIT_SECONDS,
) -> CopyResult:
    """Copy what a plan copies, each version whole or not at all, and what is known of each.

    With one version, errors are raised; with several, the others are copied all the same and errors are in the result.
    """
    begin = time.perf_counter()
    done: list[CopiedVersion] = []
    failed: list[tuple[str, EdlCkptError]] = []
    moved = 0
    for entry in plan.entries:
        try:
            if entry.refused:
                raise RefusedError(entry.why, path=entry.to, hint="nothing was changed")
            if entry.skipped:
                text = entry.version.fingerprint or _fingerprint_there(entry, plan.target)
                done.append(CopiedVersion(entry.version.ref, entry.to, entry.version.size_bytes, text, skipped=True))
            elif entry.there is not None:
                done.append(_adopt(entry, entry.there, workers, reporter))
            else:
                copied = _Copy(entry.version, plan.target, workers, reporter).run()
                moved += copied.size_bytes - copied.resumed_bytes
                done.append(copied)
            with location_lock(plan.target, "copy", wait_seconds=wait_seconds, reporter=reporter):
                copy_metadata(entry.version, plan.target, reporter=reporter)
        except EdlCkptError as error:
            if len(plan.entries) == 1:
                raise
            failed.append((entry.version.ref, error))
    return CopyResult(tuple(done), moved, time.perf_counter() - begin, tuple(failed))


def _adopt(
    entry: CopyEntry,
    there: Version,
    workers: int | None,
    reporter: Reporter,
) -> CopiedVersion:
    """Seal a version that is there already, as a copy that was killed at its end left it, if it is the same."""
    workers = default_workers(remote=True) if workers is None else workers
    with (
        open_checkpoint(entry.version) as source,
        open_checkpoint(there) as held,
    ):
        one, two = (make_seal(c, "", workers=workers, reporter=reporter) for c in (source, held))
        if one.shards != two.shards:
            raise RefusedError("exists there already with other content", path=entry.to, hint="nothing was changed")
        reporter.start("proving", there.size_bytes)
        text = fingerprint_checkpoint(held, workers=workers, reporter=reporter).text
        seal = replace(two, fingerprint=text, origin=identity(entry.version))
        source.check_unchanged()
        held.check_unchanged()
    open_store(there.location).write_small(seal_file(there.version), seal_bytes(seal))
    return CopiedVersion(entry.version.ref, entry.to, there.size_bytes, text, skipped=True)


def _fingerprint_there(entry: CopyEntry, target: Location) -> str:
    seal = read_seal(open_store(target), entry.version.version)
    return seal.fingerprint if seal is not None else ""


@dataclass(slots=True)
class _Shard:
    """A shard on its way: its chunks, and once they are read, their sums."""

    index: int
    name: str
    size_bytes: int
    reader: RangeReader
    chunks: list[Chunk]
    sums: list[str]
    open_batches: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sealed(self) -> SealedShard:
        """Return the shard as the copy's seal has it."""
        chunks = tuple(chunk._replace(sum=text) for chunk, text in zip(self.chunks, self.sums, strict=True))
        return SealedShard(self.name, self.size_bytes, chunks)


class _Target(Protocol):
    """Where a copy goes: shards that are whole are remembered, all of them appear at the end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def resume(self, shards: Sequence[_Shard]) -> list[_Shard]:
        """Return the shards that are still to be brought; those that are there already get their sums."""
        ...

    def sink(self, shard: _Shard) -> Sink:
        """Return where a shard is written."""
        ...

    def finish(self, shard: _Shard) -> None:
        """Make a shard safe, and remember it."""
        ...

    def publish(self, seal: Callable[[Checkpoint | None, bool], Seal]) -> None:
        """Make all visible, and seal them."""
        ...


class _Copy:
    """The copy of one version."""

    def __init__(
        self,
        version: Version,
        target: Location,
        workers: int | None,
        reporter: Reporter,
    ) -> None:
        self.version = version
        self.target = target
        self.reporter = reporter
        remote = any(open_store(place).properties.round_trips for place in (version.location, target))
        self.workers = default_workers(remote=remote) if workers is None else workers
        store = open_store(version.location)
        seal = read_seal(store, version.version) if version.fingerprint else None
        self.seal = seal if seal is not None and not differing_sizes(seal, version) else None

    def run(self) -> CopiedVersion:
        """Read, write, prove, publish."""
        with open_checkpoint(self.version) as source, self._open_target() as target:
            shards = self._shards(source)
            todo = target.resume(shards)
            waiting = {shard.index for shard in todo}
            self.reporter.start("copying", sum(shard.size_bytes for shard in todo))
            for _ in run_parallel(lambda t: self._move(target, *t), list(self._tasks(todo)), self.workers):
                pass
            for shard in todo:
                if not shard.chunks:
                    target.finish(shard)
            source.check_unchanged()
            made: list[Seal] = []

            def seal(written: Checkpoint | None, verified: bool) -> Seal:  # noqa: FBT001 - what an upload's sums told
                made.append(self._prove(shards, source, written, verified=verified))
                return made[0]

            target.publish(seal)
        resumed = sum(shard.size_bytes for shard in shards if shard.index not in waiting)
        to = f"{self.target}@{self.version.version}"
        return CopiedVersion(self.version.ref, to, self.version.size_bytes, made[0].fingerprint, False, resumed)

    def _open_target(self) -> _Target:
        store = open_store(self.target)
        if isinstance(store, LocalStore):
            return _LocalTarget(store, self.version)
        return _RemoteTarget(store, self.version)

    def _shards(self, source: Checkpoint) -> list[_Shard]:
        sealed = {} if self.seal is None else {shard.name: shard for shard in self.seal.shards}
        shards: list[_Shard] = []
        for index, shard in enumerate(source.shards):
            name, reader = base_name(shard.file.path), source.reader(shard)
            if reader.size_bytes != shard.file.size_bytes:
                raise LockedError("still being written", path=shard.file.path)
            chunks = list(sealed[name].chunks) if name in sealed else cut(shard, reader)
            shards.append(_Shard(index, name, reader.size_bytes, reader, chunks, [""] * len(chunks)))
        return shards

    @staticmethod
    def _tasks(shards: Iterable[_Shard]) -> Iterator[tuple[_Shard, int, list[Chunk]]]:
        for shard in shards:
            groups = list(batches(shard.chunks))
            shard.open_batches = len(groups)
            first = 0
            for group in groups:
                yield shard, first, group
                first += len(group)

    def _move(self, target: _Target, shard: _Shard, first: int, group: list[Chunk]) -> None:
        """Bring chunks that follow each other: read them once, sum them, compare them with the seal, write them."""
        start, end = group[0].start, group[-1].end
        data = np.empty(end - start, np.uint8)
        shard.reader.read_into(start, data.data)
        for number, chunk in enumerate(group):
            inside = data[chunk.start - start : chunk.end - start]
            total = checksum(inside.data)
            if self.seal is not None and total != chunk.sum and rereads_correctly(shard.reader, chunk):
                shard.reader.read_into(chunk.start, inside.data)
                total = checksum(inside.data)
            if self.seal is not None and total != chunk.sum:
                what = f"{chunk.kind} {chunk.name!r}" if chunk.kind else "the header"
                raise CorruptError(
                    f"chunk {chunk.number} of {what} is not what was sealed",
                    code="checksum-mismatch",
                    path=shard.reader.path,
                    offset=chunk.start,
                    hint=f"try: edl-ckpt verify {self.version.ref} --deep",
                )
            shard.sums[first + number] = total
        target.sink(shard).write(start, data.data)
        self.reporter.advance(end - start)
        with shard.lock:
            shard.open_batches -= 1
            last = shard.open_batches == 0
        if last:
            target.finish(shard)

    def _prove(
        self, shards: Sequence[_Shard], source: Checkpoint, written: Checkpoint | None, *, verified: bool
    ) -> Seal:
        """Return the seal of what was written, having compared it with what was read; `written` is None if it is not.

        `verified` says that the storage has told the sums of what it got.
        """
        sealed = tuple(shard.sealed() for shard in shards)
        if written is not None and not verified:
            self._compare(sealed, written)
        text = self.seal.fingerprint if self.seal is not None and verified else ""
        if not text:
            near = written if written is not None and not _is_far(written) else None
            chosen = near or (written if _is_far(source) else source) or source
            self.reporter.start("proving", self.version.size_bytes)
            text = fingerprint_checkpoint(chosen, workers=self.workers, reporter=self.reporter).text
        if self.seal is not None and text != self.seal.fingerprint:
            raise EdlCkptError(
                "the fingerprint of what was copied is not that of its seal; nothing was published",
                path=self.version.path,
                hint=f"try: edl-ckpt verify {self.version.ref} --deep",
            )
        return Seal(self.version.version, text, sealed, now_text(), identity(self.version))

    def _compare(self, sealed: Sequence[SealedShard], written: Checkpoint) -> None:
        """Read back what was written; EdlCkptError when it is not what was read."""
        readers = {base_name(shard.file.path): written.reader(shard) for shard in written.shards}
        self.reporter.start("reading back", self.version.size_bytes)
        for shard in sealed:
            (now,) = sums_of([(readers[shard.name], shard.chunks)], workers=self.workers, reporter=self.reporter)
            wrong = next((held for held, found in zip(shard.chunks, now, strict=True) if held != found), None)
            if wrong is not None:
                raise EdlCkptError(
                    "what was written is not what was read; nothing was published",
                    path=readers[shard.name].path,
                    offset=wrong.start,
                    hint="suspect the memory or the disk of this machine, or the network",
                )


def _is_far(checkpoint: Checkpoint) -> bool:
    """Say whether reading a checkpoint takes a request for each range."""
    return open_store(checkpoint.version.location).properties.round_trips


class _LocalTarget:
    """A copy that is staged on a local disk; whole shards stay there when it is interrupted."""

    def __init__(self, store: LocalStore, version: Version) -> None:
        self._version = version
        self._location = store.location
        self._staging = Staging(store.root, "copy", name=_stage_name(version.version))
        self._directory = os.path.join(self._staging.path, version.layout.version_dir(version.version))
        self._progress = os.path.join(self._staging.path, PROGRESS)
        self._done: dict[str, list[str]] = {}
        self._files: dict[str, PreallocatedFile] = {}
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._published = False
        self._doubted = False
        """True while what is staged is being proved: if that fails, it is of no use to a later copy."""

    def __enter__(self) -> Self:
        self._stack.enter_context(self._staging)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            with suppress(EdlCkptError):
                file.close()
        useless = self._published or self._doubted or isinstance(error, CorruptError)
        self._staging.keep = os.path.exists(self._progress) and not useless
        self._stack.__exit__(kind, error, trace)

    def _path(self, shard: _Shard) -> str:
        return os.path.join(self._directory, shard.name)

    def resume(self, shards: Sequence[_Shard]) -> list[_Shard]:
        """Take what an interrupted copy of the same files left; the proof will read it as it reads the rest."""
        held = self._read_progress()
        for shard in shards:
            sums = held.get(shard.name)
            whole = sums is not None and len(sums) == len(shard.chunks) and os.path.exists(self._path(shard))
            if whole and sums is not None and os.stat(self._path(shard)).st_size == shard.size_bytes:
                shard.sums, self._done[shard.name] = sums, sums
        if not self._done:
            self._staging.clear()
            self._staging.directory(os.path.basename(self._directory))
        todo = [shard for shard in shards if shard.name not in self._done]
        self._staging.check_space(sum(shard.size_bytes for shard in todo))
        for shard in todo:
            with storage_errors(self._path(shard)), suppress(FileNotFoundError):
                os.unlink(self._path(shard))
            self._files[shard.name] = PreallocatedFile(self._path(shard), shard.size_bytes)
        return todo

    def _read_progress(self) -> dict[str, list[str]]:
        try:
            with open(self._progress, encoding="utf-8") as file:
                document = json.load(file)
            if document["schema"] != PROGRESS_SCHEMA or document["source"] != identity(self._version):
                return {}
            return {str(name): [str(s) for s in sums] for name, sums in document["shards"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def sink(self, shard: _Shard) -> PreallocatedFile:
        """Return the staged file of a shard."""
        return self._files[shard.name]

    def finish(self, shard: _Shard) -> None:
        """Bring a shard to the disk, then write down that it is there."""
        self._files[shard.name].flush()
        with self._lock:
            self._done[shard.name] = shard.sums
            document = {"schema": PROGRESS_SCHEMA, "source": identity(self._version), "shards": self._done}
            replace_file(self._progress, json.dumps(document).encode())

    def publish(self, seal: Callable[[Checkpoint | None, bool], Seal]) -> None:
        """Prove what is staged, then rename."""
        for file in self._files.values():
            file.close()
        sizes = [shard.size_bytes for shard in self._version.shards]
        number = self._version.version
        staged = written_version(self._location, self._directory, self._version.layout, number, sizes)
        self._doubted = True
        try:
            with open_checkpoint(staged, staged=True) as written:
                made = seal(written, False)
        except CorruptError as error:
            raise EdlCkptError(
                f"what was written is not what was read ({error.message}); nothing was published",
                path=error.path,
                offset=error.offset,
                hint="suspect the memory or the disk of this machine",
            ) from error
        self._doubted = False
        with storage_errors(self._progress), suppress(FileNotFoundError):
            os.unlink(self._progress)  # from here on there is nothing to go on with
        self._staging.publish(self._directory, number, seal_bytes(made))
        self._published = True


class _RemoteTarget:
    """A copy to storage without rename; uploads of whole shards stay open when it is interrupted."""

    def __init__(self, store: ObjectStore, version: Version) -> None:
        self._store = store
        self._version = version
        self._folder = version.layout.version_dir(version.version)
        self._stage = f"{STAGE_DIR}/{_stage_name(version.version)}"
        self._objects: dict[str, ObjectWriter] = {}
        self._visible: set[str] = set()
        self._open: dict[str, str] = {}
        self._all: dict[str, dict[str, Any]] = {}
        self._done: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._published:
            return
        with suppress(EdlCkptError):
            if isinstance(error, CorruptError):  # of the source: no later copy goes on with it
                self._done.clear()
            for name, item in self._objects.items():
                if item.completed:  # nobody is to see a part of a version
                    self._done.pop(name, None)
                    self._store.remove(f"{self._folder}/{name}")
                elif name not in self._done:
                    item.abort()
            if self._done:
                self._write_progress(())
            else:
                self._store.remove(f"{self._stage}/{PROGRESS}")

    def resume(self, shards: Sequence[_Shard]) -> list[_Shard]:
        """Take over the uploads that an interrupted copy of the same files left open."""
        held = self._read_progress()
        todo: list[_Shard] = []
        for shard in shards:
            record = held.get(shard.name)
            relative = f"{self._folder}/{shard.name}"
            if record is not None and len(record.get("sums", ())) == len(shard.chunks):
                if is_visible(self._store, {**record, "path": relative}):
                    self._visible.add(shard.name)
                item = None
                if shard.name not in self._visible and record.get("upload_id"):
                    item = self._store.resume_object(relative, shard.size_bytes, record)
                if item is not None or shard.name in self._visible:
                    shard.sums, self._done[shard.name] = record["sums"], record
                    if item is not None:
                        self._objects[shard.name] = item
                    continue
            self._objects[shard.name] = self._store.new_object(relative, shard.size_bytes)
            todo.append(shard)
        uploads = list(run_parallel(lambda s: self._objects[s.name].begin(), todo, 16))
        self._open = {shard.name: upload for shard, upload in zip(todo, uploads, strict=True) if upload}
        self._write_progress(self._open)
        return todo

    def _read_progress(self) -> dict[str, Any]:
        data = self._store.read_small(f"{self._stage}/{PROGRESS}")
        try:
            document = json.loads(data or b"{}")
            owner = document.get("owner", {})
            shards = dict(document.get("shards", {}))
            same = document.get("source") == identity(self._version)
        except (ValueError, AttributeError, TypeError):
            return {}
        found = self._store.stat(f"{self._stage}/{PROGRESS}") if owner else None
        if found is not None and not is_presumed_dead(owner, found.age_seconds) and not is_me(owner):
            raise LockedError(f"being copied by {format_owner(owner)}", path=self._store.path(self._folder))
        drop_uploads(self._store, document, whole=not same)  # of other files, or cut short
        return shards if same else {}

    def _write_progress(self, still_open: Iterable[str], more: Mapping[str, Any] | None = None) -> None:
        document = {
            "schema": PROGRESS_SCHEMA,
            "owner": describe("copy"),
            "source": identity(self._version),
            "folder": self._folder,
            "shards": {**self._done, **(more or {})},
            "open": {name: self._open[name] for name in still_open if name not in self._done},
        }
        self._store.write_small(f"{self._stage}/{PROGRESS}", json.dumps(document).encode())

    def sink(self, shard: _Shard) -> ObjectWriter:
        """Return the object of a shard."""
        return self._objects[shard.name]

    def finish(self, shard: _Shard) -> None:
        """Make sure that a shard is uploaded, and write down how it is found again."""
        item = self._objects[shard.name]
        item.finish()
        record = {
            "path": f"{self._folder}/{shard.name}",
            "upload_id": item.upload_id,
            "write_id": item.write_id,
            "sums": shard.sums,
        }
        with self._lock:
            self._all[shard.name] = record
            if record["upload_id"]:  # an object of one part is in memory until it is completed
                self._done[shard.name] = record
                self._write_progress(self._open)

    def publish(self, seal: Callable[[Checkpoint | None, bool], Seal]) -> None:
        """Complete all back to back, prove them, and seal them last."""
        one_part = {name: record for name, record in self._all.items() if name not in self._done}
        if any(record["write_id"] for record in one_part.values()):  # so that what appears is known for ours
            self._write_progress((), one_part)
        self._store.remove(seal_file(self._version.version))  # of a version that had this number once
        for _ in run_parallel(lambda o: o.complete(), list(self._objects.values()), 16):
            pass
        number, sizes = self._version.version, [shard.size_bytes for shard in self._version.shards]
        directory = self._store.path(self._folder)
        there = written_version(self._store.location, directory, self._version.layout, number, sizes)
        # What appeared before this run was compared by nobody who is here now.
        verified = not self._visible and all(item.verified for item in self._objects.values())
        with open_checkpoint(there) as written:
            made = seal(written, verified)
        self._store.write_small(seal_file(number), seal_bytes(made))
        self._published = True
        self._store.remove(f"{self._stage}/{PROGRESS}")
