"""The common part of formats of tensors and rows: read the content, write it staged, prove it, make it visible."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from edl_ckpt.core.checkpoint.fingerprint import PREFIX
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.checkpoint.trust import Trust, check_trust
from edl_ckpt.core.errors import UnsupportedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.operations.export.content import ContentReader, estimated_bytes
from edl_ckpt.core.operations.export.interface import (
    ContentCounts,
    ExportContent,
    ExportOutcome,
    ExportRequest,
    FormatTraits,
)
from edl_ckpt.core.operations.export.send import SendReader
from edl_ckpt.core.operations.export.spread import SpreadReader
from edl_ckpt.core.operations.export.target import ExportTarget, open_target
from edl_ckpt.core.state.metadata import json_number
from edl_ckpt.core.storage.files import check_space
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.meeting import SharedPrefix
from edl_ckpt.core.words import abridged


class ContentFormat(ABC):
    """A format that writes an `ExportContent`; a subclass declares its traits and how the content is written."""

    traits: ClassVar[FormatTraits]

    def __init__(self, request: ExportRequest) -> None:
        self.request = request

    def is_directory(self, checkpoint: Checkpoint) -> bool:
        """Return True when this export of a checkpoint makes a directory."""
        del checkpoint
        return self.traits.is_directory

    def beside(self, checkpoint: Checkpoint, goal: Location) -> Location | None:
        """Return the directory that this export makes beside its output; None when it makes none."""
        del self, checkpoint, goal
        return None

    @abstractmethod
    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write everything to a new file, or into a new, empty directory; errors are those of storage."""

    def export(self, goal: Location, *, force: bool) -> ExportOutcome:
        """Write the selected content to a path or URL; nothing becomes visible unless all of it is written."""
        trust = check_trust(self.request.version, force=not self.request.use_seal, reporter=self.request.reporter)
        with open_checkpoint(self.request.version) as checkpoint:
            self.check_dtypes(checkpoint)
            is_directory, beside = self.is_directory(checkpoint), self.beside(checkpoint, goal)
            with open_target(goal, self.traits, is_directory=is_directory, force=force, beside=beside) as target:
                return self._export(checkpoint, target, trust)

    def paths(self, content: ExportContent, target: ExportTarget) -> list[str]:
        """Return the paths of all files that are written."""
        del self, content
        return [target.path]

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
        metadata = metadata_of(request.version)
        with self._reader(checkpoint, metadata, folder, trust, target) as reader:
            content = reader.content()
            spools = self.traits.spools or request.selection.dense_rows is not None
            if not isinstance(reader, SendReader):
                check_space(folder, estimated_bytes(content, spools=spools))
            self.write(content, target)
            if isinstance(reader, SendReader):
                reader.settle()
            fingerprint = content.finish()["fingerprint"]
            checkpoint.check_unchanged()
        proved = request.selection.is_lossless and request.limit is None and self.traits.is_lossless
        files = target.publish()
        return ExportOutcome(files, self.counts(content), fingerprint, proved, reader.overflowed, trust.forced)

    def _reader(
        self, checkpoint: Checkpoint, metadata: Mapping[str, str], folder: str, trust: Trust, target: ExportTarget
    ) -> ContentReader:
        request, executor = self.request, self.request.executor
        common = (checkpoint, request.selection, metadata, folder, trust.confirm, request.part_bytes, request.reporter)
        if executor is None or not executor.elsewhere:
            return ContentReader(*common)
        shared = target.share()
        if isinstance(shared, SharedPrefix):
            return SendReader(*common, executor=executor, prefix=shared)
        return SpreadReader(*common, executor=executor, shared=shared.path)

    def counts(self, content: ExportContent) -> ContentCounts:
        """Return the counts of the output: fewer rows than the content when rows are limited."""
        counts, limit = content.counts, self.request.limit
        rows = counts.rows if limit is None else min(counts.rows, limit)
        return ContentCounts(counts.variables, counts.tables, rows)


def metadata_of(version: Version) -> dict[str, str]:
    """Return the texts about a version; a fingerprint of zeros stands for the one that is not known yet."""
    if version.unread is not None and version.metadata_fault:
        why = f"its metrics cannot be read now: {version.unread.message}"
        raise version.unread.kind(why, path=version.ref)
    metrics = {name: json_number(value) for name, value in version.metrics.items()}
    return {
        "schema": "edl-ckpt/export/1",
        "version": "" if version.number is None else str(version.number),
        "fingerprint": PREFIX + "0" * 64,
        "metrics": json.dumps(metrics),
    }
