"""A version as the input of a move: what of it goes out, under which names, in which dtypes, and with which rows.

Ids move as the varints they are, unless some of them stay behind, and small tables that go out as they are are read
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.converting.changes import Outgoing, OutTable
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import PART_NUMBERS, Part, tally_parts
from edl_ckpt.core.model.tables import Encoding, Extent, ShardIndex, TableEntry
from edl_ckpt.core.moving.file_values import FileRows, FileValues, SmallParts, cast_to
from edl_ckpt.core.moving.input import FilteredRows, Input, InputFacts, PieceCounts, SurveyedTable, generations_of
from edl_ckpt.core.moving.source_proof import VersionProof
from edl_ckpt.core.proof.duplicates import check_unique
from edl_ckpt.core.proof.fingerprint import value_bytes
from edl_ckpt.core.proof.id_order import IdOrder, order_of
from edl_ckpt.core.reading.blocks import IdBlock, raise_bad_ids, read_piece
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.pieces import (
    PIECE_BYTES,
    IdsAt,
    count_rows,
    cut_piece,
    ids_at,
    is_small,
    number_rows,
    total_id_bytes,
)
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl.target import PlacedVariable

SMALL_TABLE_BYTES: Final = 1 << 20
"""The most bytes of a table whose parts move together with those of others."""
_NEAR_BYTES: Final = 4 << 10
"""The most bytes between two tables in a shard that are read along with them."""
_MOST_PIECES: Final = 1 << 12
"""About so many pieces of tables of which some rows stay behind are counted, and moved, by themselves."""


class VersionInput(CheckpointHolder, Input):
    """An opened version, and what goes out of it; it does not close what the caller has opened until it is closed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        out: Outgoing,
        proof: VersionProof | None = None,
        *,
        bundled: bool = True,
    ) -> None:
        """Take an opened version, and what goes out of it; small tables are `bundled` where the goal can take them."""
        super().__init__(checkpoint)
        self._bundled = bundled
        self.out = out
        self.proof: VersionProof = proof or VersionProof(checkpoint, out)
        self._tables = {table.source: table for table in out.tables}
        self._sources = {table.name: table.source for table in out.tables}
        self._variables = {variable.name: variable for variable in out.variables}

    @cached_property
    def small(self) -> SmallVersionTables | None:
        """What reads the tables together whose parts are all small, and that go out as they are."""
        sizes = {}
        for table in self.out.tables if self._bundled else ():
            if table.leaves_out is None and not self._is_cast(table):
                filled = [entry for _, entry in self.checkpoint.entries(table.source) if entry.rows or entry.ids]
                if all(map(is_small, filled)) and sum(e.ids[0].end - e.offset for e in filled) <= SMALL_TABLE_BYTES:
                    sizes[table.name] = sum(run.end - run.start for entry in filled for run in entry.ids)
        return SmallVersionTables(self.checkpoint, self._sources, sizes) if sizes else None

    def _is_cast(self, table: OutTable) -> bool:
        return cast_to(self.checkpoint.table_dtype(table.source), table.dtype) is not None

    @cached_property
    def facts(self) -> InputFacts:
        """What goes out, and how much the whole version has."""
        return InputFacts(
            variables=tuple(PlacedVariable(v.name, v.dtype, v.shape, v.size_bytes) for v in self.out.variables),
            tables=tuple(SurveyedTable(table.info, table.dtype if table.rows else None) for table in self.out.tables),
            id_bytes=total_id_bytes(self.checkpoint),
            value_bytes=value_bytes(self.checkpoint),
            round_trips=self.checkpoint.is_far,
            left_out=self.out.left_out,
            filtered=self._filtered(),
        )

    @property
    def identity(self) -> object:
        """Return the generations of the files, where values lie in them, and under which names and how they go out."""
        files = generations_of(self.checkpoint.files.values())
        if not files:
            return ""
        tables = []
        for table in self.out.tables:
            places = [(shard.file.ps_id, *_places(entry)) for shard, entry in self.checkpoint.entries(table.source)]
            leaves_out = "" if table.leaves_out is None else table.leaves_out.rows.text
            tables.append((table.source, table.name, table.dtype.name, table.by_number, leaves_out, places))
        variables = []
        for variable in self.out.variables:
            shard, entry = self.checkpoint.find_variable(variable.source)
            place = (shard.file.ps_id, entry.dtype.name, *_bounds(entry.values))
            variables.append((variable.source, variable.name, variable.dtype.name, variable.shape, place))
        gathered = [shard.gathered for shard in self.checkpoint.shards]
        return files, tables, variables, gathered, self._bundled

    def _filtered(self) -> dict[str, FilteredRows]:
        """Return the tables that do not go out with all of their rows."""
        filtered = {}
        for table in self.out.tables:
            if table.leaves_out is not None:
                filtered[table.name] = FilteredRows(table.rows, table.row_bytes, table.leaves_out.rows.text)
        return filtered

    def value(self) -> HeldValue[VersionInput]:
        """Return the version as a value, for other processes."""
        return HeldValue(CheckpointValue.of(self.checkpoint), partial(VersionInput, out=self.out))

    def stretches(self, task_bytes: int, job: Job, *, values: bool) -> Iterator[IdsAt]:
        """Yield the ids of all tables but small ones, by table, source shard and row.

        Those of which some rows stay behind have their rows counted: a condition is one on columns at these rows.
        """
        alone = {} if self.small is None else self.small.sizes
        for ids in ids_at(self.checkpoint, task_bytes, values=values, piece_bytes=PIECE_BYTES):
            table = self._tables.get(self._source_of(ids))
            if table is not None and table.leaves_out is None and table.name not in alone:
                yield ids
        if self.facts.filtered:
            step = self.facts.value_bytes // _MOST_PIECES
            places = count_rows(self.checkpoint, ids_at(self.checkpoint, step, values=True), job)
            for ids in places:
                table = self._tables.get(self._source_of(ids))
                if table is not None and table.leaves_out is not None:
                    yield ids

    def _source_of(self, ids: IdsAt) -> str:
        return self.checkpoint.shards[ids.shard].tables[ids.table].name

    def _table_of(self, ids: IdsAt) -> OutTable:
        return self._tables[self._source_of(ids)]

    def cut(self, ids: IdsAt, piece_bytes: int) -> Iterator[IdsAt]:
        """Cut a stretch into pieces, whose rows are not counted; where they must be, it is one piece."""
        if self._table_of(ids).leaves_out is not None:
            yield ids
            return
        for piece in cut_piece(self.checkpoint, ids.piece(self.checkpoint), piece_bytes):
            yield ids._replace(start=piece.start, end=piece.end)

    def numbered(self, stretches: Sequence[IdsAt], orders: Sequence[IdOrder], job: Job) -> list[IdsAt]:
        """Return stretches with their rows; CorruptError for wrong numbers of ids, and for an id twice."""
        alone = {} if self.small is None else self.small.sizes
        others = {name for name in self.checkpoint.table_names if name not in self._tables}
        others.update(self._sources[name] for name in alone)
        found = number_rows(self.checkpoint, stretches, [order.rows for order in orders], without=others)
        check_unique(self.checkpoint, job, found, orders)
        for ids, order in zip(found, orders, strict=True):
            self._check_sign(ids, order)
        return found

    def _check_sign(self, ids: IdsAt, order: IdOrder) -> None:
        """Raise UnsupportedError for unsigned ids that would be negative."""
        entry = ids.entry(self.checkpoint)
        if order.lowest < 0 and entry.ids[ids.run].encoding is Encoding.UINT64:
            shard = self.checkpoint.shards[ids.shard]
            message = f"table {entry.name!r} has ids of uint64 from 2^63 on, and ids are int64"
            raise UnsupportedError(message, path=shard.file.path)

    def name_of(self, ids: IdsAt) -> str:
        """Return the name under which the table goes out that ids belong to."""
        return self._table_of(ids).name

    def order_of(self, ids: IdsAt, values: bulk.I64) -> IdOrder:
        """Return the order of the ids of a piece, and whether they are in their shard."""
        return order_of(values, self.checkpoint.shards[ids.shard].file)

    def bytes_of(self, ids: IdsAt) -> int:
        """Return the bytes of the varints."""
        return ids.end - ids.start

    def read_ids(self, ids: IdsAt) -> IdBlock:
        """Return the ids of a piece, with their varints."""
        return read_piece(self.checkpoint, ids.piece(self.checkpoint))

    def kept(self, ids: IdsAt, values: bulk.I64) -> npt.NDArray[np.bool_] | None:
        """Return which rows of a piece go out."""
        table = self._table_of(ids)
        if table.leaves_out is None:
            return None
        shard = self.checkpoint.shards[ids.shard]
        return table.leaves_out.keeps(self.checkpoint, shard, table.source, ids.first_row, values)

    def rows_of(self, ids: IdsAt) -> FileRows:
        """Return where the rows of a table are in one shard."""
        shard = self.checkpoint.shards[ids.shard]
        entry = shard.tables[ids.table]
        cast, values = cast_to(entry.dtype, self._table_of(ids).dtype), entry.values
        return FileRows(self.checkpoint.reader(shard, values), values.start, values.end, entry.row_bytes, cast)

    def dense(self, name: str) -> FileValues:
        """Return where the values of a variable are."""
        variable = self._variables[name]
        shard, entry = self.checkpoint.find_variable(variable.source)
        cast = cast_to(entry.dtype, variable.dtype)
        size_bytes = variable.size_bytes if cast is None else cast.before(variable.size_bytes)
        stored_bytes = entry.size_bytes if size_bytes > entry.size_bytes else None  # a larger matrix has rows of zeros
        return FileValues(self.checkpoint.reader(shard, entry.values), entry.values.start, cast, stored_bytes)

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        self.checkpoint.check_unchanged()


def _bounds(extent: Extent) -> tuple[int, int, int]:
    return extent.file, extent.start, extent.end


def _places(entry: TableEntry) -> tuple[object, ...]:
    """Return where the rows and the ids of a table lie in a shard, and of which dtype its values are."""
    dtype = entry.dtype.name if entry.dtype else ""
    return dtype, entry.rows, _bounds(entry.values), [(run.start, run.end) for run in entry.ids]


class SmallVersionTables:
    """Small tables of an opened version, by the names under which they go out; `sources` are those that they have."""

    def __init__(self, checkpoint: Checkpoint, sources: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        self._checkpoint, self._sources, self.sizes = checkpoint, sources, sizes

    def path_of(self, table: str) -> str:
        """Return the first shard with rows of a table."""
        return next(shard.file.path for shard, entry in self._checkpoint.entries(self._sources[table]) if entry.ids)

    def count(self, names: Sequence[str], to_ps: int) -> tuple[list[PieceCounts], int]:
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
            self._checkpoint.reader(shard).read_into(entry.ids[0].start, data[start : start + size].data)
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
            (k, s, entry)
            for k, name in enumerate(names)
            for s, entry in self._checkpoint.entries(self._sources[name])
            if entry.ids
        ]

    def _check_small(self, names: Sequence[str], ids: bulk.I64, rows: bulk.I64) -> None:
        """Raise CorruptError when a table has an id twice; `ids` are those of all tables, one after the other."""
        for name, start, count in zip(names, (np.cumsum(rows) - rows).tolist(), rows.tolist(), strict=True):
            of_table = ids[start : start + count]
            of_table.sort()
            if (of_table[1:] == of_table[:-1]).any():  # the ordinary way names the rows
                self._raise_repeated(self._sources[name])

    def _raise_repeated(self, source: str) -> None:
        """Raise CorruptError for an id that a table has twice, as for a large table: that names the rows."""
        checkpoint = self._checkpoint
        everywhere = ids_at(checkpoint, 0, values=False)
        places = [place for place in everywhere if place.entry(checkpoint).name == source]
        orders = []
        for place in places:
            ids = read_piece(checkpoint, place.piece(checkpoint)).ids
            orders.append(order_of(ids, checkpoint.shards[place.shard].file))
        check_unique(checkpoint, Job.here(1), places, orders)

    def read(self, names: Sequence[str]) -> SmallParts:
        """Read some; parts that lie close together in a shard are read in one go."""
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
            self._checkpoint.reader(shard).read_into(start, data[filled_to : filled_to + end - start].data)
        parts = np.zeros((len(filled), PART_NUMBERS), np.int64)
        rows = [
            (e.ids[0].start, e.ids[0].end - e.ids[0].start, e.rows, k, max(e.values.start, e.offset), e.row_bytes)
            for k, _, e in filled
        ]
        parts[:, : Part.SUMS] = np.array(rows, np.int64).reshape(-1, Part.SUMS)
        parts[:, [Part.IDS, Part.VALUES]] += shift[:, None]
        return SmallParts(data, parts)

    def raise_bad_part(self, names: Sequence[str], number: int) -> NoReturn:
        """Raise CorruptError for a part of small tables whose ids cannot be decoded."""
        _, shard, entry = self._filled(names)[number]
        raise_bad_ids(self._checkpoint, shard, entry)
