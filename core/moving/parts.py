"""The parts of uploads as tasks: which bytes of the targets a task sends, and what it reads for them.

The targets of a group get their bytes in one order: what stands before the tables, and then of each table all rows and
all ids, by source. So a task takes what follows in that order until each of its targets has at least one part. It
sends everything that it reads for a target between two edges, and no other task sends a byte of that. A target that has
got less than a part waits, and the task that closes its part later reads again what it waited for.

Groups are the targets of one remainder. More groups: fewer open parts; beyond the remainders that sources have, each
further group reads the sources once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.parallel import RESULT_BYTES, Executor
from edl_ckpt.core.base.words import counted, size
from edl_ckpt.core.commit.sent_parts import Extent, even_edges
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.moving.input import PieceCounts
from edl_ckpt.core.moving.plan import ShardPlan
from edl_ckpt.core.moving.sealed import SealedBytes
from edl_ckpt.core.storage.parts import least_part

WORKER_PART_BYTES: Final = 192 << 20
"""Memory for the open parts of a worker by default: its tasks take about as much again for what they read."""
_SMALL_BYTES: Final = 1 << 20
"""The most bytes of small tables that are one step."""
_WAIT: Final = 4
"""How many times the bytes of a task are read before targets that have no part yet are left to a later task."""

_Flags: TypeAlias = npt.NDArray[np.bool_]
Rows = TypeVar("Rows")


class DenseBytes(NamedTuple):
    """Bytes of a dense variable that a task reads."""

    name: str
    start: int
    size: int


class TaskRead(NamedTuple, Generic[Rows]):
    """What a task reads: a stretch, which a plan names by its number in the survey, or small tables by their names.

    Of a stretch it reads the ids, and with `values` the rows. One task `counts` them for the fingerprint.
    """

    rows: Rows | tuple[str, ...]
    values: bool = True
    counts: bool = True


class SummedBytes(NamedTuple):
    """Bytes of a file that have a checksum in the framing."""

    file: int
    offset: int
    size: int


class MoveTask(NamedTuple, Generic[Rows]):
    """What one task reads, and the parts of uploads that it sends."""

    dense: tuple[DenseBytes, ...] = ()
    reads: tuple[TaskRead[Rows], ...] = ()
    extents: tuple[Extent, ...] = ()
    again: tuple[DenseBytes, ...] = ()
    """What it reads of variables, and another task counts."""
    between: tuple[SealedBytes, ...] = ()
    """The framing in its parts that only the planner knows, in the order of the files and offsets."""
    summed: tuple[SummedBytes, ...] = ()
    """The values whose checksums it answers, as far as they are in its parts."""
    sealed: tuple[SummedBytes, ...] = ()
    """Of the values with checksums in its framing, those that are not whole in its parts: it reads all of them."""


@dataclass(frozen=True, slots=True)
class PartsPlan:
    """How parts are sent, and what that costs."""

    strategy: str
    """'direct' when all open parts are in memory, 'spilled' when some wait on the local disk of the worker, 'grouped'
    when sources are read once for each of several groups of targets."""
    groups: int
    tasks: int
    parts: int
    value_bytes: int
    """The bytes of all values."""
    values_read: int
    """The bytes of values that tasks read."""
    ids_read: int
    """The bytes of ids that tasks read, as shards contain them."""
    open_bytes: int
    """What the open parts of a worker take, about."""
    memory_bytes: int
    """The memory of a worker for open parts."""
    spilled_bytes: int
    """The bytes that wait on local disks, about."""
    least_bytes: int
    task_bytes: int

    @property
    def times_read(self) -> float:
        """Return how many times each value is read, on average."""
        return self.values_read / self.value_bytes if self.value_bytes else 1.0

    def __str__(self) -> str:
        spilled = f", {size(self.spilled_bytes)} by local disks" if self.spilled_bytes else ""
        return (
            f"{counted(self.parts, 'part')} in {counted(self.tasks, 'task')}, {self.strategy}: values read"
            f" {self.times_read:.2f} times ({size(self.values_read)}){spilled}; open parts of a worker take"
            f" {size(self.open_bytes)}"
        )


def plan_parts(plan: ShardPlan, executor: Executor, least_bytes: int, *, memory_bytes: int | None = None) -> PartsPlan:
    """Return the cheapest way to send the parts of a plan, counted in bytes that are read and written.

    `least_bytes` is the least size of a part for the storage, `memory_bytes` what the open parts of a worker may take.
    """
    memory = WORKER_PART_BYTES if memory_bytes is None else memory_bytes
    survey, size_bytes, classes, read = plan.survey, plan.size_bytes, plan.groups, _Reads(plan)
    total, task_bytes = plan.layouts.value_bytes + survey.id_bytes, executor.task_bytes(size_bytes)
    small = sum(sum(read.sizes(counts)) for counts in survey.small)
    part = least_part(max(plan.layouts.size_bytes.tolist(), default=0), least_bytes)

    def open_bytes(groups: int) -> int:
        return min(executor.threads * -(-plan.to_ps // groups) * part * 3 // 2, size_bytes)

    def spilled(groups: int) -> int:
        taken = open_bytes(groups)
        return size_bytes * (taken - memory) // taken if taken > memory else 0

    def cost(groups: int) -> tuple[float, int]:
        if open_bytes(groups) > memory and not has_room(open_bytes(groups) - memory):
            return float("inf"), open_bytes(groups)
        values_read = (total - small) * max(groups // classes, 1) + small * groups
        return values_read + 2 * spilled(groups), open_bytes(groups)

    @cache
    def has_room(needed: int) -> bool:
        try:
            executor.check_temporary(-(-needed // executor.threads), executor.threads)
        except UnsupportedError:
            return False
        return True

    merged = [n for n in range(1, classes + 1) if classes % n == 0]
    split = [classes * n for n in range(2, -(-plan.to_ps // classes) + 1)]
    groups = min((*merged, *split[:8], *split[-1:]), key=cost)
    strategy = "spilled" if spilled(groups) else "direct"
    if groups > classes:
        strategy = "grouped"
    tasks = parts = values_read = ids_read = 0
    for task in part_tasks(plan, groups, least_bytes, task_bytes):
        values, ids = read.by(task)
        tasks, values_read, ids_read = tasks + 1, values_read + values, ids_read + ids
        parts += sum(len(extent.edges) - 1 for extent in task.extents)
    return PartsPlan(
        strategy=strategy,
        groups=groups,
        tasks=tasks,
        parts=parts,
        value_bytes=plan.layouts.value_bytes,
        values_read=values_read,
        ids_read=ids_read,
        open_bytes=open_bytes(groups),
        memory_bytes=memory,
        spilled_bytes=spilled(groups),
        least_bytes=least_bytes,
        task_bytes=task_bytes,
    )


class _Reads:
    """What tasks read, in bytes."""

    def __init__(self, plan: ShardPlan) -> None:
        self._row_bytes, self._stretches = plan.row_bytes, plan.survey.counts
        self._small = {counts.table: counts for counts in plan.survey.small}

    def sizes(self, counts: PieceCounts) -> tuple[int, int]:
        """Return the bytes of some rows, and of their ids."""
        return int(counts.rows.sum()) * self._row_bytes[counts.table], int(counts.id_bytes.sum())

    def by(self, task: MoveTask[int]) -> tuple[int, int]:
        """Return the bytes of values and of ids that a task reads."""
        values, ids = sum(dense.size for dense in task.dense), 0
        for read in task.reads:
            rows = read.rows
            counts = [self._stretches[rows]] if isinstance(rows, int) else [self._small[name] for name in rows]
            for own_values, own_ids in map(self.sizes, counts):
                values += own_values * read.values
                ids += own_ids
        return values, ids


def part_tasks(plan: ShardPlan, groups: int, least_bytes: int, task_bytes: int) -> Iterator[MoveTask[int]]:
    """Yield the tasks of all groups: together they send each byte of each target once, and count each value once."""
    stretches = _in_groups(plan, groups)
    for number in range(groups):
        if number < plan.to_ps:
            yield from _GroupTasks(plan, number, groups, stretches[number], least_bytes, task_bytes).tasks()


class _Share(NamedTuple):
    """What a group gets of a stretch."""

    number: int
    rows: bulk.I64
    id_bytes: bulk.I64
    is_first: bool
    """True in the first group that reads the stretch, which counts its values."""


def _in_groups(plan: ShardPlan, groups: int) -> list[dict[str, list[_Share]]]:
    found: list[dict[str, list[_Share]]] = [{} for _ in range(groups)]
    for number, counts in enumerate(plan.survey.counts):
        used = np.unique(np.flatnonzero(counts.id_bytes) % groups).tolist() or [0]
        for group in used:
            share = _Share(number, counts.rows[group::groups], counts.id_bytes[group::groups], group == used[0])
            found[group].setdefault(counts.table, []).append(share)
    return found


class _Step(NamedTuple):
    """What comes next in all targets of a group."""

    ends: bulk.I64
    """Where it ends in each target."""
    used: _Flags
    """The targets for which a source must be read."""
    reads: TaskRead[int] | None
    result_bytes: int = 0


class _GroupTasks:
    """Targets of one remainder, and how far the tasks so far have come in each of them."""

    def __init__(
        self,
        plan: ShardPlan,
        number: int,
        groups: int,
        stretches: dict[str, list[_Share]],
        least_bytes: int,
        task_bytes: int,
    ) -> None:
        self._plan, self._number, self._stretches = plan, number, stretches
        self._targets = np.arange(number, plan.to_ps, groups)
        self._sizes = plan.layouts.size_bytes[self._targets]
        self._least = np.array([least_part(each, least_bytes) for each in self._sizes.tolist()], np.int64)
        self._task_bytes = max(task_bytes, 1)
        self._edges = np.zeros(len(self._targets), np.int64)
        self._parts = np.zeros(len(self._targets), np.int64)
        self._dense: dict[int, list[tuple[int, int, str]]] = {}
        for variable in plan.survey.variables:
            owner, at = plan.layouts.dense_at(variable.name)
            self._dense.setdefault(owner, []).append((at, variable.size_bytes, variable.name))
        for some in self._dense.values():
            some.sort()

    def tasks(self) -> Iterator[MoveTask[int]]:
        """Yield the tasks in the order of the bytes of each target."""
        yield from self._fronts()
        steps: list[_Step] = []
        first = np.full(len(self._targets), -1, np.int64)  # the first step that a target waits for
        begin, before, results = 0, self._edges.copy(), 0
        most = _WAIT * max(self._task_bytes, int(self._least.sum()))
        following = self._steps()
        step: _Step | None = next(following)
        while step is not None:
            steps.append(step)
            step = next(following, None)
            ends = self._sizes if step is None else steps[-1].ends
            results += steps[-1].result_bytes
            first[steps[-1].used & (first < 0)] = len(steps) - 1
            waiting = ends - self._edges
            whole = (waiting >= self._least) | ((step is None) & (waiting > 0))
            grown = int((ends - before).sum())
            is_full = grown >= self._task_bytes or results >= RESULT_BYTES
            if step is None or (is_full and not (~whole & (first >= 0)).any()) or (grown >= most and whole.any()):
                task = self._close(steps, begin, first, ends, whole)
                if any(task):
                    yield task
                first[whole] = -1
                begin, before, results = len(steps), ends, 0

    def _fronts(self) -> Iterator[MoveTask[int]]:
        """Yield tasks for variables that are parts by themselves; the rest goes with the first table."""
        for place, target in enumerate(self._targets.tolist()):
            dense = self._dense.get(target, [])
            least = int(self._least[place])
            end = max((at + size_bytes for at, size_bytes, _ in dense), default=0)
            step = max(self._task_bytes, least)
            while end - self._edges[place] >= least:
                low, cut = int(self._edges[place]), end
                if end - low >= 2 * step + bulk.CHUNK_BYTES:
                    at, size_bytes, _ = next(each for each in dense if each[0] + each[1] >= low + step)
                    cut = at + min(-(-max(low + step - at, 0) // bulk.CHUNK_BYTES) * bulk.CHUNK_BYTES, size_bytes)
                own = self._take(place, cut)
                yield MoveTask[int](tuple(self._dense_in(target, low, cut)), extents=(own,))

    def _take(self, place: int, end: int) -> Extent:
        """Return the parts of a target up to an offset, and go on there."""
        start, least, first = int(self._edges[place]), int(self._least[place]), int(self._parts[place])
        edges = (start, *even_edges(start, end, least))
        self._edges[place] = end
        self._parts[place] += len(edges) - 1
        return Extent(int(self._targets[place]), edges, first)

    def _dense_in(self, target: int, low: int, high: int) -> Iterator[DenseBytes]:
        """Yield the bytes of variables in [low, high) of a target; an empty variable is where it would begin."""
        for at, size_bytes, name in self._dense.get(target, ()):
            start, end = max(at, low), min(at + size_bytes, high)
            is_last = high == self._plan.layouts.size_bytes[target]
            if start < end or (not size_bytes and low <= at and (at < high or is_last)):
                yield DenseBytes(name, start - at, end - start)

    def _close(self, steps: list[_Step], begin: int, first: bulk.I64, ends: bulk.I64, whole: _Flags) -> MoveTask[int]:
        """Return the task that reads the steps from `begin` on, and sends what the `whole` targets wait for."""
        extents: list[Extent] = []
        dense: list[DenseBytes] = []
        for place in np.flatnonzero(whole).tolist():
            low, high = int(self._edges[place]), int(ends[place])
            extents.append(self._take(place, high))
            dense += self._dense_in(int(self._targets[place]), low, high)
        waited = first[whole & (first >= 0)]
        small: list[TaskRead[int]] = []
        passes: dict[int, TaskRead[int]] = {}
        for number in range(min(begin, int(waited.min(initial=begin))), len(steps)):
            reads, is_new = steps[number].reads, number >= begin
            if reads is None or not (is_new or (steps[number].used & whole).any()):
                continue
            if isinstance(reads.rows, tuple):
                small.append(reads._replace(counts=reads.counts and is_new))
                continue
            known = passes.get(reads.rows, TaskRead(reads.rows, values=False, counts=False))
            counts = known.counts or (reads.counts and is_new)
            passes[reads.rows] = TaskRead(reads.rows, known.values or reads.values, counts)
        return MoveTask[int](tuple(dense), (*small, *passes.values()), tuple(extents))

    def _steps(self) -> Iterator[_Step]:
        """Yield what comes in the targets, from front to back."""
        layouts, row_bytes = self._plan.layouts, self._plan.row_bytes
        small = {counts.table: sum(_Reads(self._plan).sizes(counts)) for counts in self._plan.survey.small}
        yield _Step(layouts.tables_at[0][self._targets], np.zeros(len(self._targets), np.bool_), None)
        some: list[str] = []
        waiting = 0
        for table in sorted(row_bytes, key=layouts.number):
            if table in small:
                some.append(table)
                waiting += small[table]
                if waiting < _SMALL_BYTES:
                    continue
            if some:
                yield self._small_step(some, row_bytes)
                some, waiting = [], 0
            if table not in small:
                yield from self._table_steps(table, row_bytes[table])
        if some:
            yield self._small_step(some, row_bytes)

    def _small_step(self, names: list[str], row_bytes: Mapping[str, int]) -> _Step:
        ends = self._plan.layouts.tables_at[self._plan.layouts.number(names[-1]) + 1][self._targets]
        results = sum(4 * sketch_size(row_bytes[name]) for name in names)
        reads = TaskRead[int](tuple(names), counts=self._number == 0)
        return _Step(ends, np.ones(len(self._targets), np.bool_), reads, results)

    def _table_steps(self, table: str, row_bytes: int) -> Iterator[_Step]:
        """Yield the rows of all stretches, and then their ids."""
        shares, layouts = self._stretches.get(table, []), self._plan.layouts
        result = 4 * sketch_size(row_bytes)
        at = layouts.values_at(table)[self._targets]
        for share in shares if row_bytes else ():
            at = at + share.rows * row_bytes
            yield _Step(at, share.rows > 0, TaskRead(share.number, values=True, counts=share.is_first), result)
            result = 0
        at = layouts.ids_at(table)[self._targets]
        for share in shares:
            at = at + share.id_bytes
            counts = share.is_first and not row_bytes
            yield _Step(at, share.id_bytes > 0, TaskRead(share.number, values=False, counts=counts), result)
            result = 0
