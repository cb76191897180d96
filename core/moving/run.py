"""A move handed out: pieces to the threads of this process, or tasks to other processes.

Threads write files that this process has opened. Other processes write staged files, or send the parts of uploads as
`parts` has planned them. A task names what it reads by itself, because its process has no plan.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Final, Protocol

from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import packed, together
from edl_ckpt.core.base.parallel import RESULT_BYTES, Executor, run_all, run_parallel
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.commit.interface import SharedTargets
from edl_ckpt.core.commit.progress import Progress
from edl_ckpt.core.commit.sent_parts import Sending, SharedUploads, TargetPart
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.moving.extents import ExtentSinks, spans_of
from edl_ckpt.core.moving.framing import Framing
from edl_ckpt.core.moving.input import Input, Stretch
from edl_ckpt.core.moving.legs import Legs, TaskLegs
from edl_ckpt.core.moving.move import Movable, Mover, MoveTerms, exceeds_page_cache
from edl_ckpt.core.moving.parts import WORKER_PART_BYTES, DenseBytes, MoveTask, TaskRead, part_tasks, plan_parts
from edl_ckpt.core.moving.plan import MovePlan, ShardPlan
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.tasks import MoveDone, move_reads, move_task, with_sum_bytes
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.picklable import HeldValue

_TASK_BYTES: Final = 64 << 10
"""About the most bytes of a task of several stretches, which has these for each target of each:"""
_TARGET_BYTES: Final = 48
_VARIABLES_AT_ONCE: Final = 256
"""Small variables that a thread moves together: each alone would cost it more than their bytes."""


class SharedOutput(Protocol):
    """An output that other processes write, too."""

    def share(self) -> SharedTargets:
        """Return its files as a value; UnsupportedError where no other process can write them."""

    def take(self, parts: Iterable[TargetPart], /) -> None:
        """Take the parts of uploads that other processes have sent."""


class Moved:
    """What has moved: its sums by the names that it goes out under, and values that became infinite by a cast."""

    def __init__(self) -> None:
        self.sketch = ContentSketch()
        """The sums of all variables and tables."""
        self.tensors = ContentSketch()
        """Those of tensors that are neither variables nor matrices of the source."""
        self.overflowed = 0
        self.resumed_bytes = 0
        """The bytes of values that an interrupted run had moved."""

    def add(self, done: Mover | MoveDone | Legs | TaskLegs) -> None:
        """Add what a mover or a task has moved."""
        self.sketch.add(done.sketch)
        self.tensors.add(done.tensors)
        self.overflowed += done.overflowed


class Move:
    """A planned move from an opened source: values, ids and framing, each written once."""

    def __init__(
        self, plan: MovePlan, settings: ReshardSettings, source: Input, job: Job, *, directory: str = ""
    ) -> None:
        """Take a plan and what it reads, and a `directory` for temporary files of tables that are sorted."""
        self._plan, self._settings, self._source, self._job = plan, settings, source, job
        self._directory = directory
        goal, variables = plan.goal, {variable.name: variable.size_bytes for variable in plan.survey.variables}
        self._places: dict[str, tuple[int, int]] = {}
        for name in variables:
            cuts = goal.cuts(name)  # none for a variable without values, whose sums the proof wants all the same
            self._places[name] = (cuts[0].file, cuts[0].offset) if cuts else (0, 0)
        plain = replace(settings, parts=None)
        once = exceeds_page_cache(2 * plan.size_bytes)
        self.terms = MoveTerms(goal, variables, plain, once, plan.meaning, plan.summed)

    def run(self, framing: Framing, output: SharedOutput | None = None, *, progress: Progress | None = None) -> Moved:
        """Move everything, by threads or, into an output that they share, by other processes; return what has moved.

        The `progress` is noted, and the move goes on where an interrupted run has ended.
        """
        moved = Moved()
        if output is not None and self._job.executor.is_cluster:
            self.hand_out(framing, output, moved, progress)
        elif progress is not None:
            framing.write_before()
            self._move_legs(framing, progress, moved)
        else:
            framing.write_before()
            mover = self._mover(framing)
            run_all(mover.do, self._pieces(mover), self._job.workers)
            moved.add(mover)
        mover = self._mover(framing)
        self._plan.move_sorted(mover, self._job, self._directory)
        moved.add(mover)
        framing.write_after()
        return moved

    def _mover(self, framing: Framing, reporter: Reporter | None = None) -> Mover:
        return Mover(self.terms, self._source, framing.files, reporter or self._job.reporter, framing.crcs)

    def _move_legs(self, framing: Framing, progress: Progress, moved: Moved) -> None:
        """Move all that does not need to be sorted, but for what an interrupted run has moved."""
        legs = Legs(progress, partial(self._mover, framing), self._source.proof.sums, self._job.reporter)
        pieces = self._pieces(self._mover(framing))
        run_all(legs.move, legs.pieces(pieces), self._job.workers)
        moved.add(legs)
        moved.resumed_bytes = legs.resumed_bytes

    def hand_out(self, framing: Framing, output: SharedOutput, moved: Moved, progress: Progress | None = None) -> None:
        """Let other processes move everything; raises UnsupportedError where they cannot."""
        executor = self._job.executor
        targets, tasks, memory_bytes = output.share(), self.tasks(executor), 0
        own: Sequence[MoveTask[Stretch]] = ()
        if isinstance(targets, SharedUploads):
            tasks, memory_bytes, own = self._part_tasks(targets.part_bytes, framing)
        else:
            executor.share(targets.place)
            framing.write_before()
        legs = None
        if progress is not None:
            legs = TaskLegs(progress, self._job.reporter)
            tasks = legs.due((task, self._bytes_of(task)) for task in tasks)
        opens = HeldValue(self._source.value(), partial(Sending[Input], memory_bytes=memory_bytes))
        work = FunctionWork(opens, partial(move_task, terms=self.terms, targets=targets))
        with self._job.run(work, Sending[Input](self._source, 0), tasks) as results:
            for done in results:
                if legs is None:
                    moved.add(done)
                else:
                    legs.take(done)
                framing.take(done.crcs)
                output.take(done.parts)
        if legs is not None:
            legs.end()
            moved.add(legs)
            moved.resumed_bytes = legs.resumed_bytes
        for mover in run_parallel(partial(self._move_here, framing), own, self._job.workers):
            moved.add(mover)

    def _part_tasks(
        self, least_bytes: int, framing: Framing
    ) -> tuple[Iterator[MoveTask[Stretch]], int, Sequence[MoveTask[Stretch]]]:
        """Return the tasks that send parts of uploads, what each process has in memory for parts, and this one's tasks.

        This one sends the parts that need what no task knows, as checksums of the values of several tasks.
        """
        plan = self._plan
        if isinstance(plan, ShardPlan):
            parts = self._settings.parts or plan_parts(plan, self._job.executor, least_bytes)
            planned = part_tasks(plan, parts.groups, parts.least_bytes, parts.task_bytes)
            return map(self._named, planned), parts.memory_bytes, ()
        from edl_ckpt.core.moving.file_parts import FileParts  # few moves go from a cluster to object storage

        files = FileParts(plan, self._job.executor, least_bytes)
        framing.only(files.own_spans())
        framing.write_before()
        return map(self._named, files.tasks()), WORKER_PART_BYTES, [*map(self._named, files.own_tasks())]

    def _move_here(self, framing: Framing, task: MoveTask[Stretch]) -> Mover:
        """Do a task in this process."""
        files = ExtentSinks(framing.files, spans_of(task.extents))
        return move_reads(self._source, task, files, self.terms, self._job.reporter)

    def _named(self, task: MoveTask[int]) -> MoveTask[Stretch]:
        """Return a planned task with its stretches in place of their numbers."""
        named = ((self._plan.stretch(rows) if isinstance(rows, int) else rows, *how) for rows, *how in task.reads)
        reads = tuple(starmap(TaskRead[Stretch], named))
        return MoveTask(task.dense, reads, task.extents, task.again, task.between, task.summed, task.sealed)

    def _pieces(self, mover: Mover) -> Iterator[Movable]:
        """Yield small tables, then each file from front to back, few files at a time: few parts are open."""
        yield from self._small_tables()
        plan, groups, order = self._plan, self._plan.groups, self._plan.order
        for group in range(groups):
            dense = self._dense(self._settings.batch_bytes, group)
            yield from together(dense, self._settings.batch_bytes, most=_VARIABLES_AT_ONCE)
            for number in order:
                if plan.survey.stretches[number].shard % groups == group:
                    yield from mover.pieces_of(plan.stretch(number))

    def tasks(self, executor: Executor) -> Iterator[MoveTask[Stretch]]:
        """Yield all tasks; a result has the sketches of some variables, or of some tables.

        Stretches of one task follow each other: they are of few tables and go to the same files.
        """
        plan, value_bytes = self._plan, self._plan.value_bytes
        at_once = max(RESULT_BYTES // (4 * sketch_size(plan.survey.widest_row_bytes)), 1)
        yield from (MoveTask(reads=(TaskRead(names),)) for names in self._small_tables(most=at_once))
        task_bytes = executor.task_bytes(value_bytes)
        dense_pieces = with_sum_bytes(self._dense(task_bytes), self.terms)
        yield from (MoveTask(dense) for dense in packed(dense_pieces, task_bytes))
        most = min(at_once, max(_TASK_BYTES * plan.groups // (_TARGET_BYTES * plan.survey.to_ps), 1))
        limit = executor.task_bytes(value_bytes + plan.survey.id_bytes)
        yield from (MoveTask(reads=tuple(reads)) for reads in together(self._stretches(), limit, most=most))

    def _bytes_of(self, task: MoveTask[Stretch]) -> int:
        """Return about how many bytes of values a task moves: those of small tables are not counted."""
        row_bytes = self._plan.row_bytes
        rows = [read.rows for read in task.reads if isinstance(read.rows, Stretch)]
        dense = sum(dense.size for dense in task.dense)
        return dense + sum(stretch.ids.rows * row_bytes[stretch.table] for stretch in rows)

    def _dense(self, step: int, group: int | None = None) -> Iterator[tuple[DenseBytes, int]]:
        """Yield pieces of variables with their sizes, by file and offset; an empty variable is an empty piece.

        They begin where the chunks of their sums begin, and with a row where the proof takes one for a matrix.
        """
        for name in sorted(self._places, key=self._places.__getitem__):
            if group is not None and self._places[name][0] % self._plan.groups != group:
                continue
            size_bytes = self.terms.variables[name]
            unit = math.lcm(bulk.CHUNK_BYTES, self.terms.meaning.row_bytes.get(name) or 1)
            length = max(step // unit, 1) * unit
            for start in range(0, max(size_bytes, 1), length):
                size = min(length, size_bytes - start)
                yield DenseBytes(name, start, size), size

    def _stretches(self) -> Iterator[tuple[TaskRead[Stretch], int]]:
        """Yield each stretch as it is sent, in the order in which they move, with the bytes of its ids and rows."""
        row_bytes = self._plan.row_bytes
        for number in self._plan.order:
            stretch = self._plan.stretch(number)
            size = self._source.bytes_of(stretch.ids) + stretch.ids.rows * row_bytes[stretch.table]
            yield TaskRead(stretch), size

    def _small_tables(self, *, most: int = sys.maxsize) -> Iterator[tuple[str, ...]]:
        """Yield small tables that follow each other in the shards.

        They are as many at a time as one worker may have in memory, and `most` of them.
        """
        for run in self._plan.small_runs():
            yield from map(tuple, together(run, self._settings.gather_bytes, most=most))
