"""Writing the files of any system: values, ids, files that go along, and the framing bytes with their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import packed, together
from edl_ckpt.core.base.parallel import RESULT_BYTES, Advance, Executor, run_all
from edl_ckpt.core.base.progress import Counted, expect
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.sent_parts import Sending
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.converting.changes import Changes, OutTable
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.moving.conversion import Conversion
from edl_ckpt.core.moving.goal import cuts_in
from edl_ckpt.core.moving.input import Input, Stretch, cast_to
from edl_ckpt.core.moving.move import Meaning, Movable, Mover, MoveTerms, exceeds_page_cache
from edl_ckpt.core.moving.parts import DenseBytes, MoveTask, TaskRead
from edl_ckpt.core.moving.settings import choose_settings
from edl_ckpt.core.moving.sums import SummedSink, SummedSinks
from edl_ckpt.core.moving.tasks import handed_out, with_sum_bytes
from edl_ckpt.core.moving.version_input import VersionInput
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.blocks import IdPiece
from edl_ckpt.core.reading.pieces import count_rows, ids_at
from edl_ckpt.core.sorting.partition import PartitionedTable, Ranges, parts_needed
from edl_ckpt.core.storage.interface import OnDisk, Properties, Sinks, is_on_disk

_PIECE_BYTES: Final = 4 << 20
_MOST_PIECES: Final = 1 << 12
"""So many pieces of a table in disorder are read one by one."""
_VARIABLES_AT_ONCE: Final = 256
"""Small variables that a thread moves together."""


class FilesDone(NamedTuple):
    """What a task answers: the sums of what it has moved, and of each value that has a checksum its pieces."""

    sketch: ContentSketch
    tensors: ContentSketch
    overflowed: int
    crcs: Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]


def move_files(
    opened: Sending[Input],
    task: MoveTask[Stretch],
    advance: Advance,
    *,
    terms: MoveTerms,
    meaning: Meaning,
    targets: StagedTargets,
    checksum: str,
    summed: Mapping[int, Mapping[int, int]],
) -> FilesDone:
    """Move what a task names, in another process, into files that it opens; they are safe once it answers.

    `summed` are the sizes of the values of spread tables that have a checksum, by their file and their offset there.
    """
    numbers = set[int]()
    cuts = [cut for dense in task.dense for cut in cuts_in(terms.goal.cuts(dense.name), dense.start, dense.size)]
    numbers.update(cut.file for cut in cuts)
    for read in task.reads:
        assert isinstance(read.rows, Stretch)  # noqa: S101 - small tables move together into shards only
        numbers.update(terms.goal.files(read.rows.table, read.rows.counts.targets))
    rows = {(n, offset): Crc32(checksum) for n in numbers for offset in summed.get(n, {})}
    with targets.opened(numbers, task.extents, opened.memory) as files:
        sinks: Sinks = SummedSinks(files, rows, summed) if rows and task.reads else files
        mover = Mover(terms, opened.source, sinks, Counted(advance), meaning)
        mover.crcs = {(cut.file, cut.offset): Crc32(checksum) for cut in cuts} if checksum else {}
        for dense in task.dense:
            mover.move_dense(dense)
        for read in task.reads:
            assert isinstance(read.rows, Stretch)  # noqa: S101 - as above
            mover.move_stretch(read.rows)
        crcs = {place: crc.pieces for place, crc in {**mover.crcs, **rows}.items() if crc.size_bytes}
    return FilesDone(mover.sketch, mover.tensors, mover.overflowed, crcs)


class FilesMove:
    """A conversion while it is written, into `sinks` with the numbers of its files."""

    def __init__(
        self, plan: Conversion, source: VersionInput, sinks: Sinks, job: Job, directory: str, target: Properties
    ) -> None:
        """Take a plan and its input, and a `directory` for temporary files of tables in disorder."""
        self.plan, self.source, self.sinks, self.job, self.directory = plan, source, sinks, job, directory
        widest = max((table.row_bytes for table in plan.out.tables), default=0)
        buckets = plan.goal.rules.buckets
        round_trips = source.facts.round_trips
        settings = choose_settings(widest, target, round_trips=round_trips, to_ps=buckets, workers=job.workers)
        variables = {variable.name: variable.size_bytes for variable in plan.out.variables}
        terms = MoveTerms(plan.goal, variables, settings, once=exceeds_page_cache(2 * plan.size_bytes))
        self._terms = terms
        destination = plan.destination
        summed = list(destination.summed) if destination.checksum else []
        crcs = {(file, offset): Crc32(destination.checksum) for _, file, offset, _ in summed}
        is_read_back = all(map(is_on_disk, map(sinks.__getitem__, range(len(plan.destination.files)))))
        if summed and not is_read_back:
            self.sinks = self._summing(crcs)
        self._mover = Mover(terms, source, self.sinks, job.reporter, self._meaning())
        self._mover.crcs = crcs if is_read_back else {}
        self._crcs = crcs
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

    def _summing(self, crcs: Mapping[tuple[int, int], Crc32]) -> Sinks:
        """Return the files, which sum what is written to them."""
        sums: dict[int, dict[int, Crc32]] = {}
        sizes: dict[int, dict[int, int]] = {}
        for _, file, offset, size in self.plan.destination.summed:
            if size:  # values of no bytes may begin where others do
                sums.setdefault(file, {})[offset] = crcs[file, offset]
                sizes.setdefault(file, {})[offset] = size
        numbers = range(len(self.plan.destination.files))
        return [SummedSink(self.sinks[n], sums[n], sizes[n]) if n in sums else self.sinks[n] for n in numbers]

    def write(self, output: VersionOutput | None = None) -> None:
        """Write values, ids and framing bytes; the processes of a cluster write into an `output` that they share."""
        plan = self.plan
        if self.source.proof.sums is not None:
            self.source.proof.sums.restart()
        expect(self.job.reporter, 2 * plan.size_bytes)  # all is read back
        self.job.reporter.start("writing", plan.size_bytes)
        is_summed = bool(plan.destination.checksum)
        if not is_summed:  # before the values, so that the parts of uploads have all of their bytes soon
            self._write_framing({})
        if output is not None and self.job.executor.is_cluster:
            self._hand_out(output)
        else:
            run_all(self._mover.do, self._pieces(), self.job.workers)
        for table in plan.out.tables:
            if table.name not in plan.counted and not table.by_number:
                self._sorted(table)
        for name in plan.destination.carried:
            self._carry(name)
        for file, offset, data in plan.destination.computed:
            self.sinks[file].write(offset, data)
        if is_summed:
            self._write_framing(self._sums())

    def _write_framing(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Write all that is no value and no id, given the checksum of each value."""
        for file, offset, data in self.plan.destination.literals(sums):
            self.sinks[file].write(offset, data)

    def _hand_out(self, output: VersionOutput) -> None:
        """Let other processes write values and ids; raises UnsupportedError where they cannot."""
        executor, destination = self.job.executor, self.plan.destination
        targets = output.share()
        if not isinstance(targets, StagedTargets):
            raise UnsupportedError("a cluster sends to object storage only shards of ElasticDL")
        executor.share(targets.place)
        do = partial(
            move_files,
            terms=self._terms,
            meaning=self._mover.meaning,
            targets=targets,
            checksum=destination.checksum,
            summed=self._summed_rows(),
        )
        with handed_out(self.job, self.source, do, self._tasks(executor)) as results:
            for done in results:
                self.meant.add(done.sketch)
                self.tensors.add(done.tensors)
                self._mover.overflowed += done.overflowed
                for place, pieces in done.crcs.items():
                    self._crcs[place].take(pieces)

    def _summed_rows(self) -> dict[int, dict[int, int]]:
        """Return the sizes of the values that have a checksum and are no cut of a variable or of a matrix."""
        cuts = {(cut.file, cut.offset) for pieces in self.plan.goal.pieces.values() for cut in pieces}
        found: dict[int, dict[int, int]] = {}
        destination = self.plan.destination
        for _, file, offset, size_bytes in destination.summed if destination.checksum else ():
            if size_bytes and (file, offset) not in cuts:
                found.setdefault(file, {})[offset] = size_bytes
        return found

    def _tasks(self, executor: Executor) -> Iterator[MoveTask[Stretch]]:
        """Yield all tasks; the sums of one are a small result."""
        plan = self.plan
        task_bytes = executor.task_bytes(plan.size_bytes)
        for dense in packed(with_sum_bytes(self._dense(), self._summed_bytes), task_bytes):
            yield MoveTask(dense)
        sized, row_bytes = [], {table.name: table.row_bytes for table in plan.out.tables}
        for number, counts in enumerate(plan.survey.counts):
            if counts.table in plan.counted or plan.goal.rules.of(counts.table).by_number:
                stretch = plan.stretch(number)
                sized.append((TaskRead(stretch), int(counts.rows.sum()) * row_bytes[counts.table]))
        widest = max(row_bytes.values(), default=0)
        most = max(RESULT_BYTES // (4 * sketch_size(widest)), 1)
        for reads in together(sized, task_bytes, most=most):
            yield MoveTask(reads=tuple(reads))

    def _summed_bytes(self, variable: str) -> int:
        """Return the bytes that one sketch of a variable is of: those of a row of a matrix, else all."""
        return self._mover.meaning.row_bytes.get(variable) or self._terms.variables[variable]

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
                yield from self._mover.pieces_of(plan.stretch(number))

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
                pieces[key] = self._crcs[file, offset]
                if pieces[key].size_bytes == size:
                    continue
                pieces[key] = Crc32(destination.checksum)
                for start in range(0, size, _PIECE_BYTES):
                    yield key, file, offset, start, min(_PIECE_BYTES, size - start)

        def add(task: tuple[tuple[str, int], int, int, int, int]) -> None:
            key, file, offset, start, size = task
            data, sink = self._memory.take(size).data, self.sinks[file]
            assert isinstance(sink, OnDisk)  # noqa: S101 - all bytes of other files were summed when they were written
            sink.read_into(offset + start, data)
            pieces[key].add(start, data)

        run_all(add, tasks(), self.job.workers)
        return {key: sums.value() for key, sums in pieces.items()}
