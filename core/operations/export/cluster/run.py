"""An export on a cluster: a look at the ids, a plan of files, a task for each, and the proof of all of them."""

from __future__ import annotations

import os
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit.sent_parts import Sending
from edl_ckpt.core.operations.export.cluster.files import PartFile, Span, cut_tables, file_bytes, sizes_of, with_sums
from edl_ckpt.core.operations.export.cluster.task import PartWork, WritePart, digest_of
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.content.reader import ContentReader
from edl_ckpt.core.operations.export.content.tables import LookedAt, look, read_rest, rows_claimed
from edl_ckpt.core.operations.export.formats.content_format import ContentFormat
from edl_ckpt.core.operations.export.interface import STORED, ExportContent, WrittenContent
from edl_ckpt.core.operations.export.output.target import ExportTarget, PartsTarget
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import sample_step

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
        reader = self.reader
        content = self.content
        paths = [file.path for file in self.files]
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
