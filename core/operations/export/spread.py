"""The content of an export, read and written by other processes that share a file system.

The command counts, plans, and compares sums. Large tables in the order of their ids go through runs (`runs`); all else
is read once and written to its place. What was written is read back behind the fence, when nobody writes any more.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Final, Self, cast

import numpy as np

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.partition import parts_needed, ranges_of_sample
from edl_ckpt.core.checkpoint.places import DenseAt, IdsAt, dense_at, ids_at, in_sketched_tasks, in_tasks
from edl_ckpt.core.checkpoint.scan import number_rows
from edl_ckpt.core.checkpoint.values import OpenedValues, ValuesWork
from edl_ckpt.core.commit.shared_files import SharedFiles
from edl_ckpt.core.errors import UnsupportedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DType
from edl_ckpt.core.format.routing import sketch_size
from edl_ckpt.core.ids import kernel_id
from edl_ckpt.core.operations.export.content import ContentReader
from edl_ckpt.core.operations.export.encoded import EncodeWork, Placed, PlacedWork, PlaceWork
from edl_ckpt.core.operations.export.interface import EncodedPart, Encoder, ExportContent, Spread, Tensor, batch_rows
from edl_ckpt.core.operations.export.look import LookWork, share_of
from edl_ckpt.core.operations.export.places import Place, compare_rows, reads_back_differently
from edl_ckpt.core.operations.export.runs import (
    Found,
    NothingOpened,
    RangesAt,
    Runs,
    RunTask,
    RunWork,
    TableForm,
    TotalsWork,
)
from edl_ckpt.core.operations.export.selection import STORED
from edl_ckpt.core.operations.export.spans import (
    ArrayAt,
    BackWork,
    DenseBack,
    DenseForm,
    RowsBack,
    Span,
    Tables,
    WriteTask,
    WriteWork,
)
from edl_ckpt.core.packing import packed, together
from edl_ckpt.core.parallel import Executor
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile, check_space
from edl_ckpt.core.storage.meeting import SharedDirectory
from edl_ckpt.core.words import command

_PIECE_BYTES: Final = 16 << 20
"""The most bytes of rows that a thread has at a time, read and put in order; a process has as much once more."""
_NO_MATRIX: Final = "a cluster writes tables as ids and vectors, and not as a matrix"
_RANGES_AT_ONCE: Final = 4096


@dataclass(slots=True)
class SpreadReader(ContentReader):
    """A `ContentReader` whose work other processes do; `shared` is a directory in which they write meanwhile."""

    executor: Executor | None = None
    shared: str = ""
    writes: bool = True
    """False for a plan: nobody needs to reach the output."""
    _places: dict[str, list[IdsAt]] = field(default_factory=dict)
    _cuts: dict[str, bulk.I64] = field(default_factory=dict)

    def __enter__(self) -> Self:
        if self.selection.dense_rows is not None:
            raise UnsupportedError(_NO_MATRIX, hint="without --cluster, this machine writes a matrix")
        executor, checkpoint = self._by, self.checkpoint
        self._meet(0)
        places = list(ids_at(checkpoint, self._piece_bytes, values=True))
        shares = {name: share_of(self._rows_claimed(name), self._ranges_of(name)) for name in self._names}
        work = LookWork(CheckpointValue.of(checkpoint), shares)
        counts: list[int] = []
        samples: list[bulk.I64] = []
        tasks = in_tasks(places, self._piece_bytes)
        with closing(executor.run(work, checkpoint, tasks, lambda _: None)) as results:
            for look in results:
                counts += look.rows
                samples += look.samples
        drawn: dict[str, list[bulk.I64]] = {}
        pieces = number_rows(checkpoint, [place.piece(checkpoint) for place in places], counts)
        for place, piece, sample in zip(places, pieces, samples, strict=True):
            name = piece.entry.name
            self._pieces.setdefault(name, []).append(piece)
            self._places.setdefault(name, []).append(place._replace(first_row=piece.first_row, rows=piece.rows))
            drawn.setdefault(name, []).append(sample)
        for name, some in drawn.items():
            self._cuts[name] = ranges_of_sample(np.concatenate(some), self._ranges_of(name)).cuts
        return self

    def _meet(self, size_bytes: int) -> None:
        """Raise UnsupportedError unless all processes can work beside the output, with room for some bytes."""
        if self.writes:
            self._by.share(SharedDirectory(self.shared), size_bytes)

    @property
    def _by(self) -> Executor:
        assert self.executor is not None  # noqa: S101 - a default, because those before it have some
        return self.executor

    @property
    def _piece_bytes(self) -> int:
        """Return how many bytes of rows a task has in memory."""
        most = _PIECE_BYTES + _PIECE_BYTES // self._by.threads
        return min(self._by.task_bytes(sum(s.file.size_bytes for s in self.checkpoint.shards)) or most, most)

    def _ranges_of(self, name: str) -> int:
        """Return in how many ranges the ids of a table are found: each about as large as a task."""
        width = self._form(name).width
        return parts_needed(self._rows_claimed(name) * (8 + width), self._piece_bytes)

    def _form(self, name: str) -> TableForm:
        dtype = self.checkpoint.table_dtype(name)
        return TableForm(name, self._dim(name), dtype, self._target(dtype) if dtype is not None else None)

    def content(self) -> ExportContent:
        """Return what a format writes; what other processes write, they read themselves."""
        content = ContentReader.content(self)
        largest = max((self._bytes_of(table.name) for table in content.tables), default=0)
        self._meet(sum(tensor.size_bytes for tensor in content.tensors) + largest)
        return replace(content, spread=self._spread([table.name for table in content.tables]))

    def _spread(self, tables: Sequence[str]) -> Spread:
        """Return what a format that encodes tables asks of other processes."""
        return _Spread(self, tables)

    def _fill(
        self, variables: Sequence[str], tables: Sequence[str], tensors: Sequence[Tensor], places: Mapping[str, Place]
    ) -> None:
        """Let other processes write the bytes of all tensors that have a place, and read them back."""
        del tensors  # matrices are refused
        paths = sorted({place.file.path for place in places.values()})
        files, shared = {path: number for number, path in enumerate(paths)}, SharedFiles(self.shared, _absolute(paths))
        at = {name: ArrayAt(files[place.file.path], place.offset) for name, place in places.items()}
        dense = {name: DenseForm(at[name], self._target(self._dtype(name))) for name in variables if name in at}
        forms = [self._form(name) for name in tables if f"{name}.ids" in at]
        rows_at = {n: (at[f"{form.name}.ids"], at[f"{form.name}.vectors"]) for n, form in enumerate(forms)}
        self._start("exporting", [form.name for form in forms], dense)
        source, found = CheckpointValue.of(self.checkpoint), Found()

        def write(tasks: Iterable[WriteTask], runs: Mapping[int, Runs]) -> None:
            work = WriteWork(source, Tables(forms, runs, self._is_sorted), rows_at, dense, shared.targets)
            with closing(self._by.run(work, self.checkpoint, tasks, self.reporter.advance)) as results:
                for some in results:
                    found.add(some)

        every = dense_at(self.checkpoint, self._piece_bytes) if dense else ()
        sums = 2 if any(map(self._is_cast, dense)) else 1  # of what is read, and of what is cast
        variables_read = in_sketched_tasks(self.checkpoint, every, self._piece_bytes, sums=sums)
        direct = self._bundled(self._direct_spans(forms, batch=False))
        write(chain(cast("Iterator[WriteTask]", variables_read), direct), {})
        for runs in self._spilled(forms, found):
            write(((span,) for span in self._run_spans(forms, runs, aligned=False)), runs)
        self._take(found)
        shared.end()
        self._prove(_absolute(paths), forms, rows_at, dense, found)

    def _take(self, found: Found) -> None:
        """Take over the sums of what was read."""
        self._source.take_variables(found.source)
        self._source.tables.update(found.source.tables)
        self.overflowed += found.overflowed

    def _start(self, what: str, tables: Sequence[str], variables: Iterable[str]) -> None:
        """Begin a phase that reads or writes the rows of tables, those of large ones twice."""
        total = sum(self._dtype_size(name) for name in variables)
        for name in tables:
            total += self._bytes_of(name) * (2 if what == "exporting" and self._has_runs(name) else 1)
        self.reporter.start(what, total)

    def _dtype(self, name: str) -> DType:
        return self.checkpoint.find_variable(name)[1].dtype

    def _is_cast(self, name: str) -> bool:
        return self._target(self._dtype(name)) != self._dtype(name)

    def _dtype_size(self, name: str) -> int:
        entry = self.checkpoint.find_variable(name)[1]
        return entry.size_bytes // entry.dtype.itemsize * self._target(entry.dtype).itemsize

    def _bytes_of(self, name: str) -> int:
        return self._row_count(name) * (8 + self._form(name).width)

    @property
    def _is_sorted(self) -> bool:
        return self.selection.order != STORED

    def _has_runs(self, name: str) -> bool:
        """Say whether the rows of a table are too many to be put in order by one task."""
        return self._is_sorted and self._bytes_of(name) > self._piece_bytes

    def _direct_spans(self, forms: Sequence[TableForm], *, batch: bool) -> Iterator[Span]:
        """Yield spans of what is read from the checkpoint itself; with `batch`, of whole batches."""
        for number, form in enumerate(forms):
            rows = self._row_count(form.name)
            if not rows or self._has_runs(form.name):
                continue
            numbered = self._numbered(form.name)
            if self._is_sorted:
                yield Span(number, 0, rows, tuple(numbered))
            elif not batch:
                yield from (Span(number, at, at + p.rows, ((at, p),)) for at, p in numbered if p.rows)
            else:
                step = self._aligned(form)
                for first in range(0, rows, step):
                    last = min(first + step, rows)
                    yield Span(number, first, last, within(numbered, first, last))

    def _numbered(self, name: str) -> list[tuple[int, IdsAt]]:
        """Return the pieces of a table, each with the number of its first row."""
        places = self._places[name]
        firsts = np.cumsum([0, *(place.rows for place in places)]).tolist()
        return list(zip(firsts, places, strict=False))

    def _aligned(self, form: TableForm) -> int:
        """Return how many rows of whole batches a task has."""
        batch = batch_rows(form.dim)
        return max(self._piece_bytes // (8 + form.width) // batch, 1) * batch

    def _bundled(self, spans: Iterable[Span]) -> Iterator[tuple[Span, ...]]:
        """Yield spans in tasks, many small ones together."""

        def measured(span: Span) -> tuple[Span, int, str, int]:
            name = span.pieces[0][1].piece(self.checkpoint).entry.name
            form = self._form(name)
            return span, (span.last - span.first) * (8 + form.width), name, form.sums_bytes

        yield from packed(map(measured, spans), self._piece_bytes)

    def _run_spans(self, forms: Sequence[TableForm], runs: Mapping[int, Runs], *, aligned: bool) -> Iterator[Span]:
        for number, own in runs.items():
            form = forms[number]
            step = self._aligned(form) if aligned else max(self._piece_bytes // (8 + form.width), 1)
            for first in range(0, own.rows, step):
                yield Span(number, first, min(first + step, own.rows))

    def _spilled(self, forms: Sequence[TableForm], found: Found) -> Iterator[Mapping[int, Runs]]:
        """Yield the runs of large tables, of as many at a time as the largest one has bytes; then remove them."""
        large = {n: self._bytes_of(form.name) for n, form in enumerate(forms) if self._has_runs(form.name)}
        for numbers in together(large.items(), max(large.values(), default=0)):
            runs = {number: self._planned(forms[number]) for number in numbers}
            try:
                check_space(self.shared, sum(each.size_bytes for each in runs.values()))
                for each in runs.values():
                    PreallocatedFile(each.path, each.size_bytes).close()
                self._write_runs(list(runs.values()), found)
                totals = self._totals(list(runs.values()))
                yield {n: each.starting(own) for (n, each), own in zip(runs.items(), totals, strict=True)}
            finally:
                for each in runs.values():
                    with suppress(FileNotFoundError), storage_errors(each.path):
                        os.unlink(each.path)

    def _planned(self, form: TableForm) -> Runs:
        version, places = self.checkpoint.version, self._places[form.name]
        return Runs(
            os.path.join(self.shared, f"runs-{uuid.uuid4().hex}"),
            form,
            np.cumsum([0, *(place.rows for place in places)]),
            self._cuts[form.name],
            checkpoint_path=version.path,
            hint=f"try: {command('verify', version.ref)}",
        )

    def _write_runs(self, runs: Sequence[Runs], found: Found) -> None:
        work = RunWork(CheckpointValue.of(self.checkpoint), runs, kernel_id())
        tasks = (
            RunTask(table, run, place)
            for table, each in enumerate(runs)
            for run, place in enumerate(self._places[each.form.name])
        )
        with closing(self._by.run(work, self.checkpoint, tasks, self.reporter.advance)) as results:
            for some in results:
                found.add(some)

    def _totals(self, runs: Sequence[Runs]) -> list[bulk.I64]:
        """Return how many rows each range of each table has."""
        tasks = [
            RangesAt(table, first, min(first + _RANGES_AT_ONCE, each.ranges))
            for table, each in enumerate(runs)
            for first in range(0, each.ranges, _RANGES_AT_ONCE)
        ]
        totals = [np.zeros(each.ranges, np.int64) for each in runs]
        with closing(self._by.run(TotalsWork(runs), NothingOpened(), tasks, lambda _: None)) as results:
            for task, own in zip(tasks, results, strict=True):
                totals[task.table][task.first : task.last] = own
        return totals

    def _prove(
        self,
        paths: Sequence[str],
        forms: Sequence[TableForm],
        rows_at: Mapping[int, tuple[ArrayAt, ArrayAt]],
        dense: Mapping[str, DenseForm],
        found: Found,
    ) -> None:
        """Read back what was written."""
        self._start("proving", [form.name for form in forms], dense)
        parts = self._back(forms, rows_at, {name: form.place for name, form in dense.items()})
        back, proof = packed(parts, self._piece_bytes), ContentSketch()
        with closing(self._by.run(BackWork(paths), NothingOpened(), back, self.reporter.advance)) as results:
            for sketch in results:
                proof.add(sketch)
        for form in forms:
            compare_rows(form.name, found.written if form.is_cast else found.source, proof)
        for name, own in dense.items():
            if not _are_equal(found.written if self._is_cast(name) else found.source, proof, name):
                raise reads_back_differently(name, paths[own.place.file])

    def _back(
        self,
        forms: Sequence[TableForm],
        rows_at: Mapping[int, tuple[ArrayAt, ArrayAt]],
        dense: Mapping[str, ArrayAt],
    ) -> Iterator[tuple[DenseBack | RowsBack, int, str, int]]:
        """Yield the parts of what was written, measured for `packed`."""
        step = max(self._piece_bytes // bulk.CHUNK_BYTES, 1) * bulk.CHUNK_BYTES
        for name, place in dense.items():
            total = self._dtype_size(name)
            for start in range(0, max(total, 1), step):
                size = min(step, total - start)
                yield DenseBack(name, total, place, start, size), size, f"d{name}", 4 * sketch_size(total)
        for number, form in enumerate(forms):
            rows, per_row = self._row_count(form.name), 8 + form.width
            many = max(self._piece_bytes // per_row, 1)
            for first in range(0, rows, many):
                last = min(first + many, rows)
                part = RowsBack(form.name, form.width, *rows_at[number], first, last)
                yield part, (last - first) * per_row, f"t{form.name}", 4 * sketch_size(form.width)

    def _read_rest(self) -> None:
        """Let other processes read what was not read, or not to its end."""
        done = self._source
        names = {name for name in self._names if name not in done.tables}
        missing = self.checkpoint.keys() - done.variable_names()
        places: list[DenseAt | IdsAt] = [
            place
            for place in dense_at(self.checkpoint, self._piece_bytes)
            if place.piece(self.checkpoint).entry.name in missing
        ]
        places += [place for name in names for place in self._places.get(name, ())]
        if not places:
            return
        work = ValuesWork(CheckpointValue.of(self.checkpoint), sketched=True, odd=False)
        tasks = in_sketched_tasks(self.checkpoint, places, self._piece_bytes)
        self.reporter.start("fingerprint", sum(map(self._size_of, places)))
        source = ContentSketch()
        with closing(self._by.run(work, OpenedValues(self.checkpoint), tasks, self.reporter.advance)) as results:
            for values in results:
                source.add(values.sketch)
        done.tables.update(source.tables)
        done.take_variables(source, missing)

    def _size_of(self, place: DenseAt | IdsAt) -> int:
        if isinstance(place, DenseAt):
            return place.size
        return place.rows * place.piece(self.checkpoint).entry.row_bytes

    def encode(self, tables: Sequence[str], encoder: Encoder) -> Mapping[str, Sequence[EncodedPart]]:
        """Return all rows of each table, encoded by other processes."""
        forms, parts = [self._form(name) for name in tables], {name: list[EncodedPart]() for name in tables}
        self._start("exporting", tables, ())
        check_space(self.shared, 2 * sum(map(self._bytes_of, tables)))  # the parts, and the files that they become
        source, found, encoded = CheckpointValue.of(self.checkpoint), Found(), ContentSketch()

        def run(tasks: Iterable[tuple[Span, ...]], runs: Mapping[int, Runs]) -> None:
            work = EncodeWork(source, Tables(forms, runs, self._is_sorted), encoder, self.shared, kernel_id())
            listed = list(tasks)
            with closing(self._by.run(work, self.checkpoint, listed, self.reporter.advance)) as results:
                for task, (some, made) in zip(listed, results, strict=True):
                    encoded.add(some.written)
                    found.source.add(some.source)
                    found.overflowed += some.overflowed
                    for span, part in zip(task, made, strict=True):
                        parts[forms[span.table].name].append(part)

        run(self._bundled(self._direct_spans(forms, batch=True)), {})
        for runs in self._spilled(forms, found):
            run(((span,) for span in self._run_spans(forms, runs, aligned=True)), runs)
            for each in runs.values():
                compare_rows(each.form.name, found.written if each.form.is_cast else found.source, encoded)
        self._take(found)
        return parts

    def place(self, parts: Mapping[str, Sequence[tuple[int, EncodedPart]]]) -> None:
        """Let other processes copy parts into files, given by their paths, and read them back."""
        paths = _absolute(parts)
        shared = SharedFiles(self.shared, paths)
        tasks = [Placed(n, offset, part) for n, each in enumerate(parts.values()) for offset, part in each]
        total = sum(task.part.size_bytes for task in tasks)
        self.reporter.start("exporting", total)
        for _ in self._by.run(PlaceWork(shared.targets), NothingOpened(), tasks, self.reporter.advance):
            pass
        shared.end()
        self.reporter.start("proving", total)
        for _ in self._by.run(PlacedWork(paths), NothingOpened(), tasks, self.reporter.advance):
            pass


@dataclass(frozen=True, slots=True)
class _Spread:
    """What a format asks of the other processes."""

    reader: SpreadReader
    tables: Sequence[str]
    sends: bool = False

    def encode(self, encoder: Encoder) -> Mapping[str, Sequence[EncodedPart]]:
        return self.reader.encode(self.tables, encoder)

    def place(self, parts: Mapping[str, Sequence[tuple[int, EncodedPart]]]) -> None:
        self.reader.place(parts)


def _absolute(paths: Iterable[str]) -> list[str]:
    return [os.path.abspath(path) for path in paths]


def within(numbered: Sequence[tuple[int, IdsAt]], first: int, last: int) -> tuple[tuple[int, IdsAt], ...]:
    """Return the pieces that have rows [first, last) of a table that is written as it is stored."""
    begin = bisect_right(numbered, first, key=itemgetter(0)) - 1
    return tuple(numbered[begin : bisect_left(numbered, last, key=itemgetter(0))])


def _are_equal(one: ContentSketch, other: ContentSketch, name: str) -> bool:
    """Say whether a variable has the same sums in both."""
    a, b = one.variables.get(name), other.variables.get(name)
    same = (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
    return same and one.whole.get(name) == other.whole.get(name)
