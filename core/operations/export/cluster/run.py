"""An export on a cluster: a look at the ids, a plan of files, a task for each, and the proof of all of them.

The files that the tasks of a cluster write: each has some variables and tables, or the rows of a range of ids.

A task writes one whole file, reads it back, and returns the sums of what it read.

Files are about as large as the share of a thread. A table that is larger is cut: by a sample of its ids, so that its
files ascend in them, or in the stored order between its pieces.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import RESULT_BYTES, Advance, run_parallel
from edl_ckpt.core.base.progress import Counted
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit.sent_parts import Sending
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.content.reader import ContentReader
from edl_ckpt.core.operations.export.content.tables import LookedAt, Name, TableIds, look, read_rest, rows_claimed
from edl_ckpt.core.operations.export.formats.content_format import ContentFormat
from edl_ckpt.core.operations.export.interface import (
    STORED,
    ContentCounts,
    ExportContent,
    Selection,
    WrittenContent,
)
from edl_ckpt.core.operations.export.output.places import OutputFile
from edl_ckpt.core.operations.export.output.shared import NewPart, WrittenFile
from edl_ckpt.core.operations.export.output.target import ExportTarget, PartsTarget
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import PART_BYTES, parts_needed, ranges_of_sample, sample_step

LEAST_FILE_BYTES: Final = 16 << 20
"""A cluster cuts nothing into smaller files by itself."""
MOST_NAMES: Final = 500
"""The variables and tables of one file: a result has a digest of each."""
_SUMS_BYTES: Final = RESULT_BYTES // 2
_SENT_BYTES: Final = 32 << 20
"""Memory for the parts of uploads that a process sends at a time."""
WritePart: TypeAlias = Callable[[ExportContent, str, Callable[[str, int], OutputFile]], None]
"""Writes some content to one new file; a function of a module, by whose name other processes know it."""
_LOWEST, _HIGHEST = (int(limit) for limit in (np.iinfo(np.int64).min, np.iinfo(np.int64).max))


class Span(NamedTuple):
    """Rows of a table that one file has: those of pieces [first, last) with ids from `low` to `high`.

    `number` is that among the spans of its table, of which there are `total`. Tensors have the `title` in their names.
    """

    table: str
    title: str
    first: int
    last: int
    low: int = _LOWEST
    high: int = _HIGHEST
    number: int = 0
    total: int = 1

    @property
    def is_range(self) -> bool:
        """Say whether not all rows of its pieces belong to it."""
        return (self.low, self.high) != (_LOWEST, _HIGHEST)

    def has(self, ids: bulk.I64) -> npt.NDArray[np.bool_]:
        """Return a bool for each id: whether it is in the range."""
        inside: npt.NDArray[np.bool_] = (ids >= self.low) & (ids <= self.high)
        return inside


def numbered(span: Span) -> str:
    """Return which of its table's spans it is, for names.

    >>> numbered(Span("t", "t", 0, 9, number=1, total=12))
    '00002-of-00012'
    """
    return f"{span.number + 1:05}-of-{span.total:05}"


class PartFile(NamedTuple):
    """A file that one task writes, and whose sums it returns: the fingerprint needs them. Others are read once more."""

    path: str
    variables: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    summed: frozenset[Name] = frozenset()

    def unsummed(self) -> list[Name]:
        """Return what is in the file, and whose sums its task does not return."""
        names = [*((name, False) for name in self.variables), *((span.table, True) for span in self.spans)]
        return [name for name in names if name not in self.summed]


def file_bytes(executor: ClusterExecutor, total_bytes: int, most_bytes: int | None) -> int:
    """Return about how large a file is: the share of a thread, unless that is little, or more than is allowed."""
    wanted = max(total_bytes // max(executor.all_threads, 1), LEAST_FILE_BYTES)
    return max(wanted if most_bytes is None else min(wanted, most_bytes), 1)


def cut_tables(content: ExportContent, looked: LookedAt, size_bytes: int, *, stored: bool) -> dict[str, list[Span]]:
    """Return the spans of each table that is exported: one, unless it is larger than a file."""
    spans: dict[str, list[Span]] = {}
    for name, total in ((name, size) for (name, is_table), size in sizes_of(content).items() if is_table):
        pieces, count = looked.places[name], max(-(-total // size_bytes), 1)
        if count == 1:
            spans[name] = [Span(name, name, 0, len(pieces))]
        elif stored:
            rows = sum(piece.rows for piece in pieces)
            sized = ((number, total * piece.rows // max(rows, 1)) for number, piece in enumerate(pieces))
            spans[name] = [Span(name, name, some[0], some[-1] + 1) for some in together(sized, size_bytes)]
        else:
            cuts = ranges_of_sample(looked.samples[name], count).cuts.tolist()
            ends = zip([_LOWEST, *cuts], [*(cut - 1 for cut in cuts), _HIGHEST], strict=True)
            spans[name] = [Span(name, name, *looked.within(name, low, high), low, high) for low, high in ends]
        spans[name] = [span._replace(number=k, total=len(spans[name])) for k, span in enumerate(spans[name])]
    return spans


def with_sums(checkpoint: Checkpoint, files: Sequence[PartFile], sizes: Mapping[Name, int]) -> list[PartFile]:
    """Return files whose tasks sum large tables and variables where they write them, as far as they can be."""
    planned = []
    for file in files:
        names = {(name, False) for name in file.variables} | {(s.table, True) for s in file.spans if s.total == 1}
        chosen = {(span.table, True) for span in file.spans if span.total > 1}
        total = sum(_sums_bytes(checkpoint, name) for name in chosen)
        for name in sorted(names, key=lambda name: (-sizes[name], name)):
            more = _sums_bytes(checkpoint, name)
            if total and total + more > _SUMS_BYTES:
                continue
            chosen.add(name)
            total += more
        planned.append(file._replace(summed=frozenset(chosen)))
    return planned


def _sums_bytes(checkpoint: Checkpoint, name: Name) -> int:
    if name[1]:
        return 4 * sketch_size(max((entry.row_bytes for _, entry in checkpoint.entries(name[0])), default=0))
    width = checkpoint.find_variable(name[0])[1].size_bytes
    return width if width <= bulk.CHUNK_BYTES else 4 * sketch_size(width)  # one chunk is kept as it is


def sizes_of(content: ExportContent) -> dict[Name, int]:
    """Return the bytes of each variable and table that is exported, as they are written."""
    sizes = {tensor.name: tensor.size_bytes for tensor in content.tensors}
    tables = {(name, True): sizes.pop(note.ids) + sizes.pop(note.vectors) for name, note in content.notes.items()}
    return {(name, False): size for name, size in sizes.items()} | tables


class PartDone(NamedTuple):
    """What a task has done: its file, the sums that it returns, and digests of the sums of all else in the file."""

    written: WrittenFile
    sums: ContentSketch
    digests: tuple[bytes, ...]
    overflowed: int


@dataclass(frozen=True, slots=True, eq=False)
class PartWork:
    """Writing the files of an export; a task is one of them, and where it is written."""

    source: CheckpointValue
    selection: Selection
    metadata: dict[str, str]
    counts: ContentCounts
    """Those of the whole export."""
    looked: LookedAt
    write: WritePart

    def open(self) -> Sending[Checkpoint]:
        """Open the checkpoint in another process."""
        return Sending(self.source.open(), _SENT_BYTES)

    def do(self, opened: Sending[Checkpoint], task: tuple[PartFile, NewPart], advance: Advance) -> PartDone:
        """Write a file."""
        (file, part), checkpoint = task, opened.source
        ids = {span.table: self._ids(checkpoint, span) for span in file.spans}
        forms = ContentForms(checkpoint, self.selection, ids)
        reader = ContentReader(forms, self.metadata, tempfile.gettempdir(), reporter=Counted(advance))
        with part.place() as path:
            content = reader.content(file.variables, list(ids))
            new_file = partial(OutputFile, durable=not part.is_temporary)
            self.write(replace(content, counts=self.counts), path, new_file)
            written = part.deliver(path, opened.memory)
        digests = tuple(digest_of(reader.source, name) for name in file.unsummed())
        return PartDone(written, _only(reader.source, file.summed), digests, reader.casting.overflowed)

    def _ids(self, checkpoint: Checkpoint, span: Span) -> TableIds:
        """Return the ids of a span, counted, with a sample of them if they are sorted in parts."""
        pieces = [at.piece(checkpoint) for at in self.looked.places[span.table][span.first : span.last]]
        rows, width = sum(piece.rows for piece in pieces), 8 + max((p.entry.row_bytes for p in pieces), default=0)
        step = sample_step(rows // span.total, parts_needed(rows // span.total * width, PART_BYTES))
        if not span.is_range and not step:
            return TableIds(span.title, pieces, rows, np.empty(0, np.int64))
        count, samples = 0, [np.empty(0, np.int64)]
        for piece in pieces:
            ids = read_piece(checkpoint, piece).ids
            ids = ids[span.has(ids)]
            count += len(ids)
            samples.append(ids[::step].copy() if step else ids[:0])
        return TableIds(span.title, pieces, count, np.concatenate(samples), span.has if span.is_range else None)


def digest_of(sums: ContentSketch, name: Name) -> bytes:
    """Return a digest of the sums of a variable or a table; b"" for a table without rows."""
    whole = None if name[1] else sums.whole.get(name[0])
    if whole is not None:
        return xxhash.xxh3_128(whole).digest()
    found = (sums.tables if name[1] else sums.variables).get(name[0])
    return b"" if found is None else xxhash.xxh3_128(found.tobytes()).digest()


def _only(sums: ContentSketch, names: frozenset[Name]) -> ContentSketch:
    """Return the sums of some variables and tables."""
    kept = ContentSketch(tables={name: own for name, own in sums.tables.items() if (name, True) in names})
    kept.take_variables(sums, {name for name, is_table in names if not is_table})
    return kept


PIECE_BYTES: Final = 16 << 20
"""The most bytes of rows, with their ids, in one piece."""
_REQUESTS: Final = 32
"""Uploads that are begun at a time."""


@dataclass(slots=True)
class ClusterExport:
    """What the workers write, and its sums, against those of all that a checkpoint has."""

    cluster: ClusterExecutor
    reader: ContentReader
    content: ExportContent
    looked: LookedAt
    files: Sequence[PartFile]
    file_bytes: int
    """About how large each file is."""
    overflowed: int = 0
    _sums: ContentSketch = field(default_factory=ContentSketch)
    _digests: list[tuple[bytes, ...]] = field(default_factory=list)

    def write(self, write: WritePart, target: PartsTarget) -> None:
        """Let the workers write all files."""
        reader, content, paths = self.reader, self.content, [file.path for file in self.files]
        parts = list(run_parallel(target.part, paths, min(_REQUESTS, len(paths))))
        if parts[0].is_temporary:
            self.cluster.check_temporary(2 * self.file_bytes, len(paths))  # the file, and what it is sorted in
        source, metadata = CheckpointValue.of(reader.checkpoint), dict(content.metadata)
        work = PartWork(source, reader.selection, metadata, content.counts, self.looked, write)
        opened, tasks = Sending(reader.checkpoint, 0), zip(self.files, parts, strict=True)
        with closing(self.cluster.run(work, opened, tasks, reader.reporter.advance)) as results:
            for path, done in zip(paths, results, strict=True):
                target.take(path, done.written)
                self._sums.add(done.sums)
                self._digests.append(done.digests)
                self.overflowed += done.overflowed

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the checkpoint: read what no task summed, and compare it with what was written."""
        summed = set().union(*(file.summed for file in self.files))
        checkpoint = self.reader.checkpoint
        job = Job(self.cluster, 1, reporter=self.reader.reporter)
        task_bytes = self.cluster.task_bytes(checkpoint.version.size_bytes)
        self._sums.add(read_rest(checkpoint, self.looked.places, summed, job, task_bytes))
        self._compare()
        return fingerprint_of(checkpoint, self._sums)

    def _compare(self) -> None:
        """Raise EdlCkptError unless what was read twice was the same both times."""
        checkpoint = self.reader.checkpoint
        for file, digests in zip(self.files, self._digests, strict=True):
            if digests != tuple(digest_of(self._sums, name) for name in file.unsummed()):
                checkpoint.check_unchanged()
                raise EdlCkptError(
                    "values were read differently the second time; nothing was published",
                    path=checkpoint.version.path,
                    hint="check the memory and the network of the workers, and try again",
                )


class PartsFormat(ContentFormat):
    """A format of which each task of a cluster writes a whole file, in a directory."""

    index: ClassVar[str]
    """The name of the file that a directory has besides those of the tasks."""
    write_part: WritePart

    def part_bytes(self, content: ExportContent) -> int | None:
        """Return the size of the file that `write_part` writes, None where only the values tell it."""
        del self, content
        return None

    @abstractmethod
    def part_files(
        self, content: ExportContent, spans: Mapping[str, Sequence[Span]], path: str, beside: str, size_bytes: int
    ) -> list[PartFile]:
        """Return all files, of about a size, in a directory and in that beside."""

    @abstractmethod
    def end_parts(
        self, content: ExportContent, files: Sequence[PartFile], path: str, metadata: Mapping[str, str]
    ) -> None:
        """Write the index of a directory."""

    def plan_files(
        self, checkpoint: Checkpoint, path: str, beside: str
    ) -> tuple[Mapping[str, int | None], ExportContent, int]:
        """Return the files; None for the size of one with a part of a table, whose rows are not counted."""
        cluster = self.request.cluster
        if cluster is None:
            return super().plan_files(checkpoint, path, beside)
        read = cluster.bytes_read()
        plan = self._planned_parts(checkpoint, cluster, path, beside)
        sizes: dict[str, int | None] = {}
        for file in plan.files:
            tables, is_cut = [span.table for span in file.spans], any(span.total > 1 for span in file.spans)
            sizes[file.path] = None if is_cut else self.part_bytes(plan.reader.content(file.variables, tables))
        sizes[os.path.join(path, self.index)] = None
        return sizes, plan.content, cluster.bytes_read() - read

    def write_all(self, checkpoint: Checkpoint, target: ExportTarget, trust: Trust) -> WrittenContent:
        """Write the output, on a cluster if there is one: a look at the ids, a task for each file, and their proof."""
        cluster = self.request.cluster
        if cluster is None:
            return super().write_all(checkpoint, target, trust)
        assert isinstance(target, PartsTarget)  # noqa: S101 - streams are refused
        meeting = target.meet()
        cluster.share(meeting)
        plan = self._planned_parts(checkpoint, cluster, target.path, target.beside)
        total = sum(tensor.size_bytes for tensor in plan.content.tensors)
        cluster.share(meeting, total)
        self.request.reporter.start("exporting", 2 * total)
        plan.write(self.write_part, target)
        fingerprint = plan.fingerprint()
        trust.confirm(fingerprint.text)
        metadata = {**plan.content.metadata, "fingerprint": fingerprint.text}
        self.end_parts(plan.content, plan.files, target.path, metadata)
        return WrittenContent(plan.content, fingerprint, plan.overflowed)

    def _planned_parts(self, checkpoint: Checkpoint, cluster: ClusterExecutor, path: str, beside: str) -> ClusterExport:
        """Return the plan of an export to a directory, and perhaps to another one beside; no value is read."""
        request = self.request
        metadata = {name: text for name, text in self.metadata(checkpoint).items() if name != "fingerprint"}
        metadata["export"] = uuid.uuid4().hex
        version_bytes = request.version.size_bytes
        ranges = -(-version_bytes // file_bytes(cluster, version_bytes, request.max_shard_bytes))
        rows = {name: rows_claimed(checkpoint, name) for name in checkpoint.table_names}
        steps = {name: sample_step(count, ranges) or max(count, 1) for name, count in rows.items()}
        looked = look(checkpoint, cluster, steps, min(cluster.task_bytes(version_bytes), PIECE_BYTES))
        ids = looked.ids(checkpoint)
        forms = ContentForms(checkpoint, request.selection, ids)
        reader = ContentReader(forms, metadata, "", reporter=request.reporter)
        content = reader.content()
        total = sum(tensor.size_bytes for tensor in content.tensors)
        size = file_bytes(cluster, total, request.max_shard_bytes)
        spans = cut_tables(content, looked, size, stored=request.selection.order == STORED)
        files = with_sums(checkpoint, self.part_files(content, spans, path, beside, size), sizes_of(content))
        return ClusterExport(cluster, reader, content, looked, files, min(size, total))
