"""The survey of an input: everything that a plan needs, from headers and ids, without a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from math import gcd
from typing import Final, NamedTuple, TypeVar

import numpy as np

from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.converting.changes import LeftOut
from edl_ckpt.core.moving.goal import Rules, ShardRules
from edl_ckpt.core.moving.input import FilteredRows, Input, PieceCounts, SparsePair, SparsePairs, SurveyedTable
from edl_ckpt.core.proof.id_order import NO_IDS, IdOrder, order_of
from edl_ckpt.core.reading.blocks import IdBlock
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt
from edl_ckpt.core.sources.elasticdl.target import PlacedVariable, check_ps_num

MAX_STRETCHES: Final = 256
"""About how many stretches all ids are counted in, however many they are: a plan does not grow with the rows."""
LEAST_STRETCH_BYTES: Final = 8 << 20
_COUNTED_BYTES: Final = 512
"""About the bytes of the counts of a stretch as a result, without targets."""
_TARGET_BYTES: Final = 24


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SourceSurvey:
    """A source, counted for `to_ps` parameter servers."""

    to_ps: int
    number: int
    """The version number that its shards contain."""
    variables: tuple[PlacedVariable, ...]
    tables: tuple[SurveyedTable, ...]
    counts: Sequence[PieceCounts]
    """Of each stretch, in the order of the rows in the target: by table, source shard and row."""
    stretches: tuple[IdsAt, ...]
    """The ids of one table in one shard that are counted together. The execution cuts them into pieces."""
    small: tuple[PieceCounts, ...] = ()
    """Of each small table as a whole, in the order of the target: their rows are counted again when they move."""
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    """The lowest and the highest id that goes out, of each table that has stretches with any."""
    bytes_read: int = 0
    left_out: tuple[LeftOut, ...] = ()
    """What the source has and shards cannot contain, and what is not to go out, with rows of tables that go out."""
    warns_of: tuple[LeftOut, ...] | None = None
    """Those of them that nobody has asked for; None for all."""
    round_trips: bool = field(default=False, repr=False)
    """Each read of the source takes a request."""

    @property
    def id_bytes(self) -> int:
        """Return the bytes of all ids."""
        return sum(int(piece.id_bytes.sum()) for piece in chain(self.counts, self.small))

    @property
    def widest_row_bytes(self) -> int:
        """Return the bytes of the widest row of all tables."""
        return max((table.row_bytes for table in self.tables), default=0)


def survey_source(
    source: Input, ps_num: int, *, number: int, job: Job, piece_bytes: int | None = None, rules: Rules | None = None
) -> SourceSurvey:
    """Read all ids of a source and count those of each of `ps_num` servers, or of each bucket; no value is read.

    `rules` say which bucket an id belongs to, by default those of ElasticDL's servers. `piece_bytes` is how many bytes
    of ids are one task. The memory of the job bounds the ids that are sorted to find duplicates. Raises UsageError for
    a number of servers that cannot be, CorruptError for ids that cannot be decoded, are not as many as rows, or that a
    table has twice.
    """
    check_ps_num(ps_num)
    read_before = job.executor.bytes_read()
    counting = _Counting(source, ps_num, job, piece_bytes or PIECE_BYTES // 2, rules or ShardRules(ps_num))
    facts = source.facts
    job.reporter.start("reading ids", facts.id_bytes)
    small = counting.small_tables()
    stretches, counts = counting.large_tables()
    behind = rows_left_out(facts.filtered, chain(counts, small)) if facts.filtered else ()
    return SourceSurvey(
        to_ps=ps_num,
        number=number,
        variables=facts.variables,
        tables=facts.tables,
        counts=counts,
        stretches=tuple(stretches),
        small=small,
        bytes_read=source.bytes_read + job.executor.bytes_read() - read_before,
        left_out=(*facts.left_out, *behind),
        bounds=counting.bounds,
        round_trips=facts.round_trips,
    )


def rows_left_out(filtered: Mapping[str, FilteredRows], counts: Iterable[PieceCounts]) -> tuple[LeftOut, ...]:
    """Return how many rows stay behind of each table that does not go out with all of them."""
    moved = dict.fromkeys(filtered, 0)
    for piece in counts:
        if piece.table in moved:
            moved[piece.table] += int(piece.rows.sum())
    behind = []
    for name, table in filtered.items():
        count = table.rows - moved[name]
        behind.append(LeftOut(name, count, count * table.row_bytes, table.condition))
    return tuple(behind)


def _count_small(source: Input, task: Sequence[str], advance: Advance, *, ps_num: int) -> list[PieceCounts]:
    """Return the counts of small tables, by their names."""
    assert source.small is not None  # noqa: S101 - the task names some
    counts, size_bytes = source.small.count(task, ps_num)
    advance(size_bytes)
    return counts


class StretchCounts(NamedTuple):
    """The counts and the order of some ids."""

    counts: SparsePair
    """Rows, and bytes of ids."""
    order: IdOrder
    moved: IdOrder
    """The order of those that go out."""


def _count_stretches(
    source: Input, task: Sequence[IdsAt], advance: Advance, *, rules: Rules, piece_bytes: int
) -> list[StretchCounts]:
    """Return the counts of some stretches of large tables, or of pieces of them."""
    counts, buckets = [], rules.buckets
    for stretch in task:
        rows, id_bytes = (np.zeros(buckets, np.int64) for _ in range(2))
        rule = rules.of(source.name_of(stretch))
        order = NO_IDS
        moved = NO_IDS
        for piece in source.cut(stretch, piece_bytes):
            block = source.read_ids(piece)
            kept = source.kept(piece, block.ids)
            out = block if kept is None else IdBlock(block.ids[kept])
            _, more_rows, more_bytes = rule.tally(out, buckets)
            rows += more_rows
            id_bytes += more_bytes
            own = source.order_of(piece, block.ids)
            order = order.followed_by(own)
            moved = moved.followed_by(own if kept is None else order_of(out.ids))
            advance(source.bytes_of(piece))
        counts.append(StretchCounts(SparsePair.of(rows, id_bytes, np.flatnonzero(id_bytes)), order, moved))
    return counts


class _Counting:
    """The pass over all ids."""

    def __init__(self, source: Input, ps_num: int, job: Job, piece_bytes: int, rules: Rules) -> None:
        self.bounds: dict[str, tuple[int, int]] = {}
        """The lowest and the highest id that goes out, by table."""
        self._rules = rules
        self._source = source
        self._ps_num = ps_num
        self._job = job
        self._piece_bytes = piece_bytes

    def small_tables(self) -> tuple[PieceCounts, ...]:
        """Count the small tables, many at a time."""
        if self._source.small is None:
            return ()
        least = self._piece_bytes * 16 * self._ps_num // self._job.executor.result_bytes  # the counts of each server
        sized = ((name, max(size, least)) for name, size in self._source.small.sizes.items())
        work = FunctionWork(self._source.value(), partial(_count_small, ps_num=self._ps_num))
        tasks = together(sized, self._piece_bytes)
        with self._job.run(work, self._source, tasks) as results:
            return tuple(count for counts in results for count in counts)

    def large_tables(self) -> tuple[list[IdsAt], Sequence[PieceCounts]]:
        """Return the stretches of all other tables, numbered and checked, with their counts."""
        stretches = self.stretches()
        counts, orders = SparsePairs(self._ps_num, PieceCounts), [NO_IDS] * len(stretches)
        tasks = list(self._tasks(stretches))
        count = partial(_count_stretches, rules=self._rules, piece_bytes=self._piece_bytes)
        work = FunctionWork(self._source.value(), count)
        pieces = ([piece for _, piece in task] for task in tasks)
        with self._job.run(work, self._source, pieces) as results:
            counted = (zip(task, result, strict=True) for task, result in zip(tasks, results, strict=True))
            numbered = ((number, result) for pairs in counted for (number, _), result in pairs)
            of_stretches = groupby(numbered, key=lambda pair: pair[0])
            for stretch, (number, pairs) in zip(stretches, of_stretches, strict=True):
                total, name = np.zeros((2, self._ps_num), np.int64), self._source.name_of(stretch)
                for _, result in pairs:
                    total[:, result.counts.targets] += result.counts.numbers
                    orders[number] = orders[number].followed_by(result.order)
                    self._widen(name, result.moved)
                counts.append(total[0], total[1], np.flatnonzero(total[1]), name)
        return self._source.numbered(stretches, orders, self._job), counts

    def _widen(self, table: str, moved: IdOrder) -> None:
        """Let the bounds of a table have more ids."""
        if moved.rows:
            low, high = self.bounds.get(table, (moved.lowest, moved.highest))
            self.bounds[table] = min(low, moved.lowest), max(high, moved.highest)

    def _tasks(self, stretches: Sequence[IdsAt]) -> Iterator[list[tuple[int, IdsAt]]]:
        """Yield stretches with their numbers, some in a task; where tasks cost nothing, their pieces one by one."""
        limit = self._job.executor.task_bytes(self._source.facts.id_bytes)
        if limit:
            from_ps = max((stretch.shard + 1 for stretch in stretches), default=1)
            shard_targets = max(self._ps_num // gcd(from_ps, self._ps_num), 1)
            most = max(self._job.executor.result_bytes // (_COUNTED_BYTES + _TARGET_BYTES * shard_targets), 1)
            sized = (((number, ids), self._source.bytes_of(ids)) for number, ids in enumerate(stretches))
            yield from together(sized, limit, most=most)
            return
        for number, stretch in enumerate(stretches):
            for piece in self._source.cut(stretch, self._piece_bytes):
                yield [(number, piece)]

    def stretches(self) -> list[IdsAt]:
        """Cut the ids of large tables into stretches, whose number does not grow with that of the rows.

        In other processes a stretch is moved by one task, and has as many values as a task should have.
        """
        total = self._source.facts.id_bytes
        stretch_bytes = max(LEAST_STRETCH_BYTES, total // MAX_STRETCHES)
        stretch_bytes += -stretch_bytes % self._piece_bytes
        task_bytes = self._job.executor.task_bytes(total + self._source.facts.value_bytes)
        return list(self._source.stretches(task_bytes or stretch_bytes, self._job, values=bool(task_bytes)))


SurveyOf = TypeVar("SurveyOf", bound=SourceSurvey)
