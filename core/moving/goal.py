"""The goal of a move: the buckets of a table's rows, the files of each bucket, and the places of a variable.

Shards of ElasticDL are one kind of goal: each bucket is a file, and ids are varints. The files of other systems are
another: a bucket may be a part of a file, ids are whole numbers of 8 bytes, and a matrix has its rows by their numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from edl_ckpt.core.commit.sent_parts import Extent
from edl_ckpt.core.converting.rows import Cut, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.moving.input import PieceCounts
from edl_ckpt.core.reading.blocks import IdBlock
from edl_ckpt.core.sources.elasticdl.target import VersionLayout
from edl_ckpt.core.storage.interface import Sink, Sinks

ID_BYTES = 8
"""The bytes of an id that is no varint."""


class Rule(NamedTuple):
    """Which bucket a row belongs to, and how its id is written; a matrix has one bucket, and no ids."""

    spread: Spread
    as_varints: bool
    by_number: bool = False
    """True for a matrix: the id of a row is its place."""

    def tally(self, ids: IdBlock, buckets: int) -> tuple[bulk.U16, bulk.I64, bulk.I64]:
        """Return the bucket of each id, uint16 [n], and of each of so many buckets the rows and the bytes of ids.

        The counts are int64 [buckets].
        """
        owner = self.spread.owners_of(ids.ids)
        if self.as_varints:
            return owner, *bulk.tally(owner, ids.lengths, buckets)
        rows = np.bincount(owner, minlength=buckets).astype(np.int64)
        return owner, rows, rows * ID_BYTES


class Rules(Protocol):
    """The rules of all tables; it can be pickled."""

    @property
    def buckets(self) -> int:
        """Return the greatest number of buckets of a table."""

    def of(self, table: str) -> Rule:
        """Return the rule of a table."""


@dataclass(frozen=True, slots=True)
class ShardRules:
    """The one rule of ElasticDL's shards."""

    ps_num: int

    @property
    def buckets(self) -> int:
        """Return the number of servers."""
        return self.ps_num

    def of(self, table: str) -> Rule:
        """Return the rule: the remainder of an id."""
        del table
        return Rule(Spread(self.ps_num, partial(bulk.owners, ps_num=self.ps_num)), as_varints=True)


@dataclass(frozen=True, slots=True)
class TableRules:
    """A rule for each table, by its name."""

    rules: Mapping[str, Rule]

    @property
    def buckets(self) -> int:
        """Return the greatest number of buckets of a table."""
        return max((rule.spread.buckets for rule in self.rules.values()), default=1)

    def of(self, table: str) -> Rule:
        """Return the rule of a table."""
        return self.rules[table]


class BucketSinks:
    """The files of buckets, by the numbers of these: `files` are those of all, `numbers` int64 [buckets]."""

    def __init__(self, files: Sinks, numbers: bulk.I64) -> None:
        self._files, self._numbers = files, numbers

    def __getitem__(self, number: int, /) -> Sink:
        return self._files[int(self._numbers[number])]


class TableSinks(NamedTuple):
    """The files for the rows of a table, and for its ids, by bucket; None where its ids are written with another."""

    rows: Sinks
    ids: Sinks | None


class Goal(Protocol):
    """Where everything of a version goes."""

    @property
    def rules(self) -> Rules:
        """Return which bucket each row belongs to."""

    def sinks(self, table: str, files: Sinks) -> TableSinks:
        """Return the files of the buckets of a table, among all files."""

    def cuts(self, name: str) -> Sequence[Cut]:
        """Return where the bytes of a variable or of a matrix go, in their order."""

    def files(self, table: str, buckets: bulk.I64) -> Collection[int]:
        """Return the numbers of the files that have rows or ids of some buckets of a table."""

    def between(self, extent: Extent) -> Iterable[tuple[int, bytes]]:
        """Return the (offset, bytes) of the framing in an extent of a file, but for those among small tables."""


def cuts_in(cuts: Sequence[Cut], start: int, size: int) -> list[Cut]:
    """Return those of the cuts of a variable that have some of its bytes; of no bytes, those at its beginning.

    >>> [cut.file for cut in cuts_in([Cut(0, 4, 7, 0), Cut(4, 8, 8, 0), Cut(8, 9, 9, 0)], 3, 2)]
    [7, 8]
    """
    return [cut for cut in cuts if cut.start < start + max(size, 1) and (cut.end > start or cut.start == start)]


@dataclass(frozen=True, slots=True, eq=False)
class ShardGoal:
    """Shards of ElasticDL, laid out."""

    layouts: VersionLayout
    variables: Mapping[str, int]
    """The bytes of each dense variable."""
    small: Mapping[str, PieceCounts] = field(default_factory=dict)
    """The counts of small tables: many of them move together, each with its framing."""

    @property
    def rules(self) -> ShardRules:
        """Return the rule of ElasticDL."""
        return ShardRules(len(self.layouts))

    def sinks(self, table: str, files: Sinks) -> TableSinks:
        """Return the shards: each has both."""
        del table
        return TableSinks(files, files)

    def cuts(self, name: str) -> Sequence[Cut]:
        """Return the one place of a variable."""
        owner, offset = self.layouts.dense_at(name)
        return (Cut(0, self.variables[name], owner, offset),)

    def files(self, table: str, buckets: bulk.I64) -> Collection[int]:
        """Return the shards themselves."""
        del table
        numbers: list[int] = buckets.tolist()
        return numbers

    def between(self, extent: Extent) -> Iterator[tuple[int, bytes]]:
        """Yield what stands between values in an extent of a shard, but for that among small tables."""
        layouts, target = self.layouts, extent.target
        begins = layouts.tables_at[:, target]
        low = extent.edges[0]
        high = extent.edges[-1]
        if low < begins[0]:
            yield from ((at, data) for at, data in layouts.front(target) if at < high and at + len(data) > low)
        first = max(int(np.searchsorted(begins, low, "right")) - 1, 0)
        last = min(int(np.searchsorted(begins, high, "left")), len(begins) - 1)
        large = (table for table in layouts.names[first:last] if table not in self.small)
        yield from ((at, head) for at, head in layouts.heads(target, large) if at < high and at + len(head) > low)


@dataclass(frozen=True, slots=True, eq=False)
class FileGoal:
    """Files of any system, laid out."""

    rules: TableRules
    places: Mapping[str, RowPlaces]
    """Those of each table whose rows are spread."""
    pieces: Mapping[str, Sequence[Cut]] = field(default_factory=dict)
    """The cuts of each variable and of each matrix."""

    def sinks(self, table: str, files: Sinks) -> TableSinks:
        """Return the files of the buckets of a table."""
        places = self.places[table]
        ids = None if places.ids is None else BucketSinks(files, places.ids[0])
        return TableSinks(BucketSinks(files, places.rows[0]), ids)

    def cuts(self, name: str) -> Sequence[Cut]:
        """Return where the bytes of a variable or of a matrix go."""
        return self.pieces[name]

    def files(self, table: str, buckets: bulk.I64) -> Collection[int]:
        """Return the files of some buckets; of a matrix all that have any of it."""
        places = self.places.get(table)
        if places is None:
            return {cut.file for cut in self.pieces[table]}
        numbers = set(places.rows[0][buckets].tolist())
        if places.ids is not None:
            numbers.update(places.ids[0][buckets].tolist())
        return numbers

    def between(self, extent: Extent) -> Iterable[tuple[int, bytes]]:
        """Return nothing: a task writes no framing, which may have checksums of what other tasks write."""
        del extent
        return ()
