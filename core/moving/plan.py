"""The plan of a move: the size of every target shard, and the offset of every row and id, to the byte.

It is arithmetic on a survey: no file is read, and the same survey always gives the same plan. The order of rows in a
target is that of the source's shards and rows, so the result depends neither on workers nor on the sizes of batches.

The order in which stretches move changes nothing of the result. With N shards before and M after, the rows of shard i
go to shards j with i = j modulo gcd(N, M), and to no others, unless they are misplaced. So the shards of one remainder
are moved together, one remainder after the other: only M / gcd(N, M) shards are being written at a time, each of them
from front to back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, groupby, pairwise
from math import gcd
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edl_ckpt.core.catalog.target import Target, WritePlan, lay_out
from edl_ckpt.core.converting.changes import LeftOut, left_out_lines
from edl_ckpt.core.converting.items import ItemCounts
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.framing import Framing, ShardFraming
from edl_ckpt.core.moving.goal import Goal, ShardGoal
from edl_ckpt.core.moving.input import Input, SparsePair, SparsePairs, Stretch
from edl_ckpt.core.moving.meaning import Meaning
from edl_ckpt.core.moving.sealed import SealedBytes
from edl_ckpt.core.moving.sums import SummedValues
from edl_ckpt.core.moving.survey import SourceSurvey
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint
from edl_ckpt.core.proof.proving import Staged
from edl_ckpt.core.proof.staged_shards import StagedShards
from edl_ckpt.core.proof.values import ValueOptions
from edl_ckpt.core.reading.pieces import PIECE_BYTES, RowMarks
from edl_ckpt.core.sources.elasticdl.target import CountedTable, VersionLayout
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.storage.parts import least_part

if TYPE_CHECKING:
    from edl_ckpt.core.base.job import Job
    from edl_ckpt.core.moving.move import Mover
    from edl_ckpt.core.moving.run import Moved
    from edl_ckpt.core.moving.settings import ReshardSettings

SurveyOf = TypeVar("SurveyOf", bound=SourceSurvey)


@dataclass(frozen=True, slots=True, eq=False)
class StretchRoute:
    """The offsets of the first row and the first id of one stretch of ids in each target: int64 [to_ps].

    It is 0 for a target that the stretch does not go to.
    """

    values_at: bulk.I64
    ids_at: bulk.I64


class MovePlan(ABC):
    """All that a move will write, and where; `routes` are those of the survey's stretches, in the same order.

    There are as many stretches for ten thousand million rows as for a million: where each piece of a stretch goes is
    computed when it moves. Small tables need no route, for they move as a whole.
    """

    __slots__ = ()
    survey: SourceSurvey
    routes: Sequence[StretchRoute]
    goal: Goal
    """Which bucket a row belongs to, and where everything goes."""

    @property
    @abstractmethod
    def source_ref(self) -> str:
        """Return what is read: the reference of a version, or a file; '' for arrays in memory."""

    @property
    @abstractmethod
    def from_ps(self) -> int | None:
        """Return the number of servers or ranks of a source that is a checkpoint."""

    @property
    @abstractmethod
    def to_ps(self) -> int:
        """Return the number of servers or ranks of the target."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Return the rows of all tables that go out, those of companions too."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Return the bytes of all files."""

    @property
    @abstractmethod
    def sizes(self) -> list[int]:
        """Return the bytes of each file, by its number."""

    @property
    @abstractmethod
    def items(self) -> ItemCounts:
        """Return what becomes of the items of the source once the plan is carried out."""

    @property
    @abstractmethod
    def shards(self) -> tuple[ShardSummary, ...]:
        """Return the shards as they will be; none where only the written files tell."""

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what stays behind, and why."""
        return self.survey.left_out

    @abstractmethod
    def framing(self, files: Sequence[Sink], job: Job) -> Framing:
        """Return what writes all but values and ids into these files, which have their numbers."""

    @abstractmethod
    def confirmed(self, source: Input, sketch: ContentSketch, job: Job) -> Fingerprint | ContentSketch:
        """Compare what moved with the seal of its source and the checksums in it; return what must be read back.

        Raises CorruptError for a difference, unless `force` goes on, and LockedError for a source that has changed.
        """

    @abstractmethod
    def staged(
        self, written: Version, content: Fingerprint | ContentSketch, moved: Moved, settings: ReshardSettings
    ) -> Staged:
        """Return what was written as the proof opens it; it must have this content."""

    @property
    def value_bytes(self) -> int:
        """Return about how many bytes of values move."""
        return self.size_bytes

    @property
    def groups(self) -> int:
        """Return how many groups of files have nothing to do with each other: they are written one after the other."""
        return 1

    @property
    def meaning(self) -> Meaning:
        """Return what the proof takes variables for."""
        return Meaning()

    @property
    def summed(self) -> SummedValues:
        """Return which values have checksums in the framing."""
        return SummedValues()

    @property
    def fixed_framing(self) -> Iterable[SealedBytes]:
        """Return the framing that is known before any value moves, but for checksums of values of the same file."""
        return ()

    @property
    def checked_values(self) -> Iterable[tuple[int, int, int]]:
        """Return the (file, offset, bytes) of all moved values that have a checksum in the framing."""
        return ()

    def row_numbers(self, number: int) -> tuple[int, int]:
        """Return the first row of a stretch of a matrix whose rows have numbers, and the one behind its last."""
        raise LookupError(number)

    def move_sorted(self, mover: Mover, job: Job, directory: str) -> None:
        """Move the tables that must be sorted, in temporary files in a directory; the `order` does not have them."""
        del mover, job, directory

    def small_runs(self) -> Iterator[Iterator[tuple[str, int]]]:
        """Yield small tables that follow each other in the files, each with the bytes of it in all of them."""
        return iter(())

    @property
    def order(self) -> list[int]:
        """Return the numbers of the survey's stretches in the order in which they move."""
        stretches, groups = self.survey.stretches, self.groups
        return sorted(range(len(stretches)), key=lambda number: stretches[number].shard % groups)

    @property
    def row_bytes(self) -> Mapping[str, int]:
        """Return the bytes of a row of each table."""
        return {table.info.name: table.row_bytes for table in self.survey.tables}

    def stretch(self, number: int) -> Stretch:
        """Return a stretch as a task names it, by its number in the survey."""
        counts, route = self.survey.counts[number], self.routes[number]
        targets = np.flatnonzero(counts.id_bytes)
        rows = SparsePair.of(counts.rows, counts.id_bytes, targets)
        route_pair = SparsePair.of(route.values_at, route.ids_at, targets)
        return Stretch(counts.table, self.survey.stretches[number], rows, route_pair)


@dataclass(frozen=True, slots=True, eq=False)
class ShardPlan(WritePlan, MovePlan):
    """A move into shards of ElasticDL."""

    survey: SourceSurvey
    routes: Sequence[StretchRoute]
    goal: ShardGoal = field(repr=False)

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each shard."""
        sizes: list[int] = self.layouts.size_bytes.tolist()
        return sizes

    def framing(self, files: Sequence[Sink], job: Job) -> ShardFraming:
        """Return what writes the heads of variables and tables."""
        del job
        return ShardFraming(self.goal, files)

    def confirmed(self, source: Input, sketch: ContentSketch, job: Job) -> Fingerprint | ContentSketch:
        """Return the content of the source, as a fingerprint where all of it goes out as it was."""
        return source.proof.content(sketch, job)

    def staged(
        self, written: Version, content: Fingerprint | ContentSketch, moved: Moved, settings: ReshardSettings
    ) -> StagedShards:
        """Return the shards, with the rows whose places are planned."""
        moved.sketch = ContentSketch()  # `content` says it all, and the sums of one variable may take 64 KiB
        piece_bytes = min(settings.piece_bytes, PIECE_BYTES)
        options = ValueOptions(batch_bytes=settings.proof_batch_bytes, piece_bytes=piece_bytes)
        store, marks = self.target.store, cache(partial(row_marks, self))
        return StagedShards(store, written, self.layouts, content, options=options, marks=marks)

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        return self.layouts.value_bytes

    def small_runs(self) -> Iterator[Iterator[tuple[str, int]]]:
        """Yield small tables in the order of the shards, which is that of their numbers."""
        layouts = self.layouts
        sizes = np.diff(layouts.tables_at, axis=0).sum(axis=1)  # ids and heads may be far more than the values
        numbered = enumerate(sorted((counts.table for counts in self.survey.small), key=layouts.number))
        for _, run in groupby(numbered, key=lambda pair: layouts.number(pair[1]) - pair[0]):
            yield ((name, int(sizes[layouts.number(name)])) for _, name in run)

    @property
    def items(self) -> ItemCounts:
        """Return what becomes of the items of the source once the plan is carried out."""
        written = [variable.name for variable in self.survey.variables]
        written += [table.info.name for table in self.survey.tables]
        known = set(written)
        gone = sum(one.name not in known for one in self.survey.left_out)  # of a table, some rows may be left out
        return ItemCounts(len(written), left_out=gone)

    @property
    def groups(self) -> int:
        """Return how many groups of shards have nothing to do with each other: the remainders of their numbers.

        A source of one file has one group.
        """
        return gcd(self.from_ps or 1, self.to_ps)


def lay_out_survey(
    survey: SurveyOf, target: Target
) -> tuple[VersionLayout, tuple[ShardSummary, ...], tuple[str, ...], SurveyOf, Sequence[StretchRoute], ShardGoal]:
    """Return what a plan of shards has besides its target, from a surveyed source."""
    layouts, shards, warnings = lay_out(target, survey.number, survey.variables, _count_tables(survey), survey.to_ps)
    noted = survey.left_out if survey.warns_of is None else survey.warns_of

    def begins(table: str) -> tuple[bulk.I64, bulk.I64]:
        return layouts.values_at(table), layouts.ids_at(table)

    variables = {variable.name: variable.size_bytes for variable in survey.variables}
    goal = ShardGoal(layouts, variables, {counts.table: counts for counts in survey.small})
    return layouts, shards, (*warnings, *left_out_lines(noted)), survey, routes_of(survey, begins), goal


def row_marks(plan: ShardPlan) -> dict[str, RowMarks]:
    """Return where the rows of each stretch begin in the targets, by the names of the tables that have stretches."""
    columns: dict[str, list[bulk.I64]] = {}
    for stretch in plan.survey.counts:
        targets = np.flatnonzero(stretch.id_bytes)
        column = np.stack((targets, stretch.id_bytes[targets], stretch.rows[targets]))
        columns.setdefault(stretch.table, []).append(column)
    marks: dict[str, RowMarks] = {}
    for name, of_table in columns.items():
        targets, id_bytes, rows = np.concatenate(of_table, axis=1)
        marks[name] = RowMarks.of(targets, id_bytes, rows, plan.layouts.ids_at(name))
    return marks


def _count_tables(survey: SourceSurvey) -> list[CountedTable]:
    """Return every table with the sums of the counts of its pieces."""
    zero = np.zeros(survey.to_ps, np.int64)
    tables = {
        table.info.name: CountedTable(table.info, table.dtype, zero.copy(), zero.copy()) for table in survey.tables
    }
    for piece in chain(survey.counts, survey.small):
        tables[piece.table].rows[:] += piece.rows
        tables[piece.table].id_bytes[:] += piece.id_bytes
    emptied = {one.name for one in survey.left_out if one.rows}
    return [
        replace(table, dtype=None) if name in emptied and not table.rows.any() else table
        for name, table in tables.items()
    ]


def routes_of(survey: SourceSurvey, begins: Callable[[str], tuple[bulk.I64, bulk.I64]]) -> Sequence[StretchRoute]:
    """Return the route of each stretch: in each target it begins where the one before it, of the same table, ends.

    `begins` returns where the rows and the ids of a table begin in each target, int64 [to_ps] both.
    """
    row_bytes = {table.info.name: table.row_bytes for table in survey.tables}
    next_at: dict[str, tuple[bulk.I64, bulk.I64]] = {}
    routes = SparsePairs(survey.to_ps, StretchRoute)
    for stretch in survey.counts:
        name = stretch.table
        values_at, ids_at = next_at.get(name) or begins(name)
        routes.append(values_at, ids_at, np.flatnonzero(stretch.id_bytes))
        next_at[name] = values_at + stretch.rows * row_bytes[name], ids_at + stretch.id_bytes
    return routes


def open_part_bytes(plan: ShardPlan, least_part_bytes: int) -> int:
    """Return how many bytes of parts may wait for further bytes at a time, when stretches move in their order.

    The targets of one group grow together, and each has at most three open parts: where the rows of a table are, where
    its ids are, and where the first meet the second. Small tables that follow each other go to all targets before the
    rest, and leave a part open at each end.
    """
    small = sorted(plan.layouts.number(counts.table) for counts in plan.survey.small)
    runs = len(small) - sum(after == before + 1 for before, after in pairwise(small))
    parts = 3 * -(-plan.to_ps // plan.groups) + 2 * runs * plan.to_ps
    part = least_part(int(plan.layouts.size_bytes.max(initial=0)), least_part_bytes)
    return min(parts * part, plan.size_bytes)
