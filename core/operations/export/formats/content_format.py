"""The common part of formats of tensors and rows: read the content, write it staged, prove it, make it visible."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import abridged
from edl_ckpt.core.operations.export.cluster.plan import PartFile, Span
from edl_ckpt.core.operations.export.cluster.work import WritePart
from edl_ckpt.core.operations.export.content.ids import look_here
from edl_ckpt.core.operations.export.content.metadata import metadata_of
from edl_ckpt.core.operations.export.content.reader import ContentReader, estimated_bytes
from edl_ckpt.core.operations.export.interface import (
    ContentCounts,
    ExportContent,
    ExportOutcome,
    ExportRequest,
    FormatTraits,
)
from edl_ckpt.core.operations.export.output.target import ExportTarget, open_target
from edl_ckpt.core.proof.trust import Trust, check_trust
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.storage.files import check_space
from edl_ckpt.core.storage.location import Location


class ContentFormat(ABC):
    """A format that writes an `ExportContent`; a subclass declares its traits and how the content is written."""

    traits: ClassVar[FormatTraits]

    def __init__(self, request: ExportRequest) -> None:
        self.request = request

    def is_directory(self, checkpoint: Checkpoint) -> bool:
        """Return True when this export of a checkpoint makes a directory."""
        del checkpoint
        return self.traits.is_directory

    def beside(self, checkpoint: Checkpoint) -> Location | None:
        """Return the directory that this export makes beside its output; None when it makes none."""
        del self, checkpoint
        return None

    @abstractmethod
    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write everything to a new file, or into a new, empty directory; errors are those of storage."""

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return the files of an output at a path, and in the directory `beside`; None for a size that is not known."""
        del self, content, beside
        return {path: None}

    def export(self) -> ExportOutcome:
        """Write the selected content to a path or URL; nothing becomes visible unless all of it is written."""
        request = self.request
        trust = check_trust(request.version, force=not request.use_seal, reporter=request.reporter)
        with open_checkpoint(request.version) as checkpoint:
            self.check_dtypes(checkpoint)
            is_directory, beside = self.is_directory(checkpoint), self.beside(checkpoint)
            with open_target(
                request.goal, self.traits, is_directory=is_directory, force=request.force, beside=beside
            ) as target:
                return self._export(checkpoint, target, trust)

    def lacked_dtypes(self, *, in_table: bool) -> frozenset[str]:
        """Return the names of the dtypes that tables, or dense variables, cannot have in this format."""
        return self.traits.lacked_dtypes if in_table else frozenset()

    def check_dtypes(self, checkpoint: Checkpoint) -> None:
        """Raise UnsupportedError for selected content of a dtype that the format lacks; headers tell."""
        selection = self.request.selection
        entries = {v.name: v.dtype for shard in checkpoint.shards for v in shard.variables}
        dense = {name: entries[name] for name in selection.choose_variables(checkpoint.variable_names)}
        tables = {n: checkpoint.written_dtype(n) for n in selection.choose_tables(checkpoint.table_names)}
        for found, in_table in ((dense, False), (tables, True)):
            lacked = self.lacked_dtypes(in_table=in_table)
            written = {name: selection.target_dtype(dtype).name for name, dtype in found.items()}
            wrong = sorted(name for name, dtype in written.items() if dtype in lacked)
            if wrong:
                raise UnsupportedError(
                    f"{abridged(map(repr, wrong), 4)}: the format {self.traits.name} has no {written[wrong[0]]}",
                    hint="nothing was written; choose other names, another format, or for floats --dtype float32",
                )

    def _export(self, checkpoint: Checkpoint, target: ExportTarget, trust: Trust) -> ExportOutcome:
        request, folder = self.request, os.path.dirname(target.path) or "."
        with self.reader(checkpoint, folder, trust.confirm) as reader:
            content = reader.content()
            spools = self.traits.spools or request.selection.dense_rows is not None
            check_space(folder, estimated_bytes(content, spools=spools))
            request.reporter.start("exporting", 2 * sum(t.size_bytes for t in content.tensors))  # read, and written
            self.write(content, target)
            fingerprint = content.finish()["fingerprint"]
            checkpoint.check_unchanged()
        proved = request.selection.is_lossless and request.limit is None and self.traits.is_lossless
        files = target.publish()
        return ExportOutcome(files, self.counts(content), fingerprint, proved, reader.overflowed, trust.forced)

    def reader(
        self, checkpoint: Checkpoint, folder: str, confirm: Callable[[str], None] | None = None
    ) -> ContentReader:
        """Return what reads the content, with temporary files in a folder."""
        request, ids = self.request, look_here(checkpoint, self.request.part_bytes).ids(checkpoint)
        return ContentReader(
            checkpoint,
            request.selection,
            metadata_of(request.version),
            folder,
            ids,
            confirm,
            request.part_bytes,
            request.reporter,
        )

    def counts(self, content: ExportContent) -> ContentCounts:
        """Return the counts of the output: fewer rows than the content when rows are limited."""
        counts, limit = content.counts, self.request.limit
        rows = counts.rows if limit is None else min(counts.rows, limit)
        return ContentCounts(counts.variables, counts.tables, rows)


class PartsFormat(ContentFormat):
    """A format of which each task of a cluster writes a whole file, in a directory."""

    index: ClassVar[str]
    """The name of the file that a directory has besides those of the tasks."""
    write_part: WritePart

    @abstractmethod
    def part_bytes(self, content: ExportContent) -> int | None:
        """Return the size of the file that `write_part` writes, None where only the values tell it."""

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
