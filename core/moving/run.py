"""A move handed out: pieces to the threads of this process, or tasks to other processes.

Threads write files that this process has opened. Other processes write staged files, or send the parts of uploads as
`parts` has planned them. A task names what it reads by itself, because its process has no plan.

Writing a planned version: under the lock, values move once, are proved, and become visible.

What is read back must be what was read, or nothing becomes visible.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from itertools import groupby, starmap
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.base.packing import packed, together
from edl_ckpt.core.base.parallel import RESULT_BYTES, Advance, Executor, run_all
from edl_ckpt.core.base.progress import SILENT, Counted, expect
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.target import check_beside
from edl_ckpt.core.commit.interface import NewVersion, SharedTargets, VersionOutput, Written
from edl_ckpt.core.commit.repair.recovery import kind_of, location_lock
from edl_ckpt.core.commit.sent_parts import Sending, SharedUploads, TargetPart
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.model.versions import Seal
from edl_ckpt.core.moving.goal import ShardGoal
from edl_ckpt.core.moving.input import Input, Stretch
from edl_ckpt.core.moving.move import Movable, Mover, ShardTerms, exceeds_page_cache
from edl_ckpt.core.moving.parts import DenseBytes, MoveTask, TaskRead, literals_in, part_tasks, plan_parts
from edl_ckpt.core.moving.plan import MovePlan, row_marks, stretch_order
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.source_proof import untouched
from edl_ckpt.core.moving.tasks import handed_out, with_sum_bytes
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint
from edl_ckpt.core.proof.read_back import prove_version
from edl_ckpt.core.proof.values import ValueOptions
from edl_ckpt.core.reading.pieces import PIECE_BYTES
from edl_ckpt.core.sources.elasticdl.target import VersionLayout
from edl_ckpt.core.state.annotate import Describe
from edl_ckpt.core.storage.interface import Sink

_TASK_BYTES: Final = 64 << 10
"""About the most bytes of a task of several stretches, which has these for each target of each:"""
_TARGET_BYTES: Final = 48
_VARIABLES_AT_ONCE: Final = 256
"""Small variables that a thread moves together: each alone would cost it more than their bytes."""


class MoveDone(NamedTuple):
    """What a task answers: the sums of what it has counted, and the parts that it has sent."""

    sketch: ContentSketch
    parts: Sequence[TargetPart]
    overflowed: int = 0
    """Values that became infinite by a cast."""


def move_task(
    opened: Sending[Input], task: MoveTask[Stretch], advance: Advance, *, terms: ShardTerms, targets: SharedTargets
) -> MoveDone:
    """Move what a task needs, in another process; what it reads again is neither summed nor reported.

    It opens the files that it writes, and answers when they are safe and closed again.
    """
    with targets.opened(_targets_of(task, terms.layouts), task.extents, opened.memory) as files:
        first = Mover(terms, opened.source, files, Counted(advance))
        again = Mover(terms, opened.source, files, SILENT)
        for extent in task.extents:
            files[extent.target].write_between(literals_in(terms.layouts, extent, terms.small))
        for dense in task.dense:
            first.move_dense(dense)
        for rows, values, counts in task.reads:
            mover = first if counts else again
            if isinstance(rows, Stretch):
                mover.move_stretch(rows, values=values)
            else:
                mover.move_small(rows)
    return MoveDone(first.sketch, files.sent, first.overflowed)


def _targets_of(task: MoveTask[Stretch], layouts: VersionLayout) -> set[int]:
    """Return the numbers of the targets that a task writes."""
    numbers = {layouts.dense_at(dense.name)[0] for dense in task.dense}
    for read in task.reads:
        numbers.update(read.rows.counts.targets.tolist() if isinstance(read.rows, Stretch) else range(len(layouts)))
    return numbers


class Move:
    """A planned move from an opened source."""

    def __init__(self, plan: MovePlan, settings: ReshardSettings, source: Input, job: Job) -> None:
        self._plan = plan
        self._settings = settings
        self._source = source
        self._job = job
        variables = {variable.name: variable.size_bytes for variable in plan.survey.variables}
        small = {counts.table: counts for counts in plan.survey.small}
        once = exceeds_page_cache(2 * plan.size_bytes)
        self._variables = sorted(plan.survey.variables, key=lambda variable: plan.layouts.dense_at(variable.name))
        goal, plain = ShardGoal(plan.layouts, variables), replace(settings, parts=None)
        self.terms = ShardTerms(goal, variables, plain, once, plan.layouts, small)
        self.overflowed = 0
        """Values that became infinite by a cast, once everything has moved."""
        self.proved: Fingerprint | None = None
        """What was read back, once it is proved."""

    def run(self, output: VersionOutput, files: Sequence[Sink]) -> ContentSketch:
        """Move everything, by threads or other processes; return the sums of what they read."""
        if self._job.executor.is_cluster:
            return self.hand_out(output, files)
        mover = Mover(self.terms, self._source, files, self._job.reporter)
        self._write_between(files)
        run_all(mover.do, self._pieces(mover), self._job.workers)
        self.overflowed = mover.overflowed
        return mover.sketch

    def hand_out(self, output: VersionOutput, files: Sequence[Sink]) -> ContentSketch:
        """Let other processes move everything; return the same."""
        executor = self._job.executor
        targets, tasks, memory_bytes = output.share(), self.tasks(executor), 0
        if isinstance(targets, SharedUploads):
            parts = self._settings.parts or plan_parts(self._plan, executor, targets.part_bytes)
            planned = part_tasks(self._plan, parts.groups, parts.least_bytes, parts.task_bytes)
            tasks, memory_bytes = map(self._named, planned), parts.memory_bytes
        else:
            executor.share(targets.place)
            self._write_between(files)
        sketch = ContentSketch()
        do = partial(move_task, terms=self.terms, targets=targets)
        with handed_out(self._job, self._source, do, tasks, memory_bytes=memory_bytes) as results:
            for done in results:
                sketch.add(done.sketch)
                self.overflowed += done.overflowed
                output.take(done.parts)
        return sketch

    def _named(self, task: MoveTask[int]) -> MoveTask[Stretch]:
        """Return a planned task with its stretches in place of their numbers."""
        named = ((self._plan.stretch(rows) if isinstance(rows, int) else rows, *how) for rows, *how in task.reads)
        return MoveTask(task.dense, tuple(starmap(TaskRead[Stretch], named)), task.extents)

    def _write_between(self, files: Sequence[Sink]) -> None:
        """Write what stands between values, but for that among small tables."""
        layouts = self.terms.layouts
        large = [name for name in layouts.names if name not in self.terms.small]
        for ps_id, file in enumerate(files):
            file.write_between([*layouts.front(ps_id), *layouts.heads(ps_id, large)])

    def _pieces(self, mover: Mover) -> Iterator[Movable]:
        """Yield small tables, then each target from front to back, few targets at a time: few parts are open."""
        yield from self._small_tables()
        groups, order = self._plan.groups, stretch_order(self._plan)
        for group in range(groups):
            dense = self._dense(self._settings.batch_bytes, group)
            yield from together(dense, self._settings.batch_bytes, most=_VARIABLES_AT_ONCE)
            for number in order:
                if self._plan.survey.stretches[number].shard % groups == group:
                    yield from mover.pieces_of(self._plan.stretch(number))

    def tasks(self, executor: Executor) -> Iterator[MoveTask[Stretch]]:
        """Yield all tasks; a result has the sketches of some variables, or of some tables.

        Stretches of one task follow each other: they are of few tables and go to the same targets.
        """
        plan, value_bytes = self._plan, self._plan.layouts.value_bytes
        at_once = max(RESULT_BYTES // (4 * sketch_size(plan.survey.widest_row_bytes)), 1)
        yield from (MoveTask(reads=(TaskRead(names),)) for names in self._small_tables(most=at_once))
        task_bytes = executor.task_bytes(value_bytes)
        dense_pieces = with_sum_bytes(self._dense(task_bytes), self.terms.variables.__getitem__)
        yield from (MoveTask(dense) for dense in packed(dense_pieces, task_bytes))
        most = min(at_once, max(_TASK_BYTES * plan.groups // (_TARGET_BYTES * plan.to_ps), 1))
        limit = executor.task_bytes(value_bytes + plan.survey.id_bytes)
        yield from (MoveTask(reads=tuple(reads)) for reads in together(self._stretches(), limit, most=most))

    def _dense(self, step: int, group: int | None = None) -> Iterator[tuple[DenseBytes, int]]:
        """Yield pieces of variables with their sizes, by target and offset; an empty variable is an empty piece.

        They begin where the chunks of their sums begin.
        """
        step = max(step // bulk.CHUNK_BYTES, 1) * bulk.CHUNK_BYTES
        for variable in self._variables:
            if group is None or self.terms.layouts.dense_at(variable.name)[0] % self._plan.groups == group:
                for start in range(0, max(variable.size_bytes, 1), step):
                    size = min(step, variable.size_bytes - start)
                    yield DenseBytes(variable.name, start, size), size

    def _stretches(self) -> Iterator[tuple[TaskRead[Stretch], int]]:
        """Yield each stretch as it is sent, in the order in which they move, with the bytes of its ids and rows."""
        row_bytes = self._plan.row_bytes
        for number in stretch_order(self._plan):
            stretch = self._plan.stretch(number)
            size = self._source.bytes_of(stretch.ids) + stretch.ids.rows * row_bytes[stretch.table]
            yield TaskRead(stretch), size

    def _small_tables(self, *, most: int = sys.maxsize) -> Iterator[tuple[str, ...]]:
        """Yield small tables that follow each other in the order of the targets, which is that of their numbers.

        They are as many at a time as one worker may have in memory, and `most` of them.
        """
        layouts = self.terms.layouts
        sizes = np.diff(layouts.tables_at, axis=0).sum(axis=1)  # ids and heads may be far more than the values
        numbered = enumerate(sorted(self.terms.small, key=layouts.number))
        for _, run in groupby(numbered, key=lambda pair: layouts.number(pair[1]) - pair[0]):
            sized = ((name, int(sizes[layouts.number(name)])) for _, name in run)
            yield from map(tuple, together(sized, self._settings.gather_bytes, most=most))

    def prove(self, content: Fingerprint | ContentSketch, purpose: str, written: Written) -> Seal:
        """Return the seal of what was written, which has the content of its source; that must not have changed."""
        pieces = min(self._settings.piece_bytes, PIECE_BYTES)
        proved = prove_version(
            self._plan.target.store,
            written.version,
            self.terms.layouts,
            content,
            self._job,
            options=ValueOptions(batch_bytes=self._settings.proof_batch_bytes, piece_bytes=pieces),
            marks=cache(partial(row_marks, self._plan)),
        )
        self.proved = proved.fingerprint
        self._source.check_unchanged()
        return self._source.proof.sign(proved.seal, purpose)


def write_version(
    plan: MovePlan,
    settings: ReshardSettings,
    opens: AbstractContextManager[Input],
    job: Job,
    *,
    purpose: str,
    doing: str,
    bytes_read: int,
    wait_seconds: float,
    keep_old: bool = False,
    contents: Contents | None = None,
    describe: Describe | None = None,
) -> WriteResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `opens` opens the source, once the lock is held. `doing` names the phase to the reporter. `bytes_read` are those
    that were read for the plan, but for those that the opened source counts. `keep_old` and `contents` are as in
    `NewVersion`; `describe` is as for `publish`.
    Raises LockedError when another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything
    is written when there is no room, EdlCkptError when the proof fails.
    """
    target, executor, reporter = plan.target, job.executor, job.reporter
    lock = location_lock(target.location, purpose, create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as locked:
        begin, read_before = time.perf_counter(), executor.bytes_read()
        with opens as source:
            if not target.in_place:
                check_beside(locked.store, target.layout, target.beside)
            new = NewVersion(
                target.layout,
                target.number,
                purpose,
                replaces=target.replaces,
                keep_old=keep_old,
                contents=contents,
                memory_bytes=settings.part_memory_bytes,
                reporter=reporter,
            )
            with kind_of(locked.store).output(locked, new) as output:
                files = output.create(plan.layouts.size_bytes.tolist())
                expect(reporter, 2 * plan.layouts.value_bytes)  # they are read back
                reporter.start(doing, plan.layouts.value_bytes)
                move = Move(plan, settings, source, job)
                content = source.proof.content(move.run(output, files), job)
                seal = output.publish(partial(move.prove, content, purpose), describe)
                bytes_read += source.bytes_read + executor.bytes_read() - read_before
    return WriteResult(
        ref=f"{target.location}@{new.key}",
        output=target.location.url,
        from_ps=plan.from_ps,
        to_ps=plan.to_ps,
        version=target.number,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=plan.size_bytes,  # each byte once: all of them were read back
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=seal.fingerprint,
        shards=plan.shards,
        forced=source.proof.forced,
        checksums=source.proof.compared,
        items=plan.items,
        left_out=plan.survey.left_out,
        source=plan.source_ref,
        untouched={} if move.proved is None else untouched(source.proof, move.proved),
        overflowed=move.overflowed,
        content=move.proved,
    )
