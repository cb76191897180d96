"""What a move reads: dense variables, and tables whose rows follow each other in files, in the order of their ids.

A move knows neither formats nor shards of a source. It names ids by numbers (`IdsAt`), because another process has its
own opening of the same source.

Counts of rows are numbers of every target, kept for those targets that have any: a stretch goes to M / gcd(N, M) of M
targets.

A version as the source of a move: ids move as the varints they are, and small tables are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np

from edl_ckpt.core.base.job import Job, Opens
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.converting.changes import LeftOut, left_out_of
from edl_ckpt.core.converting.lacking import check_held
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import PART_NUMBERS, Part, tally_parts
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.proof.duplicates import IdOrder, check_unique, order_of
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms, fingerprint_of, value_bytes
from edl_ckpt.core.proof.stored_sums import confirm_sums
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.proof.values import add_entries
from edl_ckpt.core.reading.blocks import IdBlock, raise_bad_ids, read_piece
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt, cut_piece, ids_at, is_small, number_rows, total_id_bytes
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import NO_SUMS, StoredSums, SumsCompared
from edl_ckpt.core.sources.elasticdl.target import PlacedVariable
from edl_ckpt.core.sources.systems import ELASTICDL
from edl_ckpt.core.storage.interface import RangeReader

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table of the source; `dtype` is None when it has no rows."""

    info: TableInfo
    dtype: DType | None

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row, 0 without rows."""
        return self.info.dim * self.dtype.itemsize if self.dtype else 0


class FileRows(NamedTuple):
    """Rows of a table that follow each other in [start, end) of a file."""

    reader: RangeReader
    start: int
    end: int
    row_bytes: int

    def view(self, first: int, count: int) -> bulk.U8 | None:
        """Return rows from `first` on where they are, uint8 [count, row_bytes]; None where that is impossible."""
        view = self.reader.view(self.start + first * self.row_bytes, count * self.row_bytes)
        return None if view is None else np.frombuffer(view, np.uint8).reshape(count, self.row_bytes)

    def read(self, first: int, rows: bulk.U8) -> bulk.U8:
        """Return the rows from `first` on, as many as uint8 [n, row_bytes] has: in it, or where they are."""
        return read_bytes(self.reader, self.start + first * self.row_bytes, rows)


def read_bytes(reader: RangeReader, offset: int, out: bulk.U8) -> bulk.U8:
    """Return as many bytes of a file as uint8 `out` has: where they are if the reader can, else in it."""
    view = reader.view(offset, out.nbytes) if out.size else None
    if view is not None:
        return np.frombuffer(view, np.uint8).reshape(out.shape)
    if out.size:
        reader.read_into(offset, out.reshape(-1).data)
    return out


class SmallParts(NamedTuple):
    """Small tables, read together: the parts of them, int64 [n, PART_NUMBERS], lie in `data`, uint8 [bytes]."""

    data: bulk.U8
    parts: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class PieceCounts:
    """The rows of a piece of ids, or of a table, that go to each target, and the bytes of their ids: int64 [to_ps]."""

    table: str
    rows: bulk.I64
    id_bytes: bulk.I64


class SparsePair(NamedTuple):
    """Two numbers of each of some `targets`, int64 [targets] and [2, targets]; those of all others are 0."""

    targets: bulk.I64
    numbers: bulk.I64

    @classmethod
    def of(cls, first: bulk.I64, second: bulk.I64, targets: bulk.I64) -> Self:
        """Return the entries of these targets of two int64 [to_ps]."""
        return cls(targets, np.stack((first[targets], second[targets])))

    def full(self, to_ps: int) -> tuple[bulk.I64, bulk.I64]:
        """Return both as int64 [to_ps].

        >>> pair = SparsePair.of(np.array([0, 5, 0, 7]), np.array([0, 6, 0, 8]), np.array([1, 3]))
        >>> [numbers.tolist() for numbers in pair.full(4)]
        [[0, 5, 0, 7], [0, 6, 0, 8]]
        """
        full = np.zeros((2, to_ps), np.int64)
        full[:, self.targets] = self.numbers
        return full[0], full[1]


class SparsePairs(Sequence[Item]):
    """Items with two int64 [to_ps] each, of which only the entries of some targets are kept; the others are 0.

    An item is made by `of` when it is asked for, from what names it and its two arrays in full.
    """

    def __init__(self, to_ps: int, of: Callable[..., Item]) -> None:
        self._to_ps, self._of = to_ps, of
        self._kept: list[tuple[tuple[str, ...], SparsePair]] = []
        self._targets: dict[bytes, bulk.I64] = {}
        """One for all pairs with the same targets: those of a remainder."""

    def __repr__(self) -> str:
        return f"<{len(self)} SparsePairs of {self._to_ps}>"

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, first: bulk.I64, second: bulk.I64, targets: bulk.I64, *names: str) -> None:
        """Keep the entries of these targets of a pair."""
        shared = self._targets.setdefault(targets.tobytes(), targets)
        self._kept.append((names, SparsePair.of(first, second, shared)))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        names, pair = self._kept[index]
        return self._of(*names, *pair.full(self._to_ps))


class Source(Protocol):
    """Variables and tables, opened. A source without small tables need not say how they are read."""

    ids_encoded: ClassVar[bool]
    """Ids are varints in the source, and move as they are; else the move encodes them."""
    trust: Trust | None = None
    """What is known of the seal of a source that is a version."""
    sums: StoredSums | None = None
    """What was summed of the values that have checksums in the files of a source."""
    compared: SumsCompared = NO_SUMS
    """How many of these were compared; known once `content` was asked for."""

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read so far."""

    @property
    def round_trips(self) -> bool:
        """Return True where each read takes a request."""

    @property
    def variables(self) -> tuple[PlacedVariable, ...]:
        """Return all dense variables."""

    @property
    def tables(self) -> tuple[SurveyedTable, ...]:
        """Return all tables."""

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what it has and shards cannot contain."""
        return ()

    @property
    def small(self) -> Mapping[str, int]:
        """Return the bytes of ids of tables that are so small that many are read and written together."""
        return MappingProxyType({})

    @property
    def id_bytes(self) -> int:
        """Return the bytes of all ids, as the source has them."""

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""

    def value(self) -> Opens[Source]:
        """Return the source as a picklable value, without credentials, for other processes."""

    def stretches(self, task_bytes: int, *, values: bool) -> Iterator[IdsAt]:
        """Yield the ids of all tables but small ones, in the order of the target, each of about `task_bytes`.

        With `values` the rows count too.
        """

    def cut(self, ids: IdsAt, piece_bytes: int) -> Iterator[IdsAt]:
        """Cut a stretch into pieces of about `piece_bytes` of ids."""

    def numbered(self, stretches: Sequence[IdsAt], orders: Sequence[IdOrder], job: Job) -> list[IdsAt]:
        """Return stretches of whole tables with their rows, from the orders of their ids.

        Raises CorruptError where a table has more or fewer ids than rows, or an id twice. The memory of the job bounds
        the ids that are sorted for that.
        """

    def name_of(self, ids: IdsAt) -> str:
        """Return the name of the table that ids belong to."""

    def order_of(self, ids: IdsAt, values: bulk.I64) -> IdOrder:  # noqa: ARG002 - a version knows the shard
        """Return the order of the ids of a piece, which are int64 [n]."""
        return order_of(values)

    def bytes_of(self, ids: IdsAt) -> int:
        """Return the bytes of ids, as the source has them."""

    def read_ids(self, ids: IdsAt) -> IdBlock:
        """Return the ids of a piece; its `data` are their varints, or nothing where ids are not encoded."""

    def rows_of(self, ids: IdsAt) -> FileRows:
        """Return where the rows of ids are; the number of the first one is `ids.first_row`."""

    def dense(self, name: str) -> tuple[RangeReader, int]:
        """Return the file of a variable, and the offset of its values there."""

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""

    def close(self) -> None:
        """Close all files."""

    def content(self, sketch: ContentSketch, job: Job) -> Fingerprint | ContentSketch:
        """Return what values with this sketch must be proved to be; CorruptError where checksums in files differ."""
        if self.sums is not None and self.trust is not None:
            self.compared += confirm_sums(self.sums, self.trust, job)
        return sketch

    def count_small(self, names: Sequence[str], to_ps: int) -> tuple[list[PieceCounts], int]:
        """Return the counts of small tables for `to_ps` servers, and how many bytes of ids were read.

        Raises CorruptError for ids that cannot be decoded, or that a table has twice.
        """
        raise LookupError(names, to_ps)

    def read_small(self, names: Sequence[str]) -> SmallParts:
        """Read small tables that follow each other in the target."""
        raise LookupError(*names)

    def raise_bad_part(self, names: Sequence[str], number: int) -> None:
        """Raise CorruptError for a part of small tables whose ids cannot be decoded."""
        raise LookupError(names, number)

    def path_of(self, table: str) -> str:
        """Return the file of a table, for an error; of a version, that of its first shard with rows of it."""
        raise LookupError(table)


SMALL_TABLE_BYTES: Final = 1 << 20
"""The most bytes of a table whose parts move together with those of others."""
_NEAR_BYTES: Final = 4 << 10
"""The most bytes between two tables in a shard that are read along with them."""


class VersionSource(CheckpointHolder, Source):
    """An opened version; it does not close what the caller has opened until it is closed itself."""

    ids_encoded = True

    def __init__(self, checkpoint: Checkpoint, trust: Trust | None = None, sums: StoredSums | None = None) -> None:
        super().__init__(checkpoint)
        self.trust, self.sums = trust, sums

    @cached_property
    def small(self) -> Mapping[str, int]:
        """The bytes of ids of each table whose parts are all small, and together too."""
        small = {}
        for name in self.checkpoint.table_names:
            filled = [entry for _, entry in self.checkpoint.entries(name) if entry.rows or entry.ids]
            if all(map(is_small, filled)) and sum(e.ids[0].end - e.offset for e in filled) <= SMALL_TABLE_BYTES:
                small[name] = sum(run.end - run.start for entry in filled for run in entry.ids)
        return small

    @property
    def round_trips(self) -> bool:
        """Return True where each read takes a request."""
        return self.checkpoint.is_far

    @property
    def variables(self) -> tuple[PlacedVariable, ...]:
        """Return all dense variables; UnsupportedError for one of a dtype that shards cannot contain."""
        every = {v.name: v for shard in self.checkpoint.shards for v in shard.variables}
        named = [(name, variable.dtype) for name, variable in every.items()]
        check_held("a checkpoint of ElasticDL", named, (), path=self.checkpoint.version.ref, other_way="")
        gone = {one.name for one in self.left_out}
        variables = (variable for name, variable in every.items() if name not in gone)
        return tuple(PlacedVariable(v.name, v.dtype, v.shape, v.size_bytes) for v in variables)

    @property
    def tables(self) -> tuple[SurveyedTable, ...]:
        """Return all tables, by name."""
        checkpoint = self.checkpoint
        return tuple(SurveyedTable(checkpoint.infos[n], checkpoint.table_dtype(n)) for n in checkpoint.table_names)

    @property
    def id_bytes(self) -> int:
        """Return the bytes of all ids in the shards."""
        return total_id_bytes(self.checkpoint)

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        return value_bytes(self.checkpoint)

    def value(self) -> HeldValue[VersionSource]:
        """Return the version as a value, for other processes."""
        return HeldValue(CheckpointValue.of(self.checkpoint), VersionSource)

    def stretches(self, task_bytes: int, *, values: bool) -> Iterator[IdsAt]:
        """Yield the ids of all tables but small ones, by table, source shard and row."""
        stretches = ids_at(self.checkpoint, task_bytes, values=values, piece_bytes=PIECE_BYTES)
        return (ids for ids in stretches if self.name_of(ids) not in self.small)

    def cut(self, ids: IdsAt, piece_bytes: int) -> Iterator[IdsAt]:
        """Cut a stretch into pieces, whose rows are not counted."""
        for piece in cut_piece(self.checkpoint, ids.piece(self.checkpoint), piece_bytes):
            yield ids._replace(start=piece.start, end=piece.end)

    def numbered(self, stretches: Sequence[IdsAt], orders: Sequence[IdOrder], job: Job) -> list[IdsAt]:
        """Return stretches with their rows; CorruptError for wrong numbers of ids, and for an id twice."""
        found = number_rows(self.checkpoint, stretches, [order.rows for order in orders], without=self.small)
        check_unique(self.checkpoint, job, found, orders)
        return found

    def name_of(self, ids: IdsAt) -> str:
        """Return the name of the table that ids belong to."""
        return self.checkpoint.shards[ids.shard].tables[ids.table].name

    def order_of(self, ids: IdsAt, values: bulk.I64) -> IdOrder:
        """Return the order of the ids of a piece, and whether they are in their shard."""
        return order_of(values, self.checkpoint.shards[ids.shard].file)

    def bytes_of(self, ids: IdsAt) -> int:
        """Return the bytes of the varints."""
        return ids.end - ids.start

    def read_ids(self, ids: IdsAt) -> IdBlock:
        """Return the ids of a piece, with their varints."""
        return read_piece(self.checkpoint, ids.piece(self.checkpoint))

    def rows_of(self, ids: IdsAt) -> FileRows:
        """Return where the rows of a table are in one shard."""
        shard = self.checkpoint.shards[ids.shard]
        entry = shard.tables[ids.table]
        values = entry.values
        return FileRows(self.checkpoint.reader(shard, values), values.start, values.end, entry.row_bytes)

    def dense(self, name: str) -> tuple[RangeReader, int]:
        """Return the file of a variable, and the offset of its values there."""
        shard, entry = self.checkpoint.find_variable(name)
        return self.checkpoint.reader(shard, entry.values), entry.values.start

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        self.checkpoint.check_unchanged()

    def content(self, sketch: ContentSketch, job: Job) -> Fingerprint:
        """Return the fingerprint of the values that were read; CorruptError where a seal or checksums differ."""
        super().content(sketch, job)
        gone = {one.name for one in self.left_out}
        if self.trust is not None and self.trust.seal is not None:
            whole = ContentSketch()
            whole.add(sketch)
            add_entries(whole, self.checkpoint, gone)
            self.trust.confirm(fingerprint_of(self.checkpoint, whole).text)
        return Forms(self.checkpoint.shards, without=gone).fingerprint(sketch)

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Return the items, and the records of parts."""
        return left_out_of(self.checkpoint, ELASTICDL)

    def path_of(self, table: str) -> str:
        """Return the first shard with rows of a table."""
        return next(shard.file.path for shard, entry in self.checkpoint.entries(table) if entry.ids)

    def count_small(self, names: Sequence[str], to_ps: int) -> tuple[list[PieceCounts], int]:
        """Return the counts of small tables for `to_ps` servers, and how many bytes of ids were read."""
        parts = self._filled(names)
        sizes = np.array([entry.ids[0].end - entry.ids[0].start for _, _, entry in parts], np.int64)
        numbers = np.zeros((len(parts), PART_NUMBERS), np.int64)
        numbers[:, Part.IDS] = np.cumsum(sizes) - sizes
        numbers[:, Part.ID_BYTES] = sizes
        numbers[:, Part.ROWS] = [entry.rows for _, _, entry in parts]
        numbers[:, Part.TABLE] = [number for number, _, _ in parts]
        data = np.empty(int(sizes.sum()), np.uint8)
        for (_, shard, entry), start, size in zip(parts, numbers[:, Part.IDS].tolist(), sizes.tolist(), strict=True):
            self.checkpoint.reader(shard).read_into(entry.ids[0].start, data[start : start + size].data)
        rows, id_bytes = (np.zeros((len(names), to_ps), np.int64) for _ in range(2))
        ids = np.empty(int(numbers[:, Part.ROWS].sum()), np.int64)
        bad = tally_parts(data, numbers, to_ps, rows, id_bytes, ids)
        if bad >= 0:
            self.raise_bad_part(names, bad)
        self._check_small(names, ids, rows.sum(axis=1))
        return [PieceCounts(name, *both) for name, *both in zip(names, rows, id_bytes, strict=True)], len(data)

    def _filled(self, names: Sequence[str]) -> list[tuple[int, ShardIndex, TableEntry]]:
        """Return the parts of small tables that have rows, each with the number of its table in `names`."""
        return [
            (k, s, entry) for k, name in enumerate(names) for s, entry in self.checkpoint.entries(name) if entry.ids
        ]

    def _check_small(self, names: Sequence[str], ids: bulk.I64, rows: bulk.I64) -> None:
        """Raise CorruptError when a table has an id twice; `ids` are those of all tables, one after the other."""
        for name, start, count in zip(names, (np.cumsum(rows) - rows).tolist(), rows.tolist(), strict=True):
            of_table = ids[start : start + count]
            of_table.sort()
            if (of_table[1:] == of_table[:-1]).any():  # the ordinary way names the rows
                places = [place for place in ids_at(self.checkpoint, 0, values=False) if self.name_of(place) == name]
                read = (read_piece(self.checkpoint, place.piece(self.checkpoint)).ids for place in places)
                orders = [self.order_of(place, values) for place, values in zip(places, read, strict=True)]
                check_unique(self.checkpoint, Job.here(1), places, orders)

    def read_small(self, names: Sequence[str]) -> SmallParts:
        """Read small tables; parts that lie close together in a shard are read in one go."""
        filled = self._filled(names)
        spans: list[tuple[ShardIndex, int, int, int]] = []
        shift = np.zeros(len(filled), np.int64)  # what must be added to an offset to get the place in the bytes
        size = 0
        order = sorted(range(len(filled)), key=lambda n: (filled[n][1].file.ps_id, filled[n][2].offset))
        for _, of_shard in groupby(order, key=lambda n: filled[n][1].file.ps_id):
            extents = ((n, filled[n][2].offset, filled[n][2].ids[0].end) for n in of_shard)
            for start, end, together in near(extents, itemgetter(1, 2), _NEAR_BYTES):
                numbers = [number for number, _, _ in together]
                shift[numbers] = size - start
                spans.append((filled[numbers[0]][1], start, end, size))
                size += end - start
        data = np.empty(size, np.uint8)
        for shard, start, end, filled_to in spans:
            self.checkpoint.reader(shard).read_into(start, data[filled_to : filled_to + end - start].data)
        parts = np.zeros((len(filled), PART_NUMBERS), np.int64)
        rows = [
            (e.ids[0].start, e.ids[0].end - e.ids[0].start, e.rows, k, max(e.values.start, e.offset), e.row_bytes)
            for k, _, e in filled
        ]
        parts[:, : Part.SUMS] = np.array(rows, np.int64).reshape(-1, Part.SUMS)
        parts[:, [Part.IDS, Part.VALUES]] += shift[:, None]
        return SmallParts(data, parts)

    def raise_bad_part(self, names: Sequence[str], number: int) -> None:
        """Raise CorruptError for a part of small tables whose ids cannot be decoded."""
        _, shard, entry = self._filled(names)[number]
        raise_bad_ids(self.checkpoint, shard, entry)
