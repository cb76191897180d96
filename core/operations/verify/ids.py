"""The faults that ids and values of a version show: placement, duplicates, counts; NaN, infinite and huge values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.duplicates import SORTED_AT_ONCE, count_repeated, find_repeated
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch, fingerprint_of
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import (
    DensePiece,
    IdPiece,
    dense_pieces,
    id_pieces,
    number_rows,
    read_dense,
    read_piece,
    row_batches,
)
from edl_ckpt.core.checkpoint.summing import ChunkSums
from edl_ckpt.core.errors import CorruptError, EdlCkptError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.model import DenseEntry, ShardIndex, TableEntry, Version
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.operations.verify.values import HUGE_EXPONENT, odd_values
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.words import counted

_NAMED: Final = 5
"""The number of ids that a finding names."""


@dataclass(slots=True)
class _IdCounts:
    """The odd ids of one table in one shard, counted, with examples."""

    misplaced: int = 0
    negative: int = 0
    examples: list[int] = field(default_factory=list)
    negative_examples: list[int] = field(default_factory=list)


class ContentCheck:
    """The checks that read ids and values, over all shards with several workers."""

    def __init__(
        self, checkpoint: Checkpoint, version: Version, report: Report, workers: int, reporter: Reporter
    ) -> None:
        self.checkpoint = checkpoint
        self.version = version
        self.report = report
        self.workers = workers
        self.reporter = reporter
        self.pieces: list[IdPiece] = []
        self._odd: Mapping[tuple[int, str, str], npt.NDArray[np.int64]] = {}

    def check_ids(self) -> bool:
        """Check placement, duplicates and counts of all ids; return whether ids and rows match everywhere."""
        sound = True
        pieces: list[IdPiece] = []
        self.checkpoint.keep_ids(self.workers)
        entries_of_all = [t for s in self.checkpoint.shards for t in s.tables]
        self.reporter.start("checking ids", sum(run.end - run.start for t in entries_of_all for run in t.ids))
        for entries in self._units():
            try:
                pieces += self._check_unit(entries)
            except CorruptError as error:
                sound = False
                shard = next((s for s, _ in entries if s.file.path == error.path), entries[0][0])
                self.report.add(
                    error.code,
                    error.message,
                    shard=shard.file,
                    subject=entries[0][1].name,
                    offset=error.offset,
                )
        self.pieces = pieces
        return sound

    def _units(self) -> Iterator[list[tuple[ShardIndex, TableEntry]]]:
        """Yield each table's entry in each shard alone, so that a fault in one leaves the others checked."""
        for name in self.checkpoint.table_names:
            for shard, entry in self.checkpoint.entries(name):
                yield [(shard, entry)]

    def _check_unit(self, entries: list[tuple[ShardIndex, TableEntry]]) -> list[IdPiece]:
        """Check the ids of one table in one shard and return its pieces, numbered."""
        (shard, entry), *_ = entries
        view = Checkpoint(self.version, [_only(shard, entry)], {shard.file.ps_id: self.checkpoint.reader(shard)})
        pieces = list(id_pieces(view))
        keep = entry.rows <= SORTED_AT_ONCE
        counts = _IdCounts()

        def look(piece: IdPiece) -> tuple[int, bulk.I64 | None, bool]:
            ids = read_piece(view, piece).ids
            self._count(shard, counts, ids)
            self.reporter.advance(piece.end - piece.start)
            ascending = len(ids) < 2 or bool((ids[1:] > ids[:-1]).all())
            return len(ids), ids if keep else ids[[0, -1]] if len(ids) else ids, ascending

        seen = list(run_parallel(look, pieces, self.workers))
        self._report_counts(shard, entry, counts)
        numbered = number_rows(view, pieces, [rows for rows, _, _ in seen])
        edges = [ids for _, ids, _ in seen if ids is not None and len(ids)]
        rising = all(up for _, _, up in seen) and all(a[-1] < b[0] for a, b in pairwise(edges))
        if not rising:
            found = count_repeated(edges) if keep else find_repeated(view, numbered, entry.rows, self.workers)
            self._report_duplicates(shard, entry, found)
        return [IdPiece(shard, entry, p.run, p.start, p.end, p.first_row, p.rows) for p in numbered]

    def _count(self, shard: ShardIndex, counts: _IdCounts, ids: bulk.I64) -> None:
        wrong = np.flatnonzero(placement.row_owners(ids, shard.file.ps_num) != shard.file.ps_id)
        negative = np.flatnonzero(ids < 0)
        if len(wrong) or len(negative):
            with self.report.lock:
                counts.misplaced += len(wrong)
                counts.negative += len(negative)
                counts.examples += ids[wrong[:_NAMED]].tolist()
                counts.negative_examples += ids[negative[:_NAMED]].tolist()

    def _report_counts(self, shard: ShardIndex, entry: TableEntry, counts: _IdCounts) -> None:
        n = shard.file.ps_num
        if counts.misplaced:
            named = ", ".join(f"id {i} to shard {i % n}" for i in sorted(counts.examples)[:_NAMED])
            belong = "row belongs to another shard" if counts.misplaced == 1 else "rows belong to other shards"
            message = f"{counts.misplaced} {belong}: {named}"
            self.report.add("misplaced-row", message, shard=shard.file, subject=entry.name, offset=entry.offset)
        if counts.negative:
            named = ", ".join(map(str, sorted(counts.negative_examples)[:_NAMED]))
            message = f"the table has {counted(counts.negative, 'negative id')} in this shard: {named}"
            self.report.add("negative-id", message, shard=shard.file, subject=entry.name, offset=entry.offset)

    def _report_duplicates(self, shard: ShardIndex, entry: TableEntry, found: tuple[int, list[int]]) -> None:
        count, named = found
        if count:
            repeat = "repeats" if count == 1 else "repeat"
            ids = ", ".join(map(str, named))
            message = f"{counted(count, 'row')} {repeat} an id: {ids}; ElasticDL restores only one row per id"
            self.report.add("duplicate-id", message, shard=shard.file, subject=entry.name, offset=entry.offset)

    def check_values(self, *, certain: bool, sums: ChunkSums | None = None) -> str | None:
        """Read every value: find NaN, infinite and huge ones, and return the fingerprint when the content is `certain`.

        All bytes that are read are added to `sums`. A second call stands for the first: `report_odd` is for the end.
        Shards that contradict each other have no fingerprint: their rows, of one name and two sizes, do not add up.
        """
        checkpoint, sketch = self.checkpoint, ContentSketch()
        odd: dict[tuple[int, str, str], npt.NDArray[np.int64]] = {}
        sizes = [v.size_bytes for s in checkpoint.shards for v in s.variables]
        sizes += [t.values.size_bytes for s in checkpoint.shards for t in s.tables]
        self.reporter.start("checking values", sum(sizes))

        def look(piece: IdPiece | DensePiece) -> None:
            key = (
                piece.shard.file.ps_id,
                "variable" if isinstance(piece, DensePiece) else "table",
                piece.entry.name,
            )
            counts = np.zeros(3, np.int64)
            if isinstance(piece, DensePiece):
                data = read_dense(checkpoint, piece, sums)
                if certain:
                    sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, data)
                counts += odd_values(data, piece.entry.dtype)
                self.reporter.advance(piece.size)
            else:
                ids = read_piece(checkpoint, piece, sums).ids
                for some, rows in row_batches(checkpoint, piece, len(ids), VALUE_BATCH_BYTES, sums):
                    if certain:
                        sketch.add_rows(piece.entry.name, ids[some], rows)
                    counts += odd_values(rows.reshape(-1), piece.entry.dtype)
                    self.reporter.advance(rows.nbytes)
            if counts.any():
                with self.report.lock:
                    odd[key] = odd.get(key, np.zeros(3, np.int64)) + counts

        tasks: list[IdPiece | DensePiece] = [*dense_pieces(checkpoint), *self.pieces]
        for _ in run_parallel(look, tasks, self.workers):
            pass
        self._odd = odd
        if not certain:
            return None
        try:
            return fingerprint_of(checkpoint, sketch).text
        except (KeyError, EdlCkptError):
            return None

    def report_odd(self) -> None:
        """Report the NaN, infinite and huge values that were found."""
        for (ps_id, kind, name), counts in sorted(self._odd.items()):
            shard = next(s for s in self.checkpoint.shards if s.file.ps_id == ps_id)
            entries: tuple[DenseEntry | TableEntry, ...] = shard.variables if kind == "variable" else shard.tables
            entry = next(e for e in entries if e.name == name)
            for code, count in zip(("nan", "inf", "huge-value"), counts.tolist(), strict=True):
                if count:
                    fault = {"nan": "NaN", "inf": "infinite", "huge-value": f"2**{HUGE_EXPONENT} or more"}[code]
                    are = "is" if count == 1 else "are"
                    message = f"{count} of the {kind}'s values in this shard {are} {fault}"
                    self.report.add(code, message, shard=shard.file, subject=name, offset=entry.values.start)


def _only(shard: ShardIndex, entry: TableEntry) -> ShardIndex:
    """Return the index of a shard as if it had only one table."""
    return ShardIndex(shard.file, shard.version, shard.generation, (), (), (entry,))
