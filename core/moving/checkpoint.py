"""A version as the source of a move: ids move as the varints they are, and small tables are read together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import PART_NUMBERS, Part, tally_parts
from edl_ckpt.core.model.tables import ShardIndex, TableEntry
from edl_ckpt.core.moving.source import FileRows, PieceCounts, SmallParts, Source, SurveyedTable
from edl_ckpt.core.proof.duplicates import IdOrder, check_unique, order_of
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.blocks import IdBlock, raise_bad_ids, read_piece
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.pieces import PIECE_BYTES, IdsAt, cut_piece, ids_at, is_small, number_rows, total_id_bytes
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl.target import PlacedVariable
from edl_ckpt.core.storage.interface import RangeReader

SMALL_TABLE_BYTES: Final = 1 << 20
"""The most bytes of a table whose parts move together with those of others."""
_NEAR_BYTES: Final = 4 << 10
"""The most bytes between two tables in a shard that are read along with them."""


class VersionSource(CheckpointHolder, Source):
    """An opened version; it does not close what the caller has opened until it is closed itself."""

    ids_encoded = True

    def __init__(self, checkpoint: Checkpoint, trust: Trust | None = None) -> None:
        super().__init__(checkpoint)
        self.trust = trust

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
        """Return all dense variables."""
        variables = {v.name: v for shard in self.checkpoint.shards for v in shard.variables}
        return tuple(PlacedVariable(v.name, v.dtype, v.shape, v.size_bytes) for v in variables.values())

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

    def content(self, sketch: ContentSketch) -> Fingerprint:
        """Return the fingerprint of the values that were read; CorruptError when the seal has another one."""
        read = fingerprint_of(self.checkpoint, sketch)
        if self.trust is not None:
            self.trust.confirm(read.text)
        return read

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
