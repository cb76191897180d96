"""The parts of uploads of files that are laid out in any way: which task sends a part, and what it reads for it.

A file has the parts that its upload has by itself, so any process may send any of them. What stands in a part decides
who sends it:

* Bytes of variables, and framing: some parts are a task, which reads just these bytes. It fills in checksums of values
  that begin shortly before, and reads all of these.
* Rows and ids that come in the order of the source: the stretches of a block are read by the task that sends the parts
  that are whole with them. What it needs of stretches before its block it reads again, as far as there are such rows.
* Anything else, as checksums of large tensors and tables that are sorted: this process sends the part.

A task counts the stretches of its block, and of variables the bytes from one whole unit of their sums to another, so
each value is counted once, however often it is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.parallel import RESULT_BYTES, Executor
from edl_ckpt.core.commit.sent_parts import Extent
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.moving.extents import Span
from edl_ckpt.core.moving.goal import FileGoal
from edl_ckpt.core.moving.parts import WORKER_PART_BYTES, DenseBytes, MoveTask, SummedBytes, TaskRead
from edl_ckpt.core.moving.plan import MovePlan
from edl_ckpt.core.moving.sealed import SealedBytes
from edl_ckpt.core.storage.parts import least_part

_MOST_RESULT_BYTES: Final = 16 * RESULT_BYTES
"""The most bytes of sums of a task: a variable alone may have more than `RESULT_BYTES`."""
MOST_BYTES: int = 768 << 20
"""The most bytes of the parts of a task: those without memory wait on the local disk of the worker. Tests set it."""
_TIMES: Final = 8
"""A table is read about so many times at most, where each part has rows of all its stretches."""
_MOST_PARTS: Final = 1024
_WAIT: Final = 4
"""How many times the bytes of a block are those of the parts that it leaves incomplete: these are read again."""
EXACT_BYTES: int = 32 << 20
"""The least bytes of a task of variables: it reads up to half of that again for a checksum in its first part.

Tests set it.
"""
_OWN_BYTES: Final = 64 << 20
"""The bytes of parts that a thread of this process fills at a time."""


class PartRun(NamedTuple):
    """Parts [first, end) of a file."""

    file: _File
    first: int
    end: int

    @property
    def span(self) -> Span:
        """Return their bytes."""
        return Span(self.first * self.file.part_bytes, min(self.end * self.file.part_bytes, self.file.size_bytes))

    @property
    def extent(self) -> Extent:
        """Return them as a task names them."""
        low, high = self.span
        return Extent(self.file.number, (*range(low, high, self.file.part_bytes), high), self.first)


class _Needed:
    """What a task reads for its parts."""

    def __init__(self, counted: Iterable[int]) -> None:
        self.counted = set(counted)
        self.stretches = dict.fromkeys(self.counted, True)
        """Whether the rows of a stretch are needed, or its ids alone."""
        self.dense: dict[str, list[Span]] = {}
        self.dense_counted: dict[str, list[Span]] = {}

    def add_stretches(self, places: Iterable[int], *, values: bool) -> None:
        """Add stretches by their places in the order."""
        for place in places:
            self.stretches[place] = self.stretches.get(place, False) or values

    def add_dense(self, name: str, start: int, end: int, counted_from: int) -> None:
        """Add bytes of a variable; they are counted here from an offset on."""
        self.dense.setdefault(name, []).append(Span(start, end))
        if max(start, counted_from) < end:
            self.dense_counted.setdefault(name, []).append(Span(max(start, counted_from), end))


@dataclass(frozen=True, slots=True)
class _Content(ABC):
    """What stands in [start, end) of a file."""

    start: int
    end: int

    @abstractmethod
    def add_to(self, needed: _Needed, low: int, high: int) -> None:
        """Add what must be read for [low, high) of the file, which is inside."""

    def add_uncounted(self, needed: _Needed, low: int, high: int) -> None:
        """Add it where it is only summed."""
        self.add_to(needed, low, high)


@dataclass(frozen=True, slots=True)
class _VariableBytes(_Content):
    """Bytes of a variable from `at` on; those before `counted_from` have been counted for another place."""

    name: str
    at: int
    counted_from: int

    def add_to(self, needed: _Needed, low: int, high: int) -> None:
        """Add just these bytes."""
        shift = self.at - self.start
        needed.add_dense(self.name, low + shift, high + shift, self.counted_from)

    def add_uncounted(self, needed: _Needed, low: int, high: int) -> None:
        """Add just these bytes, which are counted elsewhere."""
        shift = self.at - self.start
        needed.add_dense(self.name, low + shift, high + shift, high + shift)


@dataclass(frozen=True, slots=True)
class _MatrixRows(_Content):
    """Bytes of a matrix from `at` on, whose rows have numbers; `lows` and `highs` are the bytes of each stretch."""

    at: int
    places: bulk.I64
    lows: bulk.I64
    highs: bulk.I64

    def add_to(self, needed: _Needed, low: int, high: int) -> None:
        """Add the stretches that have any of these rows."""
        shift = self.at - self.start
        has_some = (self.lows < high + shift) & (self.highs > low + shift)
        needed.add_stretches(self.places[has_some].tolist(), values=True)


@dataclass(frozen=True, slots=True)
class _BucketRows(_Content):
    """The rows, or the ids, of a bucket; `ends` says where those of each stretch end in the file: int64 [stretches]."""

    places: bulk.I64
    ends: bulk.I64
    values: bool

    def add_to(self, needed: _Needed, low: int, high: int) -> None:
        """Add the stretches that have any of these rows."""
        first, last = np.searchsorted(self.ends, (low, high - 1), "right").tolist()
        begins = np.concatenate([[self.start], self.ends[:-1]])[first : last + 1]
        has_some = self.ends[first : last + 1] > begins
        needed.add_stretches(self.places[first : last + 1][has_some].tolist(), values=self.values)


@dataclass(eq=False)
class _File:
    """A file, and what stands in it."""

    number: int
    size_bytes: int
    part_bytes: int
    contents: list[_Content] = field(default_factory=list)
    framing: list[SealedBytes] = field(default_factory=list)
    """What tasks write of it: checksums in it are of few bytes right before."""
    summed: list[Span] = field(default_factory=list)
    """The values that have a checksum in the framing."""

    def __post_init__(self) -> None:
        self.parts = -(-self.size_bytes // self.part_bytes)
        self.last = np.full(self.parts, -1, np.int64)
        """The place of the last stretch that each part needs, -1 for none: int64 [parts]."""
        self.results = np.zeros(self.parts, np.int64)
        """The bytes of the sums that reading a part gives: int64 [parts]."""

    def sort(self) -> None:
        """Order what was added."""
        self.contents.sort(key=attrgetter("start"))
        self.framing.sort(key=attrgetter("offset"))
        self.summed.sort()

    @cached_property
    def is_own(self) -> npt.NDArray[np.bool_]:
        """The parts that this process sends: bool [parts]."""
        spans = [(content.start, content.end) for content in self.contents]
        spans += [(some.offset, some.end) for some in self.framing]
        known = np.array(sorted(spans), np.int64).reshape(-1, 2)
        edges = np.minimum(np.arange(self.parts + 1) * self.part_bytes, self.size_bytes)
        covered = np.diff(_bytes_below(known, edges))
        has_many_sums = (self.results > _MOST_RESULT_BYTES) & (self.last < 0)
        return (covered < np.diff(edges)) | has_many_sums

    def parts_of(self, start: int, end: int) -> slice:
        """Return the numbers of the parts that have some of [start, end)."""
        return slice(start // self.part_bytes, -(-end // self.part_bytes))

    def inside(self, span: Span) -> Iterator[tuple[_Content, int, int]]:
        """Yield what stands in a part of the file, with the offsets from which and to which it does."""
        first = max(bisect_right(self.contents, span.start, key=attrgetter("start")) - 1, 0)
        for content in self.contents[first:]:
            if content.start >= span.end:
                return
            low, high = max(content.start, span.start), min(content.end, span.end)
            if low < high:
                yield content, low, high

    def framing_in(self, span: Span) -> Iterator[SealedBytes]:
        """Yield the framing in a part of the file: that with checksums whole, other one as far as it is there."""
        first = max(bisect_right(self.framing, span.start, key=attrgetter("offset")) - 1, 0)
        for some in self.framing[first:]:
            if some.offset >= span.end:
                return
            low, high = max(some.offset, span.start), min(some.end, span.end)
            if low < high and some.sums:
                yield some
            elif low < high:
                yield SealedBytes(self.number, low, some.data[low - some.offset : high - some.offset])

    def add_framing(self, some: SealedBytes) -> None:
        """Add framing, after `sort`, if a task can know its checksums: of variables that begin shortly before it."""
        near = all(some.offset - EXACT_BYTES // 2 <= value.start for _, value in some.sums)
        if near and all(self._is_of_variables(value) for _, value in some.sums):
            self.framing.append(some)

    def _is_of_variables(self, span: Span) -> bool:
        inside = [(content, low, high) for content, low, high in self.inside(span)]
        size_bytes = sum(high - low for _, low, high in inside)
        return size_bytes == span.end - span.start and all(isinstance(one, _VariableBytes) for one, _, _ in inside)

    def summed_in(self, span: Span) -> Iterator[SummedBytes]:
        """Yield the values with checksums that have bytes in a part of the file."""
        first = max(bisect_right(self.summed, (span.start,)) - 1, 0)
        for start, end in self.summed[first:]:
            if start >= span.end:
                return
            if end > span.start:
                yield SummedBytes(self.number, start, end - start)


def _bytes_below(spans: bulk.I64, offsets: bulk.I64) -> bulk.I64:
    """Return how many bytes of spans, int64 [n, 2] that are apart and ascend, lie below each offset."""
    if not len(spans):
        return np.zeros(len(offsets), np.int64)
    starts, sizes = spans[:, 0], spans[:, 1] - spans[:, 0]
    before = np.cumsum(sizes) - sizes
    number = np.maximum(np.searchsorted(starts, offsets, "right") - 1, 0)
    below: bulk.I64 = before[number] + np.clip(offsets - starts[number], 0, sizes[number])
    return below


class FileParts:
    """The parts of all files of a plan."""

    def __init__(self, plan: MovePlan, executor: Executor, least_bytes: int) -> None:
        """Take a plan into files of any system, and the least size of a part for the storage."""
        assert isinstance(plan.goal, FileGoal)  # noqa: S101 - shards have a planner that needs no second reading
        self._plan, self._goal = plan, plan.goal
        self._executor, self._task_bytes = executor, max(executor.task_bytes(plan.size_bytes), 1)
        self._files = [_File(n, size, least_part(size, least_bytes)) for n, size in enumerate(plan.sizes)]
        self._places: dict[str, list[int]] = {}
        """The places of the stretches of each table in the order in which they move."""
        for place, number in enumerate(plan.order):
            self._places.setdefault(plan.survey.counts[number].table, []).append(place)
        self._sizes = np.zeros(len(plan.order), np.int64)
        self._fills: list[dict[int, int]] = [{} for _ in plan.order]
        """Up to where a stretch fills each file that it goes to."""
        self._room: dict[int, bool] = {}
        """Whether workers have room for temporary files of so many bytes a task."""
        self._joint: set[int] = set()
        """The stretches after which no block ends: parts have rows of many of them."""
        self._nowhere: dict[str, list[Span]] = {}
        """Bytes of variables that go nowhere, and are counted all the same."""
        for name in self._places:
            self._add_table(name)
        for variable in plan.survey.variables:
            self._add_variable(variable.name, variable.size_bytes)
        for file, offset, size_bytes in plan.checked_values:
            self._files[file].summed.append(Span(offset, offset + size_bytes))
        for of_all in self._files:
            of_all.sort()
        for some in plan.fixed_framing:
            self._files[some.file].add_framing(some)
        for of_all in self._files:
            of_all.sort()

    def _add_table(self, name: str) -> None:
        places = np.array(self._places[name], np.int64)
        numbers = [self._plan.order[place] for place in self._places[name]]
        row_bytes, spread = self._plan.row_bytes[name], self._goal.places.get(name)
        if spread is None:
            self._add_matrix(name, places, numbers, row_bytes)
            return
        counts = [self._plan.survey.counts[number] for number in numbers]
        rows = np.stack([count.rows for count in counts])
        id_bytes = np.stack([count.id_bytes for count in counts])
        self._sizes[places] = rows.sum(axis=1) * row_bytes + id_bytes.sum(axis=1)
        columns = [(spread.rows, rows * row_bytes, True)]
        if spread.ids is not None:
            columns.append((spread.ids, id_bytes, False))
        for (file_of, start_of), sizes, values in columns:
            used = np.flatnonzero(sizes.sum(axis=0))
            ends = start_of[used] + np.cumsum(sizes[:, used], axis=0)
            for column, bucket in enumerate(used.tolist()):
                self._add_bucket(int(file_of[bucket]), int(start_of[bucket]), places, ends[:, column], values=values)
            if len(np.unique(file_of[used])) < len(used):
                self._joint.update(places[:-1].tolist())
                continue
            for stretch, column in np.argwhere(sizes[:, used]).tolist():
                self._fills[places[stretch]][int(file_of[used[column]])] = int(ends[stretch, column])

    def _add_bucket(self, number: int, start: int, places: bulk.I64, ends: bulk.I64, *, values: bool) -> None:
        file, end = self._files[number], int(ends[-1])
        file.contents.append(_BucketRows(start, end, places, ends, values))
        own = file.parts_of(start, end)
        last_bytes = np.minimum((np.arange(own.start, own.stop) + 1) * file.part_bytes, end) - 1
        last = places[np.searchsorted(ends, last_bytes, "right")]
        file.last[own] = np.maximum(file.last[own], last)

    def _add_matrix(self, name: str, places: bulk.I64, numbers: Sequence[int], row_bytes: int) -> None:
        rows = np.array([self._plan.row_numbers(number) for number in numbers], np.int64).reshape(-1, 2)
        lows, highs = rows[:, 0] * row_bytes, rows[:, 1] * row_bytes
        self._sizes[places] = highs - lows
        for cut in self._goal.cuts(name):
            if cut.start == cut.end:
                continue
            file, shift = self._files[cut.file], cut.offset - cut.start
            file.contents.append(_MatrixRows(cut.offset, shift + cut.end, cut.start, places, lows, highs))
            for place, low, high in zip(places.tolist(), lows.tolist(), highs.tolist(), strict=True):
                start, end = max(low, cut.start), min(high, cut.end)
                if start < end:
                    own = file.parts_of(start + shift, end + shift)
                    file.last[own] = np.maximum(file.last[own], place)
                    self._fills[place][cut.file] = end + shift

    def _add_variable(self, name: str, size_bytes: int) -> None:
        total = self._plan.meaning.row_bytes.get(name) or size_bytes
        result = total if total <= bulk.CHUNK_BYTES else 4 * sketch_size(total)
        counted_to = 0
        for cut in self._goal.cuts(name):
            if cut.start == cut.end:
                continue
            if cut.start > counted_to:
                self._nowhere.setdefault(name, []).append(Span(counted_to, cut.start))
                counted_to = cut.start
            file, end = self._files[cut.file], cut.offset + cut.end - cut.start
            file.contents.append(_VariableBytes(cut.offset, end, name, cut.start, counted_to))
            file.results[file.parts_of(cut.offset, end)] += result
            counted_to = max(counted_to, cut.end)
        if counted_to < size_bytes or not size_bytes:
            self._nowhere.setdefault(name, []).append(Span(counted_to, size_bytes))

    def own_spans(self) -> dict[int, list[Span]]:
        """Return the bytes that this process writes, by the numbers of their files."""
        return {file.number: [run.span for run in _runs(file, file.is_own)] for file in self._files}

    def tasks(self) -> Iterator[MoveTask[int]]:
        """Yield the tasks of other processes: they send all parts but those of this one, and count all stretches."""
        exact = (run for file in self._files for run in _runs(file, ~file.is_own & (file.last < 0)))
        for runs in _together(exact, max(self._task_bytes, EXACT_BYTES)):
            yield self._task(runs)
        ends = self._block_ends()
        parts: list[list[PartRun]] = [[] for _ in ends]
        for file in self._files:
            block_of = np.searchsorted(ends, file.last, "right")
            for number in np.unique(block_of[~file.is_own & (file.last >= 0)]).tolist():
                parts[number] += _runs(file, ~file.is_own & (file.last >= 0) & (block_of == number))
        begins = [0, *ends][: len(ends)]
        for begin, end, of_block in zip(begins, ends, parts, strict=True):
            counted: Iterable[int] = range(begin, end)
            for runs in _together(of_block, self._most_bytes(int(self._sizes[begin:end].sum()))):
                yield self._task(runs, counted)
                counted = ()
            if not of_block:
                yield self._task((), counted)

    def _most_bytes(self, block_bytes: int) -> int:
        """Return how many bytes of parts a task of a block may send: those that wait need memory, or a local disk."""
        in_memory = WORKER_PART_BYTES // self._executor.threads
        wanted = max(MOST_BYTES, block_bytes // _TIMES)
        return wanted if block_bytes <= in_memory or self._has_room(wanted) else in_memory

    def _has_room(self, size_bytes: int) -> bool:
        if size_bytes not in self._room:
            try:
                self._executor.check_temporary(size_bytes, self._executor.threads)
                self._room[size_bytes] = True
            except UnsupportedError:
                self._room[size_bytes] = False
        return self._room[size_bytes]

    def own_tasks(self) -> Iterator[MoveTask[int]]:
        """Yield what this process reads for its own parts; nothing where only framing, or sorted rows, stand there."""
        exact = (run for file in self._files for run in _runs(file, file.is_own & (file.last < 0)))
        some = [self._task(runs, seals=False) for runs in _together(exact, _OWN_BYTES)]
        rows = [run for file in self._files for run in _runs(file, file.is_own & (file.last >= 0))]
        some.append(self._task(rows, seals=False))
        some.append(MoveTask(self._counted_only()))
        return (task for task in some if task.dense or task.again or task.reads)

    def _counted_only(self) -> tuple[DenseBytes, ...]:
        """Return what is only counted: a variable of no bytes is an empty piece."""
        needed = _Needed(())
        for name, spans in self._nowhere.items():
            for start, end in spans:
                needed.add_dense(name, start, end, start)
        empty = (DenseBytes(name, 0, 0) for name in self._nowhere if not self._variable_bytes[name])
        return (*self._dense_reads(needed)[0], *empty)

    def _block_ends(self) -> list[int]:
        """Return after which stretches, in their order, blocks end."""
        ends, tables = list[int](), set[str]()
        waiting: dict[int, int] = {}
        total = 0
        for place, number in enumerate(self._plan.order):
            total += int(self._sizes[place])
            for file, end in self._fills[place].items():
                waiting[file] = 0 if end == self._files[file].size_bytes else end % self._files[file].part_bytes
            tables.add(self._plan.survey.counts[number].table)
            results = sum(4 * sketch_size(self._plan.row_bytes[name]) for name in tables)
            wanted = min(max(self._task_bytes, _WAIT * sum(waiting.values())), MOST_BYTES)
            is_full = total >= wanted or results >= _MOST_RESULT_BYTES
            if place + 1 == len(self._plan.order) or (is_full and place not in self._joint):
                ends.append(place + 1)
                tables.clear()
                total = 0
        return ends

    def _task(self, runs: Sequence[PartRun], counted: Iterable[int] = (), *, seals: bool = True) -> MoveTask[int]:
        """Return the task that sends some parts, and counts some stretches by their places.

        Unless it `seals` them, another one writes their framing.
        """
        needed, between, summed = _Needed(counted), list[SealedBytes](), list[SummedBytes]()
        sealed: dict[SummedBytes, None] = {}
        for run in runs:
            of_run = list(run.file.framing_in(run.span)) if seals else []
            between += of_run
            for value in (value for some in of_run for _, value in some.sums):
                if value.start < run.span.start:
                    sealed[SummedBytes(run.file.number, value.start, value.end - value.start)] = None
                    for content, low, high in run.file.inside(value):
                        content.add_uncounted(needed, low, high)
            summed += run.file.summed_in(run.span)
            for content, low, high in run.file.inside(run.span):
                content.add_to(needed, low, high)
        dense, again = self._dense_reads(needed)
        reads = [
            TaskRead(self._plan.order[place], values=values, counts=place in needed.counted)
            for place, values in sorted(needed.stretches.items())
        ]
        extents = tuple(run.extent for run in runs)
        sums = tuple(dict.fromkeys(summed)), tuple(sealed)
        return MoveTask(dense, tuple(reads), extents, tuple(again), tuple(between), *sums)

    def _dense_reads(self, needed: _Needed) -> tuple[tuple[DenseBytes, ...], list[DenseBytes]]:
        """Return the bytes of variables that a task counts, and those that it only writes, both by whole units."""
        counted, again = list[DenseBytes](), list[DenseBytes]()
        sizes = self._variable_bytes
        for name, spans in needed.dense.items():
            unit, size_bytes = self._plan.meaning.row_bytes.get(name) or bulk.CHUNK_BYTES, sizes[name]

            def up(offset: int, unit: int = unit, size_bytes: int = size_bytes) -> int:
                return min(-(-offset // unit) * unit, size_bytes)

            own = _joined(Span(up(start), up(end)) for start, end in needed.dense_counted.get(name, ()))
            whole = _joined(Span(start // unit * unit, up(end)) for start, end in spans)
            counted += (DenseBytes(name, start, end - start) for start, end in own)
            again += (DenseBytes(name, start, end - start) for start, end in _without(whole, own))
        return tuple(counted), again

    @cached_property
    def _variable_bytes(self) -> Mapping[str, int]:
        return {variable.name: variable.size_bytes for variable in self._plan.survey.variables}


def _runs(file: _File, chosen: npt.NDArray[np.bool_]) -> Iterator[PartRun]:
    """Yield the chosen parts of a file, those together that follow each other."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    for first, end in edges.reshape(-1, 2).tolist():
        yield PartRun(file, first, end)


def _together(runs: Iterable[PartRun], limit: int) -> Iterator[list[PartRun]]:
    """Yield parts, so many that their bytes and their sums are a task."""
    some: list[PartRun] = []
    size = results = count = 0
    for run in runs:
        for part in range(run.first, run.end):
            size_bytes, result = min(run.file.part_bytes, run.file.size_bytes), int(run.file.results[part])
            is_full = size + size_bytes > limit or results + result > _MOST_RESULT_BYTES
            if some and (is_full or count == _MOST_PARTS):
                yield some
                some = []
                size = results = count = 0
            if some and some[-1].file is run.file and some[-1].end == part:
                some[-1] = some[-1]._replace(end=part + 1)
            else:
                some.append(PartRun(run.file, part, part + 1))
            size += size_bytes
            results += result
            count += 1
    if some:
        yield some


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return spans in their order, without those of no bytes; those that meet are one.

    >>> _joined([Span(4, 6), Span(0, 2), Span(2, 3), Span(9, 9)])
    [Span(start=0, end=3), Span(start=4, end=6)]
    """
    joined: list[Span] = []
    for span in sorted(spans):
        if span.start >= span.end:
            continue
        if joined and span.start <= joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def _without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return what of some spans is in no other one; both are as `_joined` returns them.

    >>> _without([Span(0, 9)], [Span(2, 4), Span(8, 12)])
    [Span(start=0, end=2), Span(start=4, end=8)]
    """
    left: list[Span] = []
    for start, end in spans:
        at = start
        for other in others:
            if at < other.start < end:
                left.append(Span(at, other.start))
            if other.end > at and other.start < end:
                at = max(at, other.end)
        if at < end:
            left.append(Span(at, end))
    return left
