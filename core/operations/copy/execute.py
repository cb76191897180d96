"""Carrying out a copy: each version is written whole or not at all, proved, and sealed.

Every chunk of every shard is summed as it is read. A sealed source must have the checksums of its seal; the copy must
have the checksums of what was read, and the fingerprint of the seal where there is one. An interrupted copy keeps the
finished shards with their checksums, and the same copy resumes there. Metrics, tags and the note go along. The lock of
the target is held from the first byte to the last.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, LockedError, RefusedError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.progress import WARNINGS, Reporter, expect
from edl_ckpt.core.base.words import base_name, command, counted, describe, escaped, size
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.target import check_beside
from edl_ckpt.core.cluster.choice import ExecutorLike, check_target, job_of
from edl_ckpt.core.commit.interface import LockedLocation, NewVersion, Resume, SharedTargets, VersionOutput, Written
from edl_ckpt.core.commit.newest_record import note_newest
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.sent_parts import Sending
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.converting.items import NO_ITEMS, ItemCounts, items_of
from edl_ckpt.core.model.seals import Chunk, Seal, SealedShard, now_text
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.copy.carry import Carried, carry, carry_task, tasks_of
from edl_ckpt.core.operations.copy.other_files import carry_other_files
from edl_ckpt.core.operations.copy.plan import CopyEntry, CopyPlan, layouts_of_copy
from edl_ckpt.core.proof.duplicates import check_unique_ids, near_job
from edl_ckpt.core.proof.fingerprint import fingerprint_of, value_bytes
from edl_ckpt.core.proof.items import confirm_items, confirm_zip
from edl_ckpt.core.proof.sealing import CHUNK_BYTES, cut, make_seal, tensors_of
from edl_ckpt.core.proof.stored_sums import confirm_sums
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.proof.values import fingerprint, read_back
from edl_ckpt.core.reading.picklable import CheckpointValue, HeldValue
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.stored_sums import NO_SUMS, SumsCompared
from edl_ckpt.core.reading.used_files import files_read
from edl_ckpt.core.sources import bundle
from edl_ckpt.core.sources.elasticdl.target import check_texts, check_version, restore_warnings
from edl_ckpt.core.state.annotate import Describe, MetadataCopies
from edl_ckpt.core.state.holder import LostLockError
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.lock_proof import write_proved
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import read_seal, seal_bytes
from edl_ckpt.core.storage import Store, open_store
from edl_ckpt.core.storage.inside import is_inside
from edl_ckpt.core.storage.interface import RangeReader, Sink, Sinks
from edl_ckpt.core.storage.parts import PART_MEMORY_BYTES
from edl_ckpt.core.storage.tree import Kind, digest_of

_FAR_BATCH_BYTES: Final = 8 << 20
"""What a request of a copy brings: a connection moves it in four times the time that a request waits."""
_PART_MEMORY_BYTES: Final = 176 << 20
"""For open parts: a connection is slow, so 32 parts of the least size should be on their way at a time."""


@dataclass(frozen=True, slots=True)
class CopiedVersion:
    """A version that was copied, or was there already."""

    ref: str
    to: str
    size_bytes: int
    fingerprint: str
    skipped: bool
    resumed_bytes: int = 0
    """The bytes of the shards that an interrupted copy had finished."""
    forced: str | None = None
    """Why a version did not match its seal or its checksums, where `force` went on, else None."""
    checksums: SumsCompared = NO_SUMS
    """How many checksums of its files were compared."""
    items: ItemCounts = NO_ITEMS
    """None where it was there already."""


_Failed: TypeAlias = tuple[str, EdlCkptError]
"""The reference of a version, and why it could not be copied."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a copy did, and which versions failed and why."""

    copied: tuple[CopiedVersion, ...]
    bytes_copied: int
    seconds: float
    failed: tuple[tuple[str, EdlCkptError], ...] = ()

    def __repr__(self) -> str:
        return describe(
            "CopyResult",
            "",
            counted(len(self.copied), "version"),
            f"{size(self.bytes_copied)} copied",
            f"{len(self.failed)} failed" if self.failed else "",
        )


def execute_copy(
    plan: CopyPlan,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> CopyResult:
    """Copy the versions of a plan, each whole or not at all, with their metadata, under the lock of the target.

    With one version, its error is raised. With several, the others are copied all the same, and the result has the
    errors. Raises LockedError when another command holds the lock for `wait_seconds`; UnsupportedError for an
    `executor` (a `distributed.Client`) with workers that do not share the file system of the target.
    """
    begin = time.perf_counter()
    copied: list[CopiedVersion] = []
    failed: list[_Failed] = []
    possible: list[CopyEntry] = []
    for entry in plan.entries:
        obstacle = _obstacle(entry)
        if obstacle is None:
            possible.append(entry)
        elif len(plan.entries) == 1:
            raise obstacle
        else:
            failed.append((entry.version.ref, obstacle))
    if possible:
        to_read = [entry for entry in possible if not entry.skipped]
        versions = [entry.version for entry in to_read]
        job = job_of(executor, versions, target=plan.target, workers=workers, reporter=reporter)
        size_bytes = sum(entry.version.size_bytes for entry in to_read if entry.there is None)
        check_target(job.executor, plan.target, size_bytes, reporter=reporter)
        expect(reporter, size_bytes * (1 if plan.target.is_far else 2))  # checksums of far storage save the read-back
        with location_lock(plan.target, "copy", wait_seconds=wait_seconds, reporter=reporter, create=True) as place:
            copied, failed_later = _copy_all(plan, possible, place, job)
            failed += failed_later
            if copied and plan.entries[0].version.layout.system == bundle.ABOUT.name:
                note_newest(place.store, newest=_newest_of(plan), reporter=reporter)
    moved = sum(each.size_bytes - each.resumed_bytes for each in copied if not each.skipped)
    return CopyResult(tuple(copied), moved, time.perf_counter() - begin, tuple(failed))


def _copy_all(
    plan: CopyPlan, entries: Sequence[CopyEntry], place: LockedLocation, job: Job
) -> tuple[list[CopiedVersion], list[_Failed]]:
    """Copy versions with their metadata, one after the other; the error of a plan's only version is raised."""
    copied: list[CopiedVersion] = []
    failed: list[_Failed] = []
    metadata = MetadataCopies(place.store, reporter=job.reporter)
    for entry in entries:
        COMMIT.more()  # between two versions a signal ends the copy
        try:
            result = _bring(entry, place, job, partial(metadata.copy, entry.version), force=plan.force)
            copied.append(result)
            if result.skipped:
                metadata.copy(entry.version)
            if entry.version.uuid:
                carry_other_files(entry.version, place.store, reporter=job.reporter)
        except EdlCkptError as error:
            metadata = MetadataCopies(place.store, reporter=job.reporter)  # it may know what was not written
            if len(plan.entries) == 1 or isinstance(error, LostLockError):
                raise
            failed.append((entry.version.ref, error))
    return copied, failed


def _newest_of(plan: CopyPlan) -> str:
    """Return the name of the version that TensorFlow's file `checkpoint` at the source names; '' without one."""
    source = plan.entries[0].version
    record = list_versions(source.location).record if source.layout.in_location else None
    return base_name(record.path) if record is not None and record.system == bundle.ABOUT.name else ""


def _obstacle(entry: CopyEntry) -> EdlCkptError | None:
    """Return why a version cannot be copied, None where nothing is known against it; nothing is written or locked."""
    if entry.version.fault:
        return entry.version.fault.error()
    try:
        if entry.doubtful is not None:
            check_trust(entry.doubtful)
        if entry.refused:
            return RefusedError(entry.why, path=entry.to, hint=entry.hint)
        if entry.version.has_only_shards:
            check_version(entry.version.version)
        if entry.version.state is not State.COMPLETE:
            open_checkpoint(entry.version).close()
    except EdlCkptError as error:
        return error
    return None


def _check_content(source: Checkpoint, job: Job, *, sealed: bool = False) -> None:
    """Make the checks that other writers make when they lay out shards: a copy takes the shards as they are.

    The ids of a `sealed` version were checked before it was sealed, and its seal shows that they are the same.
    """
    version = source.version
    if not version.has_only_shards:  # its own source has checked it while it was opened
        return
    for shard in source.shards:
        check_version(shard.version)
        if version.uuid and shard.version != version.version:
            raise RefusedError(
                f"Determined's number is {version.version}, and the shards have version {shard.version}",
                path=version.ref,
                hint="a copy changes no shard; try: "
                + command("import", version.ref, f"LOCATION@{version.version}", "--ranks", "N"),
            )
    variables = [variable for shard in source.shards for variable in shard.variables]
    check_texts([variable.name for variable in variables], source.infos.values())
    if not sealed:
        check_unique_ids(source, job)
    dtypes = [*(variable.dtype for variable in variables), *map(source.table_dtype, source.table_names)]
    sizes = [shard.file.size_bytes for shard in source.shards]
    for warning in restore_warnings(sizes, len(variables), dtypes, source.infos.values()):
        job.reporter.warn(f"{source.version.ref}: {warning}")


def _bring(entry: CopyEntry, place: LockedLocation, job: Job, describe: Describe, *, force: bool) -> CopiedVersion:
    """Make sure that a version is at the target: it is there, is there unsealed, or is copied with its metadata."""
    if entry.skipped:
        text = entry.version.fingerprint
        if not text:
            seal = read_seal(place.store, entry.version.key_of_copies)
            text = seal.fingerprint if seal is not None else ""
        return CopiedVersion(entry.version.ref, entry.to, entry.version.size_bytes, text, skipped=True)
    if entry.there is not None:
        return _seal_twin(entry, entry.there, place.store, job, force=force)
    for layout in layouts_of_copy(entry.version):
        check_beside(place.store, layout, entry.beside)
    return _Copy(entry.version, place, job, force=force).run(entry.to, describe)


def _seal_twin(entry: CopyEntry, there: Version, store: Store, job: Job, *, force: bool) -> CopiedVersion:
    """Seal an unsealed version at the target, as a copy killed at its end leaves it, if its bytes are equal."""
    trust = check_trust(entry.version, force=force, reporter=job.reporter)
    trust_there = check_trust(there, force=force, reporter=job.reporter)
    with open_checkpoint(entry.version) as source, open_checkpoint(there) as target:
        stored = source.watch()
        _check_content(source, job)
        seal_of_source = make_seal(source, "", job)
        seal_of_target = make_seal(target, "", job)
        if seal_of_source.shards != seal_of_target.shards:
            raise RefusedError("exists there already with other content", path=entry.to, hint="nothing was changed")
        job.reporter.start("proving", value_bytes(target))
        text = fingerprint(target, job).text
        trust.confirm(text)
        trust_there.confirm(text)
        compared = confirm_sums(stored, trust, job, whole=True)
        compared += confirm_items(source, source.item_names, trust)
        source.check_unchanged()
        target.check_unchanged()
    trust.forced = trust.forced or trust_there.forced
    seal = trust.sign(replace(seal_of_target, fingerprint=text, origin=entry.version.files_digest), "copy")
    write_proved(store, seal_file(there.key), seal_bytes(seal))
    return CopiedVersion(
        entry.version.ref, entry.to, there.size_bytes, text, skipped=True, forced=trust.forced, checksums=compared
    )


@dataclass(slots=True)
class _Shard:
    """A file of a shard that is being copied: its chunks, and their checksums once they are read."""

    index: int
    name: str
    reader: RangeReader
    content: ShardIndex
    chunks: list[Chunk]
    sums: list[str]
    open_tasks: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sealed(self) -> SealedShard:
        """Return the shard as the seal of the copy has it."""
        chunks = tuple(chunk._replace(sum=text) for chunk, text in zip(self.chunks, self.sums, strict=True))
        return SealedShard(self.name, self.reader.size_bytes, chunks)


class _Copy:
    """The copy of one version."""

    def __init__(self, version: Version, place: LockedLocation, job: Job, *, force: bool) -> None:
        self.version = version
        self.place = place
        self.job = job
        self.reporter = job.reporter
        self.trust = check_trust(version, force=force, reporter=self.reporter)
        self.seal = self.trust.seal
        self.compared = NO_SUMS
        self.items = NO_ITEMS
        self.shards: list[_Shard] = []
        self.contents = _contents(version, place.store, self.reporter)
        self.others = _others(self.contents, version)
        """The files that no listing of the version shows: hidden ones, and those in deep directories."""
        self.other_sums: dict[str, list[str]] = {}
        self.batch_bytes = _FAR_BATCH_BYTES if version.location.is_far else CHUNK_BYTES

    def run(self, to: str, describe: Describe) -> CopiedVersion:
        """Read, write, prove, publish."""
        with open_checkpoint(self.version) as source:
            stored = source.watch()
            _check_content(source, self.job, sealed=self.seal is not None)
            self.shards = self._shards(source)
            with self._open_output(source) as output:
                sizes = [shard.reader.size_bytes for shard in self.shards]
                sinks = output.create([*sizes, *(self.contents.tree[name].size_bytes for name in self.others)])
                for index, sums in output.resumed.items():
                    if index < len(self.shards):
                        self.shards[index].sums = list(sums)
                    else:
                        self.other_sums[self.others[index - len(self.shards)]] = list(sums)
                missing = [shard for shard in self.shards if shard.index not in output.resumed]
                self.reporter.start("copying", sum(shard.reader.size_bytes for shard in missing))
                if not self.job.executor.is_cluster:
                    self._move_all(missing, output, sinks)
                elif any(shard.chunks for shard in missing):
                    self._hand_out(missing, output, source)
                for shard in missing:
                    if not shard.chunks:
                        output.finish(shard.index, shard.sums)
                self._carry_others(output, sinks)
                if self.seal is None or self.trust.forced:  # else the sums show that the shards are of one moment
                    source.check_unchanged()
                self.compared = confirm_sums(stored, self.trust, self.job, whole=True)
                if self.seal is None or self.trust.forced:  # else each byte is what the seal says
                    self.compared += self._confirm_others(source)
                self.items = items_of(source)
                seal = output.publish(partial(self._prove, source), describe)
        resumed = sum(shard.reader.size_bytes for shard in self.shards if shard.index in output.resumed)
        return CopiedVersion(
            self.version.ref,
            to,
            self.version.size_bytes,
            seal.fingerprint,
            skipped=False,
            resumed_bytes=resumed,
            forced=self.trust.forced,
            checksums=self.compared,
            items=self.items,
        )

    def _carry_others(self, output: VersionOutput, sinks: Sinks) -> None:
        """Copy the files that no listing shows, one after the other; no link is followed on the way to one."""
        for number, name in enumerate(self.others, len(self.shards)):
            if name not in self.other_sums:
                with self.contents.open(name) as reader:
                    sums = carry(reader, [_whole(reader)], sinks[number])
                    reader.check_unchanged()
                self.other_sums[name] = sums
                output.finish(number, sums)

    def _confirm_others(self, source: Checkpoint) -> SumsCompared:
        """Compare items, and zips that no value is in, with the checksums in them; CorruptError for a difference."""
        compared = confirm_items(source, source.item_names, self.trust)
        used = files_read(source)
        for shard in self.shards:
            if shard.name not in used:
                compared += confirm_zip(shard.reader, shard.name, self.trust)
        for name in self.others:
            with self.contents.open(name) as reader:
                compared += confirm_zip(reader, name, self.trust)
        return compared

    def _check_others(self, written: Version) -> None:
        """Read the same files back; EdlCkptError unless each has the bytes that were read."""
        store = open_store(written.location)
        for name, sums in self.other_sums.items():
            path = written.path_of(name)
            with store.open(path) as reader:
                if carry(reader, [_whole(reader)], _Dropped(path)) != sums:
                    raise _differs(path, None)

    def _shards(self, source: Checkpoint) -> list[_Shard]:
        sealed = {} if self.seal is None else {shard.name: shard for shard in self.seal.shards}
        shards: list[_Shard] = []
        files = [(shard, number) for shard in source.shards for number in range(len(shard.file.files))]
        for index, (shard, number) in enumerate(files):
            file = shard.file.files[number]
            name, reader = self.version.name_of(file.path), source.files[file.path]
            if reader.size_bytes != file.size_bytes:
                raise LockedError("still being written", path=file.path)
            chunks = list(sealed[name].chunks if name in sealed else cut(shard, reader, number))
            shards.append(_Shard(index, name, reader, shard, chunks, [""] * len(chunks)))
        return shards

    def _open_output(self, source: Checkpoint) -> VersionOutput:
        """Open the output; an interrupted copy of the same files, cut into the same chunks, is resumed."""
        edges = [[(chunk.start, chunk.end) for chunk in shard.chunks] for shard in self.shards]
        cuts = hashlib.blake2b(repr(edges).encode(), digest_size=16).hexdigest()
        lengths = (*(len(shard.chunks) for shard in self.shards), *(1 for _ in self.others))
        digest = f"{self.version.files_digest}-{cuts}"
        resume = Resume(f"{digest}-{digest_of(self.contents.tree)}" if self.others else digest, lengths)
        layout = next(iter(layouts_of_copy(self.version))) if self.version.uuid else self.version.layout
        new = NewVersion(layout, self.version.version, "copy", memory_bytes=_PART_MEMORY_BYTES, resumes=resume)
        if not self.version.has_only_shards:
            linked = {self.version.name_of(file.path) for file in self.version.files if file.linked}
            carried = self.contents.all_but(linked | files_read(source))
            new = replace(new, copies=self.version, contents=self.contents, carried=carried)
        return kind_of(self.place.store).output(self.place, new)

    def _move_all(self, missing: Sequence[_Shard], output: VersionOutput, sinks: Sinks) -> None:
        """Copy the missing shards; each is finished as soon as its last chunk is written."""

        def move(task: Carried) -> None:
            sums = carry(self.shards[task.shard].reader, task.chunks, sinks[task.shard])
            self.reporter.advance(task.chunks[-1].end - task.chunks[0].start)
            self._take(task, sums, output)

        run_all(move, _tasks(None, missing, self.batch_bytes), self.job.workers)

    def _hand_out(self, missing: Sequence[_Shard], output: VersionOutput, source: Checkpoint) -> None:
        """Do the same in other processes; after the fence of its shard no task writes any more."""
        executor, targets = self.job.executor, output.share(apart=True)
        if isinstance(targets, StagedTargets):
            executor.share(targets.only(min(shard.index for shard in missing if shard.chunks)).place)
        task_bytes = max(executor.task_bytes(sum(shard.reader.size_bytes for shard in missing)), CHUNK_BYTES)
        tasks = _tasks(targets, missing, task_bytes)
        opens = HeldValue(CheckpointValue.of(source), partial(Sending[Checkpoint], memory_bytes=PART_MEMORY_BYTES))
        work = FunctionWork(opens, partial(carry_task, targets=targets, batch_bytes=self.batch_bytes))
        with self.job.run(work, Sending(source, 0), tasks) as results:
            for task, done in zip(tasks, results, strict=True):
                output.take(done.parts)
                self._take(task, done.chunks, output)

    def _take(self, task: Carried, sums: Sequence[str], output: VersionOutput) -> None:
        """Note the checksums of chunks that were copied, once they match the seal; finish a shard that has all."""
        shard = self.shards[task.shard]
        for number, total in enumerate(sums, task.first):
            chunk = shard.chunks[number]
            if self.seal is not None and total != chunk.sum:
                fault = f"chunk {chunk.number} of {tensors_of(chunk, shard.content)} does not match its seal"
                self.trust.doubt(fault, "checksum-mismatch", path=shard.reader.path, offset=chunk.start)
            shard.sums[number] = total
        with shard.lock:
            shard.open_tasks -= 1
            is_whole = shard.open_tasks == 0
        if is_whole:
            output.finish(shard.index, shard.sums)

    def _prove(self, source: Checkpoint, written: Written) -> Seal:
        """Return the seal of the copy, after comparing what was written with what was read.

        Where the storage has reported matching checksums of every byte, nothing is read back for that.
        """
        sealed = tuple(shard.sealed() for shard in self.shards)
        if not written.verified:
            self._check_others(written.version)
            text = self._read_back(sealed, written)
        elif self.seal is not None and not self.trust.forced:
            text = self.seal.fingerprint
        elif source.is_far:
            with _reading_back(written) as target:
                text = self._fingerprint(target)
        else:
            text = self._fingerprint(source)  # they are equal, and this one is nearer
        self.trust.confirm(text)
        seal = Seal(self.version.key_of_copies, text, sealed, now_text(), self.version.files_digest)
        return self.trust.sign(seal, "copy")

    def _fingerprint(self, checkpoint: Checkpoint) -> str:
        self.reporter.start("proving", value_bytes(checkpoint))
        return fingerprint(checkpoint, Job.here(self.job.workers, reporter=self.reporter)).text

    def _read_back(self, sealed: Sequence[SealedShard], written: Written) -> str:
        """Read what was written, each byte once; return its fingerprint. EdlCkptError unless it is what was read."""
        with _reading_back(written) as target:
            self.reporter.start("proving", value_bytes(target))
            sketch, sums = read_back(target, [shard.chunks for shard in sealed], near_job(target, self.job))
            for shard, file, now in zip(sealed, target.version.files, sums, strict=True):
                wrong = next((chunk for chunk, one in zip(shard.chunks, now, strict=True) if chunk != one), None)
                if wrong is not None:
                    raise _differs(file.path, wrong.start)
        return fingerprint_of(target, sketch).text


def _contents(version: Version, target: Store, reporter: Reporter) -> Contents:
    """Return what a copy accounts for; RefusedError for an entry that the target cannot have, before it is written.

    A directory of Determined has its other files copied by `carry_other_files`.
    """
    if version.uuid:
        return Contents(version, {})
    contents = Contents.of(version)
    if version.has_only_shards:
        contents.check_only(version.sizes, "move it away, and try again")
        return contents
    others = set(contents.all_but(version.sizes))
    for path in others:
        if not is_inside(path):
            raise RefusedError(
                f"no file can have the name {path!r} in a copy", path=version.path, hint="nothing was changed"
            )
    if not target.properties.rename:
        _check_objects(contents, others, reporter)
    return contents


def _check_objects(contents: Contents, others: Collection[str], reporter: Reporter) -> None:
    """Raise RefusedError for a link that object storage cannot have; warn of directories that have no file."""
    tree, ref = contents.tree, contents.version.ref
    for path in tree:
        if path in others and tree[path].kind is Kind.LINK:
            raise RefusedError(
                f"contains a symbolic link ({escaped(path)}), which object storage cannot have",
                path=contents.version.path,
                hint="nothing was changed; replace it by a file, or move it away",
            )
    filled = {str(parent) for path in tree if tree[path].kind is Kind.FILE for parent in PurePosixPath(path).parents}
    for path in tree:
        if tree[path].kind is Kind.DIRECTORY and path not in filled:
            reporter.warn(f"{ref}: {escaped(path)} is an empty directory: object storage has none, so it is left out")


def _others(contents: Contents, version: Version) -> tuple[str, ...]:
    """Return the files of a copy that no listing of the version shows."""
    if version.has_only_shards:
        return ()
    files = contents.files
    return tuple(path for path in contents.all_but(version.sizes) if path in files)


def _whole(reader: RangeReader) -> Chunk:
    return Chunk("", "", 0, 0, reader.size_bytes)


class _Dropped(Sink):
    """Takes bytes that are only summed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Drop the bytes."""


def _tasks(targets: SharedTargets | None, shards: Sequence[_Shard], task_bytes: int) -> list[Carried]:
    """Return the tasks of all chunks of some shards, and count those of each shard."""
    tasks: list[Carried] = []
    for shard in shards:
        of_shard = list(tasks_of(targets, shard.index, shard.chunks, task_bytes))
        shard.open_tasks = len(of_shard)
        tasks += of_shard
    return tasks


@contextmanager
def _reading_back(written: Written) -> Iterator[Checkpoint]:
    """Open what was written; EdlCkptError where the block finds that it cannot be what was read."""
    try:
        with open_checkpoint(written.version, staged=written.staged) as target:
            yield target
    except CorruptError as error:
        raise _differs(error.path, error.offset, f" ({error.message})") from error


def _differs(path: str | None, offset: int | None, detail: str = "") -> EdlCkptError:
    return EdlCkptError(
        f"the written bytes differ from those that were read{detail}; nothing was published",
        path=path,
        offset=offset,
        hint="this should not happen: check the memory and the disk of this machine, and the network",
    )
