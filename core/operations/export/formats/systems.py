"""The files of another checkpoint system as an export: a directory with one checkpoint, which that system loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.converting.changes import Changes, NameMap, with_tables
from edl_ckpt.core.converting.conversion import Conversion, Writing, plan_conversion
from edl_ckpt.core.converting.proof import confirm_source, prove
from edl_ckpt.core.operations.export.content.selection import Selection
from edl_ckpt.core.operations.export.interface import (
    ContentCounts,
    ExportFormat,
    ExportPlan,
    ExportRequest,
    ExportResult,
    FormatTraits,
    PlannedFile,
)
from edl_ckpt.core.operations.export.output.target import check_output, open_target
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.storage.files import Flusher, check_space


class SystemFormat(ExportFormat):
    """A checkpoint of another system, for `ranks` ranks."""

    def __init__(self, request: ExportRequest) -> None:
        chosen = request.selection
        if chosen != Selection(chosen.tables, chosen.variables, chosen.dtype):
            raise UsageError(f"--dense-rows, --remap, --order and --fill are not for {self.traits.name}")
        if request.goal.local_path is None:
            hint = f"write to a directory, and then: {command('copy', 'DIRECTORY', request.goal.url)}"
            raise UnsupportedError("files of other systems are written to a disk", path=request.goal.url, hint=hint)
        super().__init__(request)

    @contextmanager
    def _planned(self) -> Iterator[tuple[Conversion, Trust]]:
        request, chosen, names = self.request, self.request.selection, self.request.names or NameMap()
        cast = (("*", chosen.dtype),) if chosen.dtype else ()
        rename = (*names.rename.items(), *request.rename)
        changes = Changes(chosen.tables, chosen.variables, rename, cast=cast)
        with self.opened() as (opened, trust):
            source = with_tables(opened, names) if names.tables else opened
            ranks = request.ranks or request.version.ps_num or 1
            number = request.version.number or 0
            yield plan_conversion(source, self.traits.name, ranks, changes, self._job, number=number), trust

    @property
    def _job(self) -> Job:
        return Job.here(reporter=self.request.reporter)

    def _counts(self, plan: Conversion) -> ContentCounts:
        return ContentCounts(len(plan.out.variables), len(plan.out.tables), plan.rows)

    def plan(self) -> ExportPlan:
        """Return the files with their sizes, from headers and ids."""
        request = self.request
        check_output(request.goal, self.traits, is_directory=True, force=request.force)
        with self._planned() as (plan, _):
            self._warn(plan)
            sizes = plan.destination.files.items()
            files = tuple(PlannedFile(os.path.join(request.goal.url, name), size) for name, size in sizes)
            sums = plan.size_bytes, plan.source.bytes_read
            return ExportPlan(*self._named, files, *self._counts(plan), *sums, bool(self.lost), self.lost)

    def export(self) -> ExportResult:
        """Write all files, read them back by their own format, and make the directory visible."""
        request = self.request
        with (
            self._planned() as (plan, trust),
            open_target(request.goal, self.traits, is_directory=True, force=request.force) as target,
        ):
            self._warn(plan)
            if request.names and request.names.tables:  # other tables have another fingerprint than the seal says
                trust.seal = None
            check_space(target.path, plan.size_bytes)
            paths = {os.path.join(target.path, name): size for name, size in plan.destination.files.items()}
            for path in paths:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            outputs = [target.new_file(path, size) for path, size in paths.items()]
            with ExitStack() as opened:
                sinks = [opened.enter_context(output) for output in outputs]
                flusher = opened.enter_context(Flusher(sinks))
                writing = Writing(plan, sinks, self._job, os.path.dirname(target.path) or ".")
                writing.write()
                flusher.all_written()
                plan.source.check_unchanged()
                proved = prove(writing, alone_at(target.path))
                source = confirm_source(writing, trust)
            return ExportResult(
                *self._named,
                target.publish(),
                *self._counts(plan),
                source or proved.fingerprint.text,
                0.0,
                writing.rows.overflowed,
                bool(source) and not self.lost,
                trust.forced,
                (),
                bool(self.lost),
                self.lost,
            )

    def _warn(self, plan: Conversion) -> None:
        for one in plan.out.left_out:
            self.request.reporter.warn(f"{one.name} is left out: {one.reason}")


def _format_of(system: str) -> type[SystemFormat]:
    """Return the format of a system."""

    class Of(SystemFormat):
        traits: ClassVar = FormatTraits(system, is_directory=True)

    return Of


Dcp, Tfra, Dynamicemb, Bundle = map(_format_of, ("dcp", "tfra", "dynamicemb", "tensorflow"))
