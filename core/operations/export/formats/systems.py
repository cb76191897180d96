"""The exports as files of another system: a directory with one checkpoint, which that system loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import ClassVar

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.converting.changes import Changes, left_out_lines
from edl_ckpt.core.converting.items import items_out
from edl_ckpt.core.converting.name_map import NameMap, with_tables
from edl_ckpt.core.moving.conversion import Conversion, plan_conversion
from edl_ckpt.core.moving.run import Move, SharedOutput
from edl_ckpt.core.moving.settings import settings_of_files
from edl_ckpt.core.moving.staged_files import StagedFiles
from edl_ckpt.core.moving.version_input import VersionInput
from edl_ckpt.core.operations.export.cluster.shared_files import SharedFiles
from edl_ckpt.core.operations.export.interface import (
    ContentCounts,
    ExportFormat,
    ExportPlan,
    ExportRequest,
    ExportResult,
    FormatTraits,
    PlannedFile,
    Selection,
)
from edl_ckpt.core.operations.export.output.target import (
    ExportTarget,
    LocalTarget,
    OpenedFiles,
    UploadTarget,
    check_output,
    open_target,
)
from edl_ckpt.core.proof.proving import prove
from edl_ckpt.core.proof.trust import Trust


class SystemFormat(ExportFormat):
    """A checkpoint of another system, for `ranks` ranks."""

    def __init__(self, request: ExportRequest) -> None:
        chosen = request.selection
        if chosen != Selection(chosen.tables, chosen.variables, chosen.dtype):
            raise UsageError(f"`dense_rows`, `remap`, `order`, `fill` and `quantize` are not for {self.traits.name}")
        super().__init__(request)

    @contextmanager
    def _planned(self) -> Iterator[tuple[Conversion, Trust, VersionInput]]:
        request = self.request
        chosen = self.request.selection
        names = self.request.names or NameMap()
        cast = (("*", chosen.dtype),) if chosen.dtype else ()
        rename = (*names.rename.items(), *request.rename)
        changes = Changes(chosen.tables, chosen.variables, rename, cast=cast)
        with self.opened() as (opened, trust):
            sums = opened.watch()
            source = with_tables(opened, names) if names.tables else opened
            ranks = request.ranks or request.version.ps_num or 1
            number = request.version.number or 0
            plan = plan_conversion(source, self.traits.name, ranks, changes, self._job, number=number)
            yield plan, trust, plan.input(trust, sums)

    @property
    def _job(self) -> Job:
        request = self.request
        if request.cluster is None:
            return Job.here(reporter=request.reporter)
        return Job(request.cluster, 1, reporter=request.reporter)

    def _shared(
        self, target: ExportTarget, plan: Conversion, files: OpenedFiles
    ) -> AbstractContextManager[SharedOutput | None]:
        """Return what lets the workers of a cluster write the files, too; None where there is none."""
        cluster = self.request.cluster
        if cluster is None:
            return nullcontext()
        if isinstance(target, UploadTarget):
            cluster.share(target.meet())
            return nullcontext(target.shared())
        assert isinstance(target, LocalTarget)  # noqa: S101 - streams are refused
        names = list(plan.destination.files)
        return SharedFiles(target.path, target.meet().path, names, files.sinks, files.others_write)

    def _counts(self, plan: Conversion) -> ContentCounts:
        variables = sum(not variable.is_item for variable in plan.out.variables)
        return ContentCounts(variables, len(plan.out.tables), plan.rows)

    def plan(self) -> ExportPlan:
        """Return the files with their sizes, from headers and ids."""
        request = self.request
        check_output(request.goal, self.traits, is_directory=True, force=request.force)
        with self._planned() as (plan, _, _):
            self._warn(plan)
            sizes = plan.destination.files.items()
            files = tuple(PlannedFile(os.path.join(request.goal.url, name), size) for name, size in sizes)
            sums = plan.size_bytes, plan.source.bytes_read
            return ExportPlan(
                *self._named, files, *self._counts(plan), *sums, bool(self.lost), self.lost, self.left_out
            )

    def export(self) -> ExportResult:
        """Write all files, read them back by their own format, and make the directory visible."""
        request = self.request
        with (
            self._planned() as (plan, trust, opened_input),
            open_target(request.goal, self.traits, is_directory=True, force=request.force) as target,
        ):
            self._warn(plan)
            proof = opened_input.proof
            content = proof.confirm_first(self._job, is_wanted=request.digests)
            with target.opened(plan.destination.files) as files:
                job = self._job
                settings = settings_of_files(plan, files.properties, workers=job.workers)
                proof.restart()
                expect(request.reporter, 2 * plan.size_bytes)  # all is read back
                request.reporter.start("writing", plan.size_bytes)
                move = Move(plan, settings, opened_input, job, directory=files.room.url)
                framing = plan.framing(files.sinks, job)
                with self._shared(target, plan, files) as shared:
                    moved = move.run(framing, shared)
                files.all_written()
                plan.source.check_unchanged()
                source = plan.confirm_source(proof, moved.sketch, job)
                version = alone_at(files.place)
                proved = prove(StagedFiles(plan, moved, version), job, version.key)
            self.compared = proof.compared
            facts = source or proved.fingerprint, moved.overflowed
            done = self.result(target.publish(), self._counts(plan), trust, *facts, proved=source is not None)
            content = content if proof.is_other_content else source
            return replace(done, items=items_out(plan.out, is_written=True), content=content)

    def _warn(self, plan: Conversion) -> None:
        self.left_out = plan.out.left_out
        for line in left_out_lines(plan.out.left_out):
            self.request.reporter.warn(line)


class Tfra(SystemFormat):
    """Files as TFRA's FileSystemSaver writes them."""

    traits: ClassVar = FormatTraits("tfra", is_directory=True)


class Dynamicemb(SystemFormat):
    """Files as dynamicemb dumps them."""

    traits: ClassVar = FormatTraits("dynamicemb", is_directory=True)


class TorchCheckpointing(SystemFormat):
    """A checkpoint of torch_checkpointing, which any number of ranks loads."""

    traits: ClassVar = FormatTraits("torch-checkpointing", is_directory=True)


class Bundle(SystemFormat):
    """A bundle with the names that its source has, for so many parts."""

    traits: ClassVar = FormatTraits("tensorflow", is_directory=True)
