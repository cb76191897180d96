"""Writing the files of any system: values, ids, files that go along, and the framing bytes with their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.converting.changes import Changes, OutTable
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.moving.conversion import Conversion
from edl_ckpt.core.moving.input import cast_to
from edl_ckpt.core.moving.move import Meaning, Movable, Mover, MoveTerms, exceeds_page_cache
from edl_ckpt.core.moving.part_plan import DenseBytes, choose_settings
from edl_ckpt.core.moving.plan import named_stretch
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.blocks import IdPiece
from edl_ckpt.core.reading.pieces import count_rows, ids_at
from edl_ckpt.core.reading.stored_sums import NO_SUMS, StoredSums, SumsCompared
from edl_ckpt.core.sorting.partition import PartitionedTable, Ranges, parts_needed
from edl_ckpt.core.storage.interface import OnDisk, Properties, Sinks

_PIECE_BYTES: Final = 4 << 20
_MOST_PIECES: Final = 1 << 12
"""So many pieces of a table in disorder are read one by one."""
_VARIABLES_AT_ONCE: Final = 256
"""Small variables that a thread moves together."""


class FilesMove:
    """A conversion while it is written, into `sinks` with the numbers of its files."""

    def __init__(
        self, plan: Conversion, sinks: Sinks, job: Job, directory: str, sums: StoredSums, target: Properties
    ) -> None:
        """Take a plan, and a `directory` for temporary files of tables in disorder.

        `sums` is what is summed of the values that have checksums in the source's files.
        """
        self.plan, self.sinks, self.job, self.directory, self.sums = plan, sinks, job, directory, sums
        self.compared: SumsCompared = NO_SUMS
        """The checksums of the source's files that what was read has been compared with."""
        widest = max((table.row_bytes for table in plan.out.tables), default=0)
        opened = plan.opened_input
        buckets = plan.goal.rules.buckets
        settings = choose_settings(widest, target, round_trips=opened.round_trips, to_ps=buckets, workers=job.workers)
        variables = {variable.name: variable.size_bytes for variable in plan.out.variables}
        terms = MoveTerms(plan.goal, variables, settings, once=exceeds_page_cache(2 * plan.size_bytes))
        self._mover = Mover(terms, opened, sinks, job.reporter, self._meaning())
        destination = plan.destination
        summed = destination.summed if destination.checksum else ()
        self._mover.crcs = {(file, offset): Crc32(destination.checksum) for _, file, offset, _ in summed}
        self._memory = ThreadMemory()

    @property
    def meant(self) -> ContentSketch:
        """Return the sums of all variables and tables, by their new names."""
        return self._mover.sketch

    @property
    def tensors(self) -> ContentSketch:
        """Return the sums of tensors that are neither variables nor matrices of the source."""
        return self._mover.tensors

    @property
    def overflowed(self) -> int:
        """Return how many values became infinite by a cast."""
        return self._mover.overflowed

    def write(self) -> None:
        """Write values, ids and framing bytes."""
        plan = self.plan
        self.sums.restart()
        expect(self.job.reporter, 2 * plan.size_bytes)  # all is read back
        self.job.reporter.start("writing", plan.size_bytes)
        run_all(self._mover.do, self._pieces(), self.job.workers)
        for table in plan.out.tables:
            if table.name not in plan.counted and not table.by_number:
                self._sorted(table)
        for name in plan.destination.carried:
            self._carry(name)
        for file, offset, data in plan.destination.computed:
            self.sinks[file].write(offset, data)
        for file, offset, data in plan.destination.literals(self._sums()):
            self.sinks[file].write(offset, data)

    def _meaning(self) -> Meaning:
        """Return what the proof takes tensors for, which are read as tables where the source is read so."""
        plan, source = self.plan, self.plan.source
        if plan.whole is None:
            return Meaning()
        is_remade = plan.changes != Changes(cast=plan.changes.cast)
        """Under a new name a tensor may be another thing: then all are compared as plain tensors."""
        row_bytes, plain = {}, set()
        for variable in plan.out.variables:
            if is_remade or not source.has_entry(variable.source):
                plain.add(variable.name)
            if is_remade or not source.has_table(variable.source):
                continue
            entries = [entry for _, entry in source.entries(variable.source)]
            if entries and not any(run.is_stored for entry in entries for run in entry.ids):
                cast = cast_to(plan.whole.find_variable(variable.source)[1].dtype, variable.dtype)
                width = entries[0].row_bytes
                row_bytes[variable.name] = width if cast is None else cast.size_of(width)
        return Meaning(row_bytes, plain)

    def _pieces(self) -> Iterator[Movable]:
        """Yield pieces of variables, and then of the tables, but for matrices whose rows are in disorder."""
        plan = self.plan
        yield from together(self._dense(), _PIECE_BYTES, most=_VARIABLES_AT_ONCE)
        for number, counts in enumerate(plan.survey.counts):
            if counts.table in plan.counted or plan.goal.rules.of(counts.table).by_number:
                yield from self._mover.pieces_of(named_stretch(plan.survey, plan.routes, number))

    def _dense(self) -> Iterator[tuple[DenseBytes, int]]:
        """Yield pieces of variables with their sizes; an empty variable is an empty piece."""
        for variable in self.plan.out.variables:
            unit = np.lcm(bulk.CHUNK_BYTES, self._mover.meaning.row_bytes.get(variable.name, 0) or 1)
            step = max(_PIECE_BYTES // int(unit), 1) * int(unit)
            for start in range(0, max(variable.size_bytes, 1), step):
                size = min(step, variable.size_bytes - start)
                yield DenseBytes(variable.name, start, size), size

    def _carry(self, name: str) -> None:
        """Copy a file that is none of the system's own."""
        sink = self.sinks[self.plan.destination.number(name)]
        with self.plan.opened(name) as reader:
            for start in range(0, reader.size_bytes, _PIECE_BYTES):
                sink.write(start, reader.read(start, min(_PIECE_BYTES, reader.size_bytes - start)))
            reader.check_unchanged()

    def _id_pieces(self, table: OutTable) -> Sequence[IdPiece]:
        """Return the ids of a table in pieces with their rows numbered."""
        source = self.plan.source
        total = sum(entry.values.size_bytes for shard in source.shards for entry in shard.tables)
        places = count_rows(source, ids_at(source, total // _MOST_PIECES, values=True), self.job)
        return [place.piece(source) for place in places if place.entry(source).name == table.source]

    def _sorted(self, table: OutTable) -> None:
        """Write a matrix from rows with ids 0 to n - 1 in any order: they are sorted on the disk, in parts."""
        cuts, width = self.plan.goal.cuts(table.name), table.row_bytes
        parts = parts_needed(table.rows * (8 + width))
        ranges = Ranges(np.arange(1, parts, dtype=np.int64) * table.rows // parts)
        with PartitionedTable(
            self.plan.source,
            table.source,
            self._id_pieces(table),
            parts=parts,
            assign=ranges,
            directory=self.directory,
        ) as cut:
            for part in cut.all_parts():
                if len(part.ids):
                    cast = cast_to(part.dtype, table.dtype)
                    rows = part.values if cast is None else self._mover.cast(part.values, cast)
                    self.meant.add_rows(table.name, part.ids, rows)
                    self._mover.put(cuts, int(part.ids[0]) * width, rows.reshape(-1))
                    self.job.reporter.advance(rows.nbytes)

    def _sums(self) -> dict[tuple[str, int], int]:
        """Return the checksums of what the files have, where rows came in any order read back from them."""
        destination = self.plan.destination
        if not destination.checksum:
            return {}
        pieces: dict[tuple[str, int], Crc32] = {}

        def tasks() -> Iterator[tuple[tuple[str, int], int, int, int, int]]:
            for key, file, offset, size in destination.summed:
                pieces[key] = self._mover.crcs[file, offset]
                if pieces[key].size_bytes == size:
                    continue
                pieces[key] = Crc32(destination.checksum)
                for start in range(0, size, _PIECE_BYTES):
                    yield key, file, offset, start, min(_PIECE_BYTES, size - start)

        def add(task: tuple[tuple[str, int], int, int, int, int]) -> None:
            key, file, offset, start, size = task
            data, sink = self._memory.take(size).data, self.sinks[file]
            assert isinstance(sink, OnDisk)  # noqa: S101 - foreign files are written to a disk
            sink.read_into(offset + start, data)
            pieces[key].add(start, data)

        run_all(add, tasks(), self.job.workers)
        return {key: sums.value() for key, sums in pieces.items()}
