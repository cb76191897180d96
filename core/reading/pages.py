"""Rows of a table and elements of a variable by their position, for people who page through them.

A position counts rows shard after shard, as they lie there. Ids are varints, so the id at a position is found by
counting from the last known place before it: a place is remembered for every block of ids that was read. Memory depends
on the page, and for the places on one in some ten thousand ids.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.kernel.placement import owners
from edl_ckpt.core.model.tables import ShardIndex, TableEntry

if TYPE_CHECKING:
    from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.blocks import ID_BLOCK_BYTES, IdPiece, check_row_count, cuts, read_piece, read_vectors


class PageRows(NamedTuple):
    """Rows that follow each other: int64 [n] ids, [n, dim] vectors, and the int64 [n] ps_ids of their shards."""

    ids: I64
    vectors: npt.NDArray[np.generic]
    shards: I64

    def __repr__(self) -> str:
        return describe("PageRows", f"{counted(len(self.ids), 'row')} of {self.vectors.shape[1]} {self.vectors.dtype}")


class _Place(NamedTuple):
    """Where a block of ids begins: the first row in it, its run of ids, and its byte."""

    row: int
    run: int
    start: int


class TablePages:
    """The rows of a table of an open checkpoint, by position. Safe to use from several threads, one at a time reads.

    Raises NameNotFoundError, which is a KeyError, for an unknown table.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, *, block_bytes: int = ID_BLOCK_BYTES) -> None:
        self.name = name
        self._checkpoint = checkpoint
        self._parts = [
            _Part(checkpoint, shard, entry, block_bytes) for shard, entry in checkpoint.entries(name) if entry.rows
        ]
        self._begins = [0, *accumulate(part.entry.rows for part in self._parts)]
        self._lock = Lock()

    def __len__(self) -> int:
        return self._begins[-1]

    def __repr__(self) -> str:
        return describe("TablePages", escaped(self.name), counted(len(self), "row"))

    def read(self, first: int, count: int, *, reporter: Reporter = WARNINGS) -> PageRows:
        """Return the rows at the positions [first, first + count), fewer at the end.

        Reads these values, and ids from the last known place on; `reporter` counts the bytes of ids. Raises
        CorruptError where ids and rows differ, or shards have rows of several dims.
        """
        end = min(first + count, len(self))
        ids = [np.empty(0, np.int64)]
        vectors = []
        shards = [np.empty(0, np.int64)]
        with self._lock:
            at = max(first, 0)
            while at < end:
                number = bisect_right(self._begins, at) - 1
                part, begin = self._parts[number], self._begins[number]
                reporter.advance(0)  # who pages on fast has given up some of those that wait here
                stop = min(end, self._begins[number + 1])
                ids.append(part.ids(at - begin, stop - begin, reporter))
                read = read_vectors(self._checkpoint, part.shard, part.entry, at - begin, stop - at)
                vectors.append(read.copy())
                shards.append(np.full(stop - at, part.shard.file.ps_id, np.int64))
                at = stop
        if len({v.shape[1] for v in vectors}) > 1:
            raise CorruptError(f"table {self.name!r} has rows of several dims", path=self._checkpoint.version.ref)
        found = np.concatenate(vectors) if vectors else np.empty((0, self._checkpoint.table(self.name).dim), np.float32)
        return PageRows(np.concatenate(ids), found, np.concatenate(shards))

    def find(self, wanted: int, *, reporter: Reporter = WARNINGS) -> int | None:
        """Return the position of an id, None when no row has it; of several rows the last, as in a restore.

        The shard that it belongs to is searched first, then the others. All of their ids are read.
        """
        version = self._checkpoint.version
        owner = owners(self._checkpoint.placement(self.name), np.array([wanted], np.int64), version.ps_num or 1)
        order = sorted(
            range(len(self._parts)), key=lambda k: owner is not None and self._parts[k].shard.file.ps_id != owner[0]
        )
        with self._lock:
            for number in order:
                row = self._parts[number].find(wanted, reporter)
                if row is not None:
                    return self._begins[number] + row
        return None


class _Part:
    """The rows of a table in one shard."""

    def __init__(self, checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, block_bytes: int) -> None:
        self.shard, self.entry = shard, entry
        self._checkpoint, self._block_bytes = checkpoint, block_bytes
        self._places = [_Place(0, 0, entry.ids[0].start if entry.ids else 0)]
        """Where every block that was read begins, and the next one."""
        self._last: tuple[_Place, I64] | None = None
        """The block that was read last: who pages on asks for it again."""

    def ids(self, first: int, end: int, reporter: Reporter) -> I64:
        """Return the ids of rows [first, end)."""
        found: list[I64] = [np.empty(0, np.int64)]
        number = bisect_right(self._places, first, key=lambda place: place.row) - 1
        while (place := self._places[number]).row < end and (block := self._block(number, reporter)) is not None:
            found.append(block[max(first - place.row, 0) : max(end - place.row, 0)])
            number += 1
        ids = np.concatenate(found)
        if len(ids) < end - first:  # the ids have ended before the rows
            check_row_count(self.shard, self.entry, self._places[-1].row)
        return ids

    def find(self, wanted: int, reporter: Reporter) -> int | None:
        """Return the last row of an id; None without any."""
        found, number = None, 0
        while (block := self._block(number, reporter)) is not None:
            hits = np.flatnonzero(block == wanted)
            if len(hits):
                found = self._places[number].row + int(hits[-1])
            number += 1
        return found if found is None or found < self.entry.rows else None

    def _block(self, number: int, reporter: Reporter) -> I64 | None:
        """Return the ids of a block, and remember where the next one begins; None behind the last one."""
        place = self._places[number]
        if self._last is not None and self._last[0] == place:
            return self._last[1]
        if place.run >= len(self.entry.ids):
            return None
        run = self.entry.ids[place.run]
        _, stop = next(cuts(run, place.start, run.end, self._block_bytes))
        ids = read_piece(self._checkpoint, IdPiece(self.shard, self.entry, run, place.start, stop)).ids
        reporter.advance(stop - place.start)
        if number + 1 == len(self._places):
            next_run, begin = place.run, stop
            if stop >= run.end:
                next_run += 1
                begin = self.entry.ids[next_run].start if next_run < len(self.entry.ids) else 0
            self._places.append(_Place(place.row + len(ids), next_run, begin))
        self._last = place, ids
        return ids
