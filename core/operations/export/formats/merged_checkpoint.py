"""The export as one merged shard of ElasticDL: a file of its own, or in a checkpoint_dir that ElasticDL finds."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import ClassVar

from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.operations.export.interface import (
    STORED,
    ContentCounts,
    ExportedFile,
    ExportFormat,
    ExportPlan,
    ExportRequest,
    ExportResult,
    FormatTraits,
    PlannedFile,
)
from edl_ckpt.core.operations.export.output.target import (
    check_output,
    open_target,
)
from edl_ckpt.core.operations.reshard.execute import ReshardPlan, execute_reshard, prepare_reshard
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.sources.elasticdl.target import ELASTICDL, EMPTY_MODEL
from edl_ckpt.core.storage.directories import remove_tree
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.streams import is_stream
from edl_ckpt.core.storage.user_files import check_target


class MergedCheckpoint(ExportFormat):
    """A reshard to one server: to a stream, a file with the ending of a shard, else to a checkpoint_dir."""

    traits: ClassVar = FormatTraits("checkpoint", endings=(".ckpt", ".chkpt"))

    def __init__(self, request: ExportRequest) -> None:
        if not request.selection.is_lossless:
            raise UsageError("a checkpoint is exported whole: no `tables`, `variables`, `dtype` or `dense_rows`")
        if request.selection.order == STORED:
            raise UsageError("a checkpoint is merged from all shards: no `order` stored")
        if request.partial:
            hint = "export --partial to safetensors, and import that: the result is then a version that says what it is"
            raise UsageError("a checkpoint is exported whole: no --partial", hint=hint)
        if request.rename:
            hint = "try: edl-ckpt edit --rename OLD=NEW --output LOCATION, and export that version"
            raise UsageError("a checkpoint is exported with its own names", hint=hint)
        super().__init__(request)

    def export(self) -> ExportResult:
        """Write the shard; a checkpoint_dir must not have the version yet, whether with `force` or without."""
        location = self._location()
        if location is not None:
            return self._merge(location)
        with open_target(self.request.goal, self.traits, is_directory=False, force=self.request.force) as target:
            beside = f"{target.path}.d"
            try:
                outcome = self._merge(Location(beside))
                os.rename(outcome.files[0].path, target.path)
                _spell_out(target.path)
            except EdlCkptError as error:
                error.hint = None if COMMIT.is_past else error.hint
                raise
            finally:
                remove_tree(beside)
                COMMIT.more()  # that was no result yet
            return replace(outcome, files=target.publish())

    def _location(self) -> Location | None:
        """Return the checkpoint_dir that an output is, None for a file or a stream."""
        goal = self.request.goal
        path = goal.local_path
        is_file = path is not None and is_stream(path)
        if is_file or os.path.splitext(goal.url.rstrip("/"))[1].lower() in self.traits.endings:
            return None
        if path is not None:
            check_target(path)
        return goal.with_url(goal.url.rstrip("/") if path is None else os.path.normpath(path))

    def plan(self) -> ExportPlan:
        """Return the files that would be written."""
        location, goal = self._location(), self.request.goal
        if location is None:
            check_output(goal, self.traits, is_directory=False, force=self.request.force)
        plan, _ = self._prepare(location or goal.with_url(f"{goal.url}.d"))
        files = tuple(PlannedFile(shard.path if location else goal.url, shard.size_bytes) for shard in plan.shards)
        value_bytes = sum(shard.size_bytes for shard in plan.shards)
        return ExportPlan(*self._named, files, *_counts(plan), value_bytes, plan.survey.bytes_read)

    def _prepare(self, location: Location) -> tuple[ReshardPlan, ReshardSettings]:
        request = self.request
        force, reporter = not request.use_seal, request.reporter
        return prepare_reshard(request.version, 1, output=location, empty=ELASTICDL, force=force, reporter=reporter)

    def _merge(self, location: Location) -> ExportResult:
        """Write the version for one server to a checkpoint_dir; the reshard proves it."""
        reporter, (plan, settings) = self.request.reporter, self._prepare(location)
        for warning in (*plan.warnings, *settings.warnings):
            reporter.warn(warning)
        result = execute_reshard(plan, settings, force=not self.request.use_seal, reporter=reporter)
        files = tuple(ExportedFile(shard.path, shard.size_bytes) for shard in result.shards)
        known = *self._named, files, *_counts(plan), result.fingerprint
        content = None if result.left_out else result.content
        if content is None and self.request.digests:  # the items that stay behind are in it
            with open_checkpoint(self.request.version) as checkpoint:
                content = fingerprint_checkpoint(checkpoint, reporter=reporter)
        return ExportResult(
            *known,
            seconds=0.0,
            overflowed=0,
            proved=True,
            forced=result.forced,
            checksums=result.checksums,
            left_out=result.left_out,
            items=result.items,
            content=content,
            bytes_read=result.bytes_read,
        )


def _counts(plan: ReshardPlan) -> ContentCounts:
    variables = sum(shard.variables for shard in plan.shards)
    return ContentCounts(variables, len(plan.survey.tables), plan.rows)


def _spell_out(path: str) -> None:
    """Write the version of a model of no bytes, which is version 0 without anything.

    A file by itself without any bytes would look like damage.
    """
    with storage_errors(path):
        if not os.path.getsize(path):
            with open(path, "wb") as file:
                file.write(EMPTY_MODEL)
