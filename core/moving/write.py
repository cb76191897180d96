"""Writing a planned version: under the lock, values move once, are proved, and become visible.

What is read back must be what was read, or nothing becomes visible.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.catalog.target import Target, check_beside
from edl_ckpt.core.commit.interface import LockedLocation, NewVersion, Written
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.versions import UNNUMBERED
from edl_ckpt.core.moving.input import Input
from edl_ckpt.core.moving.legs import UnfitProgressError
from edl_ckpt.core.moving.plan import MovePlan
from edl_ckpt.core.moving.plan_digest import digest_of_move
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.run import Move, Moved
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.source_proof import untouched
from edl_ckpt.core.proof.proving import Proved, prove
from edl_ckpt.core.state.annotate import Describe
from edl_ckpt.core.storage.interface import Store
from edl_ckpt.core.storage.location import Location

RESUMABLE_BYTES: int = 256 << 20
"""A move of fewer bytes of values begins anew when it was killed. Tests set it."""


class Place:
    """Where a planned version is written, and what is done there while its location is locked."""

    describe: Describe | None = None
    """Writes the metadata of the version, as `publish` takes it."""

    def __init__(self, location: Location, new: NewVersion) -> None:
        self.location, self.new = location, new

    @property
    def path(self) -> str:
        """Return the path of the version once it is visible, if it has that of another one or is a copy of it."""
        existing = self.new.replaces or self.new.copies
        return "" if existing is None else existing.path

    def check(self, store: Store) -> None:
        """Raise RefusedError or LockedError if something has changed there since the plan was made."""

    def finish(self, store: Store) -> None:
        """Do what follows once the version is visible."""


class ShardPlace(Place):
    """The place of shards of ElasticDL."""

    def __init__(self, target: Target, new: NewVersion, describe: Describe | None = None) -> None:
        super().__init__(target.location, new)
        self._target, self.describe = target, describe

    def check(self, store: Store) -> None:
        """Raise RefusedError for versions in another layout that have appeared next to it."""
        if not self._target.in_place:
            check_beside(store, self._target.layout, self._target.beside)


def planned_result(plan: MovePlan, location: Location, new: NewVersion, *, bytes_read: int) -> WriteResult:
    """Return what a dry run answers: nothing was written."""
    return WriteResult(
        ref=f"{location}@{new.key}",
        output=location.url,
        from_ps=plan.from_ps,
        to_ps=plan.to_ps,
        version=None if new.number == UNNUMBERED else new.number,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=0,
        rows=plan.rows,
        seconds=0.0,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint="",
        shards=plan.shards,
        system=new.layout.system,
        source=plan.source_ref,
        items=replace(plan.items, proved=0, carried=0),
        left_out=plan.left_out,
        dry_run=True,
    )


def _digest_if_large(plan: MovePlan, place: Place, settings: ReshardSettings, source: Input, job: Job) -> str:
    """Return the digest of a move that is worth resuming, and can be: to a disk; '' for any other."""
    if place.location.local_path is None or plan.value_bytes < RESUMABLE_BYTES:
        return ""
    return digest_of_move(plan, place.new, settings, source, job.executor)


@contextmanager
def _doubted(moved: Moved, purpose: str) -> Iterator[None]:
    """Let a difference in the block be the fault of what was resumed, where anything was."""
    try:
        yield
    except EdlCkptError as error:
        if not moved.resumed_bytes or type(error) not in {EdlCkptError, CorruptError}:
            raise
        why = f"what the interrupted {purpose} had written cannot be used ({error.message})"
        raise UnfitProgressError(why, path=error.path, offset=error.offset) from error


class _Written(NamedTuple):
    """A version that is visible."""

    seal: Seal
    moved: Moved
    proved: Proved


@dataclass(frozen=True, slots=True)
class _Writing:
    """Moving, proving and publishing a planned version, once its source is open."""

    plan: MovePlan
    place: Place
    new: NewVersion
    settings: ReshardSettings
    source: Input
    job: Job
    doing: str

    def write(self, locked: LockedLocation) -> _Written:
        """Do it; UnfitProgressError where the proof refuses what an interrupted run has written."""
        plan, source, job, proofs = self.plan, self.source, self.job, list[Proved]()
        with kind_of(locked.store).output(locked, self.new) as output:
            files = output.create(plan.sizes)
            expect(job.reporter, 2 * plan.value_bytes)  # they are read back
            job.reporter.start(self.doing, plan.value_bytes)
            directory = self.place.location.local_path or tempfile.gettempdir()
            move = Move(plan, self.settings, source, job, directory=directory)
            moved = move.run(plan.framing(files, job), output, progress=output.progress)
            if output.progress is not None:
                output.progress.end()
            with _doubted(moved, self.new.purpose):
                content = plan.confirmed(source, moved.sketch, job)

            def prove_written(written: Written) -> Seal:
                with _doubted(moved, self.new.purpose):
                    staged = plan.staged(written.version, content, moved, self.settings)
                    proofs.append(prove(staged, job, self.new.key))
                source.check_unchanged()
                return source.proof.sign(proofs[-1].seal, self.new.purpose)

            seal = output.publish(prove_written, self.place.describe)
        return _Written(seal, moved, proofs[-1])


def write_version(
    plan: MovePlan,
    place: Place,
    settings: ReshardSettings,
    opens: AbstractContextManager[Input],
    job: Job,
    *,
    doing: str,
    bytes_read: int,
    wait_seconds: float,
) -> WriteResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of its location held.

    `opens` opens the source, once the lock is held. `doing` names the phase to the reporter. `bytes_read` are those
    that were read for the plan, but for those that the opened source counts.
    Raises LockedError when another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything
    is written when there is no room, EdlCkptError when the proof fails.
    """
    new, executor, reporter = place.new, job.executor, job.reporter
    lock = location_lock(place.location, new.purpose, create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as locked:
        begin, read_before = time.perf_counter(), executor.bytes_read()
        with opens as source:
            place.check(locked.store)
            new = replace(new, move_digest=_digest_if_large(plan, place, settings, source, job))
            writing = _Writing(plan, place, new, settings, source, job, doing)
            compared = source.proof.compared
            try:
                done = writing.write(locked)
            except UnfitProgressError as error:
                reporter.warn(f"{place.location}@{new.key}: {error.message}; it begins anew")
                source.proof.restart()
                source.proof.compared = compared
                done = writing.write(locked)
            bytes_read += source.bytes_read + executor.bytes_read() - read_before
        place.finish(locked.store)
    planned, proved = planned_result(plan, place.location, new, bytes_read=bytes_read), done.proved
    return replace(
        planned,
        bytes_written=plan.size_bytes,  # each byte once: all of them were read back
        seconds=time.perf_counter() - begin,
        fingerprint=done.seal.fingerprint,
        shards=plan.shards or proved.shards_at(place.path),
        forced=source.proof.forced,
        checksums=source.proof.compared,
        items=plan.items,
        untouched=untouched(source.proof, proved.fingerprint),
        overflowed=done.moved.overflowed,
        resumed_bytes=done.moved.resumed_bytes,
        content=proved.fingerprint,
        dry_run=False,
    )
