"""The content of an export, sent to object storage by other processes.

The command begins an upload for each file, and completes it. Tasks send its parts. Large tables in the order of their
ids go through runs, which are an object beside the output for a while. What a file begins with may be known last: then
its first part is sent last, and what belongs to it is read once more. All that is read twice is weighed both times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.places import DenseAt, IdsAt
from edl_ckpt.core.commit.uploads import Extent, Sending, SharedUpload, SharedUploads, even_edges
from edl_ckpt.core.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.routing import sketch_size
from edl_ckpt.core.operations.export.balance import Balance
from edl_ckpt.core.operations.export.interface import EncodedPart, Encoder, Spread, Tensor, batch_rows
from edl_ckpt.core.operations.export.places import Place, SentFile, compare_rows
from edl_ckpt.core.operations.export.runs import Found, TableForm
from edl_ckpt.core.operations.export.send_tasks import (
    Measured,
    RowsPart,
    Segment,
    SendTask,
    SendWork,
    extents,
    together,
)
from edl_ckpt.core.operations.export.sent_groups import MOST_SPANS, SendGroupsWork, SentGroups
from edl_ckpt.core.operations.export.sent_runs import SendRunsWork, SentRuns, SentRunTask
from edl_ckpt.core.operations.export.spans import ArrayAt, DenseForm, Span, Tables
from edl_ckpt.core.operations.export.spread import SpreadReader, within
from edl_ckpt.core.parallel import impatient, run_parallel
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter, has_parts
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.meeting import SharedPrefix
from edl_ckpt.core.storage.parts import least_part
from edl_ckpt.core.words import command, counted, size

_RUNS: Final = 64
"""How many runs a table has, unless their size would be below one piece, or above some."""
_LEAST_RUN_PARTS: Final = 3
"""How many of the least parts a run has: tasks of a small version have fewer, and many runs cost many requests."""
_RUN_PIECES: Final = 4
"""How many pieces a run has at most, about: a process has as much of it in memory."""
_MOST_RUNS: Final = 2048
"""Each task reads a piece of each run, so requests grow with their square."""
_REQUESTS: Final = 32
_ENCODED_ROOM: Final = 64 << 20
"""What a file of encoded tables has beside its rows, at most."""


@dataclass(slots=True)
class SendReader(SpreadReader):
    """A `SpreadReader` whose files are uploads; `prefix` is one beside them for the work of other processes."""

    prefix: SharedPrefix | None = None
    _runs: dict[int, SentRuns] = field(default_factory=dict)
    _made: list[ObjectWriter] = field(default_factory=list)
    _held: list[SendTask] = field(default_factory=list)
    _work: SendWork | None = None
    _balance: Balance = field(default_factory=Balance)
    _sent_files: list[SentFile] = field(default_factory=list)
    _groups: SentGroups | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SpreadReader.__exit__(self, kind, error, trace)
        with impatient(error):
            self._drop_runs()

    def _meet(self, size_bytes: int) -> None:
        assert self.prefix is not None  # noqa: S101 - a default, because those before it have some
        self._by.share(self.prefix, size_bytes)

    @property
    def _store(self) -> ObjectStore:
        assert self.prefix is not None  # noqa: S101 - as above
        store = open_store(self.prefix.location)
        assert has_parts(store)  # noqa: S101 - the target was shared
        return store

    @property
    def _least_bytes(self) -> int:
        return self._store.properties.part_bytes

    def _spread(self, tables: Sequence[str]) -> Spread:
        return _SendSpread(self, tables)

    def most_bytes(self, table: str) -> int:
        """Return how large a table may become when it is encoded."""
        return self._bytes_of(table) * 3 // 2 + _ENCODED_ROOM

    def send(
        self, tables: Sequence[str], encoder: Encoder, files: Mapping[str, SentFile], head: bytes
    ) -> Mapping[str, Sequence[EncodedPart]]:
        """Let other processes encode all rows of each table, and send them."""
        forms, found, sent = [self._form(name) for name in tables], Found(), Found()
        self._start("exporting", tables, ())
        for _ in run_parallel(lambda file: file.item.begin(), list(files.values()), _REQUESTS):
            pass
        self._send_runs(forms, found)
        uploads = self._uploads({n: (files[f.name].relative, files[f.name].item) for n, f in enumerate(forms)})
        shown = Tables(forms, self._runs, self._is_sorted)
        work = SendGroupsWork(CheckpointValue.of(self.checkpoint), shown, encoder, uploads)
        self._groups = SentGroups(work, self._by, self.checkpoint, [files[form.name] for form in forms], self.reporter)
        spans = ((number, list(self._encoded_spans(number, form))) for number, form in enumerate(forms))
        made = self._groups.send(spans, head, self._piece_bytes, sent)
        for number, form in enumerate(forms):
            if number in self._runs:
                compare_rows(form.name, found.written if form.is_cast else found.source, sent.written)
        found.source.add(sent.source)
        found.overflowed += sent.overflowed
        self._take(found)
        return {form.name: parts for form, parts in zip(forms, made, strict=True)}

    def _encoded_spans(self, number: int, form: TableForm) -> Iterator[Span]:
        """Yield spans of whole batches, each for one part of a file."""
        rows, batch = self._row_count(form.name), batch_rows(form.dim)
        if not rows:
            return
        numbered = [] if number in self._runs else self._numbered(form.name)
        if self._is_sorted and numbered:
            yield Span(number, 0, rows, tuple(numbered))
            return
        step = max(self._aligned(form), -(-rows // MOST_SPANS // batch) * batch)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            yield Span(number, first, last, within(numbered, first, last) if numbered else ())

    def _aligned(self, form: TableForm) -> int:
        """Return how many rows of whole batches a task has: when they are encoded too, they should be a part."""
        batch, wanted = batch_rows(form.dim), max(self._piece_bytes, 2 * self._least_bytes)
        return max(wanted // (8 + form.width) // batch, 1) * batch

    def _run_bytes(self, name: str) -> int:
        """Return about how many bytes a run of a large table has."""
        piece = max(self._piece_bytes, _LEAST_RUN_PARTS * self._least_bytes)
        claimed = self._rows_claimed(name) * (8 + self._form(name).width)
        return min(max(piece, claimed // _RUNS), _RUN_PIECES * piece)

    def _ranges_of(self, name: str) -> int:
        """Return in how many ranges the ids of a table are found: each about as large as a run."""
        claimed = self._rows_claimed(name) * (8 + self._form(name).width)
        return -(-claimed // self._run_bytes(name)) if claimed else 1

    def _fill(
        self, variables: Sequence[str], tables: Sequence[str], tensors: Sequence[Tensor], places: Mapping[str, Place]
    ) -> None:
        """Let other processes send all tensors that have a place, but for what waits for the begin of its file."""
        del tensors  # matrices are refused
        files = self._begun(places)
        forms, rows_at, dense = self._layout(variables, tables, places, files)
        self._start("exporting", [form.name for form in forms], dense)
        found, sent = Found(), Found()
        self._send_runs(forms, found)
        tables_now = Tables(forms, self._runs, self._is_sorted)
        uploads = self._uploads({n: (f.relative, f.item) for n, f in enumerate(files)})
        self._work = SendWork(CheckpointValue.of(self.checkpoint), tables_now, rows_at, dense, uploads)
        proof = self._send(together(self._tasks(forms, rows_at, dense, files), self._piece_bytes), sent)
        counting = [each for task in self._held for each in task.counted()]
        proof.add(self._send(counting, sent))
        for number, form in enumerate(forms):
            if number in self._runs:
                compare_rows(form.name, found.written if form.is_cast else found.source, proof)
        found.add(sent)
        self._take(found)

    def _layout(
        self, variables: Sequence[str], tables: Sequence[str], places: Mapping[str, Place], files: Sequence[SentFile]
    ) -> tuple[list[TableForm], dict[int, tuple[ArrayAt, ArrayAt]], dict[str, DenseForm]]:
        """Return the forms of tables, where each has its ids and rows, and where variables are."""
        numbers = {file.path: number for number, file in enumerate(files)}
        at = {name: ArrayAt(numbers[place.file.path], place.offset) for name, place in places.items()}
        dense = {name: DenseForm(at[name], self._target(self._dtype(name))) for name in variables if name in at}
        forms = [self._form(name) for name in tables if f"{name}.ids" in at]
        return forms, {n: (at[f"{f.name}.ids"], at[f"{f.name}.vectors"]) for n, f in enumerate(forms)}, dense

    def settle(self) -> None:
        """Send what waited for the begin of its file, which is known now; then leave nothing beside the output."""
        heads = {n: tuple((n, at, data) for at, data in f.heads.items()) for n, f in enumerate(self._sent_files)}
        tasks = [
            task.uncounted()._replace(heads=tuple(h for e in task.extents for h in heads[e.target]))
            for task in self._held
        ]
        if tasks:
            self._send(tasks, Found())
        if not self._balance.is_even:
            self.checkpoint.check_unchanged()
            raise EdlCkptError(
                "values were read differently the second time; nothing was published",
                path=self.checkpoint.version.path,
                hint="check the memory and the network of the workers, and try again",
            )
        if self._groups is not None:
            self._groups.end()
        self._drop_runs()

    def _begun(self, places: Mapping[str, Place]) -> list[SentFile]:
        """Begin the uploads of all files."""
        files: dict[str, SentFile] = {}
        for place in places.values():
            assert isinstance(place.file, SentFile)  # noqa: S101 - the target was shared
            files[place.file.path] = place.file
        self._sent_files = list(files.values())
        for _ in run_parallel(lambda file: file.item.begin(), self._sent_files, _REQUESTS):
            pass
        return self._sent_files

    def _uploads(self, items: Mapping[int, tuple[str, ObjectWriter]]) -> SharedUploads:
        assert self.prefix is not None  # noqa: S101 - as above
        uploads = {n: SharedUpload(name, item.size_bytes, item.upload_id) for n, (name, item) in items.items()}
        return SharedUploads(self.prefix.location, uploads, self.prefix, self._least_bytes)

    def _send(self, tasks: Iterable[SendTask], found: Found) -> ContentSketch:
        """Let other processes do tasks; return the sums of the rows of runs that they sent."""
        assert self._work is not None  # noqa: S101 - made by `_fill`
        proof = ContentSketch()
        opened = Sending(self.checkpoint, 0)
        with closing(self._by.run(self._work, opened, tasks, self.reporter.advance)) as results:
            for sent in results:
                found.add(sent.found)
                proof.add(sent.proof)
                self._balance.add(sent.balance)
                for target, part in sent.parts:
                    self._sent_files[target].item.take([part])
        return proof

    def _tasks(
        self,
        forms: Sequence[TableForm],
        rows_at: Mapping[int, tuple[ArrayAt, ArrayAt]],
        dense: Mapping[str, DenseForm],
        files: Sequence[SentFile],
    ) -> Iterator[Measured]:
        """Yield what sends each file, in pieces; keep what waits for the begin of its file."""
        segments: list[list[Segment]] = [[] for _ in files]
        for name, (place, target) in dense.items():
            step = bulk.CHUNK_BYTES // self._dtype(name).itemsize * target.itemsize
            segments[place.file].append(Segment(place.offset, self._dtype_size(name), step, name))
        for number, form in enumerate(forms):
            count, is_whole = self._row_count(form.name), self._is_sorted and number not in self._runs
            for place, width, rows in zip(rows_at[number], (8, form.width), (False, True), strict=True):
                size, step = count * width, count * width if is_whole else width
                segments[place.file].append(Segment(place.offset, size, step, "", number, rows))
        numbered = {form.name: self._numbered(form.name) for form in forms if form.name in self._places}
        variables = {
            entry.name: (shard, at)
            for shard, index in enumerate(self.checkpoint.shards)
            for at, entry in enumerate(index.variables)
        }
        for number, (file, own) in enumerate(zip(files, segments, strict=True)):
            least, first = least_part(file.item.size_bytes, self._least_bytes), 0
            runs = [self._run_bytes(forms[each.table].name) for each in own if each.table in self._runs]
            usual = max(self._piece_bytes, least, *runs)
            waits = not file.heads
            some = sorted((each for each in own if each.size), key=lambda each: each.start)
            for low, high, cuts in extents(some, file.item.size_bytes, least if waits else usual, usual):
                edges = (low, *even_edges(low, high, least))
                task = self._task(Extent(number, edges, first), cuts, forms, numbered, variables, dense)
                first += len(edges) - 1
                if not low and waits:
                    self._held.append(task)
                    continue
                if not low:
                    task = task._replace(heads=tuple((number, at, data) for at, data in file.heads.items()))
                results = sum(4 * sketch_size(self._dtype_size(s.name) if s.name else 0) for s, _, _ in cuts if s.name)
                results += sum(forms[s.table].sums_bytes for s, _, _ in cuts if s.rows)
                yield Measured(task, high - low, results)

    def _task(
        self,
        extent: Extent,
        cuts: Sequence[tuple[Segment, int, int]],
        forms: Sequence[TableForm],
        numbered: Mapping[str, list[tuple[int, IdsAt]]],
        variables: Mapping[str, tuple[int, int]],
        dense: Mapping[str, DenseForm],
    ) -> SendTask:
        """Return what sends one piece of a file."""
        arrays: list[tuple[DenseAt, bool]] = []
        spans: dict[Span, RowsPart] = {}
        for segment, start, end in cuts:
            if segment.name:
                own, target = self._dtype(segment.name).itemsize, dense[segment.name].target.itemsize
                first, last = start // target * own, end // target * own
                arrays.append((DenseAt(*variables[segment.name], first, last - first), True))
                continue
            form = forms[segment.table]
            width = form.width if segment.rows else 8
            first, last = start // width, end // width
            pieces: tuple[tuple[int, IdsAt], ...] = ()
            if segment.table not in self._runs:
                all_pieces = numbered[form.name]
                pieces = tuple(all_pieces) if self._is_sorted else within(all_pieces, first, last)
            span = Span(segment.table, first, last, pieces)
            known = spans.get(span, RowsPart(span, ids=False, rows=False, counts=False))
            rows = known.rows or segment.rows or not form.width
            spans[span] = RowsPart(span, known.ids or not segment.rows, rows, rows)
        return SendTask((extent,), (), tuple(arrays), tuple(spans.values()))

    def _send_runs(self, forms: Sequence[TableForm], found: Found) -> None:
        """Let other processes put large tables in order, each in an object beside the output."""
        large = {n: form for n, form in enumerate(forms) if self._has_runs(form.name)}
        if not large:
            return
        assert self.prefix is not None  # noqa: S101 - as above
        groups = {
            n: list(_grouped(self._places[form.name], form, self._run_bytes(form.name))) for n, form in large.items()
        }
        runs: dict[int, SentRuns] = {}
        for n, form in large.items():
            if len(groups[n]) > _MOST_RUNS:
                raise UnsupportedError(
                    f"table {form.name!r} is too large to be sorted by a cluster on object storage",
                    path=self.prefix.path,
                    hint="try: --order stored, or a file system that all workers share",
                )
            firsts = np.cumsum([0, *(sum(place.rows for place in group) for group in groups[n])])
            version, name = self.checkpoint.version, f"{self.prefix.relative}/runs-{n}"
            runs[n] = SentRuns(
                name,
                form,
                firsts,
                self._cuts[form.name],
                checkpoint_path=version.path,
                hint=f"try: {command('verify', version.ref)}",
                location=self.prefix.location,
                index=f"{self.prefix.relative}/index-{n}",
            )
        items = {n: self._store.new_object(each.path, each.size_bytes) for n, each in runs.items()}
        self._made += items.values()
        for _ in run_parallel(lambda item: item.begin(), list(items.values()), _REQUESTS):
            pass
        uploads = self._uploads({n: (runs[n].path, item) for n, item in items.items()})
        tasks = [task for n in large for task in _run_tasks(n, runs[n], groups[n], uploads.least_part(n))]
        work = SendRunsWork(CheckpointValue.of(self.checkpoint), runs, uploads)
        begins: dict[int, list[bulk.I64]] = {n: [] for n in large}
        opened = Sending(self.checkpoint, 0)
        with closing(self._by.run(work, opened, tasks, self.reporter.advance)) as results:
            for task, run in zip(tasks, results, strict=True):
                found.add(run.found)
                begins[task.table].append(run.begins)
                for target, part in run.parts:
                    items[target].take([part])
        for n, item in items.items():
            item.finish()
            item.complete()
            index = np.stack(begins[n], axis=1)
            self._store.write_small(runs[n].index, index.astype("<i8", copy=False).tobytes())
            self._runs[n] = runs[n].starting(np.diff(index.sum(axis=1)))

    def _drop_runs(self) -> None:
        """Remove what was beside the output; no late task can bring it back."""
        if not self._made:
            return
        made, self._made = self._made, []
        for item in made:
            with suppress(EdlCkptError):
                item.abort()
        assert self.prefix is not None  # noqa: S101 - as above
        with suppress(EdlCkptError):
            self._store.remove_many(self._store.tree(self.prefix.relative))


def _grouped(places: Iterable[IdsAt], form: TableForm, run_bytes: int) -> Iterator[tuple[IdsAt, ...]]:
    """Yield the pieces of runs: at least so many bytes, but for the last one."""
    some: list[IdsAt] = []
    size = 0
    for place in places:
        if not place.rows:
            continue
        some.append(place)
        size += place.rows * (8 + form.width)
        if size >= run_bytes:
            yield tuple(some)
            some, size = [], 0
    if some:
        yield tuple(some)


def _run_tasks(table: int, runs: SentRuns, groups: Sequence[tuple[IdsAt, ...]], least: int) -> Iterator[SentRunTask]:
    """Yield a task for each run."""
    first = 0
    for number, (group, low, high) in enumerate(
        zip(groups, runs.bases[:-1].tolist(), runs.bases[1:].tolist(), strict=True)
    ):
        edges = (low, *even_edges(low, high, least))
        yield SentRunTask(table, number, group, Extent(table, edges, first))
        first += len(edges) - 1


@dataclass(frozen=True, slots=True)
class _SendSpread:
    """What a format asks of the other processes."""

    reader: SendReader
    tables: Sequence[str]
    sends: bool = True

    def encode(self, encoder: Encoder) -> Mapping[str, Sequence[EncodedPart]]:
        return self.reader.encode(self.tables, encoder)

    def place(self, parts: Mapping[str, Sequence[tuple[int, EncodedPart]]]) -> None:
        self.reader.place(parts)

    def most_bytes(self, table: str) -> int:
        return self.reader.most_bytes(table)

    def send(self, encoder: Encoder, files: Mapping[str, SentFile], head: bytes) -> Mapping[str, Sequence[EncodedPart]]:
        return self.reader.send(self.tables, encoder, files, head)


@dataclass(frozen=True, slots=True)
class SendPlan:
    """How the workers of a cluster send files to object storage, and what that costs."""

    tasks: int
    parts: int
    value_bytes: int
    """The bytes of all values and ids in the files."""
    again_bytes: int
    """Those that are read once more, because the begin of their file is sent last."""
    sorted_tables: int
    sorted_bytes: int
    """The bytes of tables that are sorted through objects beside the output: written once, and read once."""

    def __str__(self) -> str:
        again = f", {size(self.again_bytes)} of values read twice" if self.again_bytes else ""
        parts, tables = f"{counted(self.parts, 'part')} in {counted(self.tasks, 'task')}{again}", self.sorted_tables
        if not tables:
            return parts
        return f"{parts}; {counted(tables, 'table')} sorted through {size(self.sorted_bytes)} beside the output"


@dataclass(slots=True)
class DrySending(SendReader):
    """A `SendReader` that plans only."""

    least_bytes: int = 0

    def _meet(self, size_bytes: int) -> None:
        del self, size_bytes

    @property
    def _least_bytes(self) -> int:
        return self.least_bytes

    def planned(self, places: Mapping[str, Place]) -> SendPlan:
        """Return how tensors would be sent to their places."""
        files = {place.file.path: place.file for place in places.values() if isinstance(place.file, SentFile)}
        variables = self.selection.choose_variables(self.checkpoint.variable_names)
        tables = self.selection.choose_tables(self.checkpoint.table_names)
        sent = list(files.values())
        forms, rows_at, dense = self._layout(variables, tables, places, sent)
        large = {n: form for n, form in enumerate(forms) if self._has_runs(form.name)}
        runs = parts = 0
        for number, form in large.items():
            groups = list(_grouped(self._places[form.name], form, self._run_bytes(form.name)))
            self._runs[number] = _no_runs(form)
            least = least_part(self._bytes_of(form.name), self._least_bytes)
            runs += len(groups)
            for group in groups:
                parts += len(even_edges(0, sum(place.rows for place in group) * (8 + form.width), least))
        tasks = list(together(self._tasks(forms, rows_at, dense, sent), self._piece_bytes))
        every = [extent for task in (*tasks, *self._held) for extent in task.extents]
        again = sum(extent.edges[-1] - extent.edges[0] for task in self._held for extent in task.extents)
        reads = sum(1 for task in self._held for _ in task.counted())
        total = sum(map(self._bytes_of, (form.name for form in forms))) + sum(map(self._dtype_size, dense))
        return SendPlan(
            tasks=len(tasks) + len(self._held) + reads + runs,
            parts=sum(len(extent.edges) - 1 for extent in every) + parts,
            value_bytes=total,
            again_bytes=again,
            sorted_tables=len(large),
            sorted_bytes=sum(self._bytes_of(form.name) for form in large.values()),
        )


def _no_runs(form: TableForm) -> SentRuns:
    """Stand for runs that are not written."""
    none = np.zeros(1, np.int64)
    return SentRuns("", form, none, none[:0], location=Location(""), index="")
