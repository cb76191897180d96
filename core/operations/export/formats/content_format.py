"""The common part of formats of tensors and rows: read the content, write it staged, prove it, make it visible."""

from __future__ import annotations

import json
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.words import abridged, left_out_items
from edl_ckpt.core.converting.changes import NO_PLACE, LeftOut, left_out_lines, left_out_of, renamed_by
from edl_ckpt.core.converting.lacking import check_held
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.content.reader import ContentReader
from edl_ckpt.core.operations.export.content.tables import look_here
from edl_ckpt.core.operations.export.interface import (
    COMPACT,
    ContentCounts,
    ExportContent,
    ExportFormat,
    ExportPlan,
    ExportResult,
    PlannedFile,
    TableErrors,
    Tensor,
    WrittenContent,
)
from edl_ckpt.core.operations.export.output.places import Place, finish_outputs
from edl_ckpt.core.operations.export.output.reopen import StoredAt, check_reopened
from edl_ckpt.core.operations.export.output.target import ExportTarget, NewFile, check_output, open_target
from edl_ckpt.core.proof.fingerprint import blank_text, has_others
from edl_ckpt.core.proof.stored_sums import confirm_sums
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.file_texts import file_texts
from edl_ckpt.core.reading.names import names_like
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.steps.file_layout import FileLayout
from edl_ckpt.core.state.document import json_number
from edl_ckpt.core.storage.files import check_space
from edl_ckpt.core.storage.location import Location


class ContentFormat(ExportFormat):
    """A format that writes an `ExportContent`; a subclass declares its traits and how the content is written."""

    def directories(self, checkpoint: Checkpoint) -> tuple[bool, Location | None]:
        """Return whether this export of a checkpoint makes a directory, and the one that it makes beside its output."""
        del checkpoint
        return self.traits.is_directory or self.request.cluster is not None, None

    @abstractmethod
    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write everything to a new file, or into a new, empty directory; errors are those of storage."""

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return the files of an output at a path, and in the directory `beside`; None for a size that is not known."""
        del self, content, beside
        return {path: None}

    def plan(self) -> ExportPlan:
        """Return the files, where headers and ids tell; no value is read."""
        request = self.request
        with self.opened() as (checkpoint, _):
            self.check_dtypes(checkpoint)
            is_directory, beside = self.directories(checkpoint)
            check_output(request.goal, self.traits, is_directory=is_directory, force=request.force)
            aside = "" if beside is None else _shown(beside)
            sizes, content, read = self.plan_files(checkpoint, _shown(request.goal), aside)
            value_bytes = sum(tensor.size_bytes for tensor in content.tensors)
            files = tuple(PlannedFile(*file) for file in sizes.items())
            read += checkpoint.bytes_read
            return ExportPlan(
                *self._named, files, *self.counts(content), value_bytes, read, bool(self.lost), self.lost, self.left_out
            )

    def plan_files(
        self, checkpoint: Checkpoint, path: str, beside: str
    ) -> tuple[Mapping[str, int | None], ExportContent, int]:
        """Return the files with their sizes, what they contain, and how many bytes other processes read for that."""
        content = self.reader(checkpoint, "").content()
        return self.planned(content, path, beside), content, 0

    def export(self) -> ExportResult:
        """Write the selected content to a path or URL; nothing becomes visible unless all of it is written."""
        request = self.request
        with self.opened() as (checkpoint, trust):
            self.check_dtypes(checkpoint)
            sums = checkpoint.watch()
            is_directory, beside = self.directories(checkpoint)
            with open_target(
                request.goal, self.traits, is_directory=is_directory, force=request.force, beside=beside
            ) as target:
                done = self.write_all(checkpoint, target, trust)
                job = Job(request.cluster, 1) if request.cluster else Job.here()
                self.compared = confirm_sums(sums, trust, job)
                checkpoint.check_unchanged()
                kept = request.limit is None and not request.rename and self.traits.is_lossless
                proved = kept and request.selection.is_lossless
                return self.result(target.publish(), self.counts(done.content), trust, *done[1:], proved=proved)

    def write_all(self, checkpoint: Checkpoint, target: ExportTarget, trust: Trust) -> WrittenContent:
        """Write the output."""
        request, folder = self.request, os.path.dirname(target.path) or "."
        reader = self.reader(checkpoint, folder, trust.confirm)
        content = reader.content()
        sizes = [tensor.size_bytes for tensor in content.tensors]
        spools = self.traits.spools or request.selection.dense_rows is not None
        spooled = max(sizes, default=0) if spools else 0
        hint = "" if request.selection.dense_rows is None else f"; {COMPACT}"
        check_space(folder, sum(sizes) + spooled + math.ceil(0.001 * sum(sizes)), hint=hint)
        request.reporter.start("exporting", 2 * sum(sizes))  # read, and written
        self.write(content, target)
        errors = tuple(TableErrors(name, one.greatest, one.mean) for name, one in sorted(reader.casting.errors.items()))
        content.finish()
        assert reader.fingerprint is not None  # noqa: S101 - `finish` has read it
        return WrittenContent(content, reader.fingerprint, reader.casting.overflowed, errors)

    def check_dtypes(self, checkpoint: Checkpoint) -> None:
        """Raise UnsupportedError for selected tables of a dtype that the format lacks; headers tell."""
        selection, traits = self.request.selection, self.traits
        if selection.quantize and traits.spools:
            raise UnsupportedError(f"{traits.name} has no arrays of bytes for quantized rows")
        tables = selection.choose_tables(checkpoint.table_names, checkpoint.slots)
        written = {name: selection.target_dtype(checkpoint.written_dtype(name)).name for name in tables}
        wrong = sorted(name for name, dtype in written.items() if dtype in traits.lacked_dtypes)
        if wrong:
            raise UnsupportedError(
                f"{abridged(map(repr, wrong), 4)}: the format {traits.name} has no {written[wrong[0]]}",
                hint="nothing was written; choose other names, another format, or for floats --dtype float32",
            )
        if traits.takes_limit and len(tables) == 1 and not selection.tables:
            self._note_all_but_the_table(checkpoint)
        elif not traits.takes_limit:
            self._check_variables(checkpoint)

    def _note_all_but_the_table(self, checkpoint: Checkpoint) -> None:
        """Note variables and items, of which a format of rows has none; whoever names the table has chosen it."""
        reason, records = f"{NO_PLACE}{self.traits.name}", records_of(checkpoint)
        names = [name for name in checkpoint.variable_names if name not in records]
        entries = [checkpoint.find_variable(name)[1] for name in names]
        variables = [LeftOut(entry.name, 0, entry.size_bytes, reason, "variable") for entry in entries]
        self.left_out = (*variables, *left_out_of(checkpoint, self.traits.name))
        for line in left_out_lines(self.left_out):
            self.request.reporter.warn(line)

    def _check_variables(self, checkpoint: Checkpoint) -> None:
        """Note the items, which no format of arrays has; UnsupportedError for variables of a dtype that it lacks."""
        selection = self.request.selection
        name = self.traits.name
        items = checkpoint.item_names
        variables = checkpoint.variable_names
        for glob in selection.variables:
            asked = names_like(glob, items)
            if asked and glob not in variables and not names_like(glob, variables):
                kind = checkpoint.find_variable(asked[0])[1].dtype.name
                raise UnsupportedError(f"{asked[0]!r} is {kind}: the format {name} has no place for it")
        written = selection.written_variables(checkpoint)
        found = {variable: checkpoint.find_variable(variable)[1] for variable in written}
        known = self.traits.other_dtypes
        wanted = [] if selection.tables and not selection.variables else items
        if selection.variables:
            wanted = [item for item in items if any(names_like(glob, [item]) for glob in selection.variables)]
        entries = [checkpoint.find_variable(item)[1] for item in wanted]
        check_held(f"the format {name}", [(one.name, one.dtype) for one in (*found.values(), *entries)], known)
        gone = set(selection.choose_variables(variables)).difference(found)
        self.left_out = left_out_of(checkpoint, name, items=wanted, records=gone)
        for line in left_out_lines(self.left_out):
            self.request.reporter.warn(line)
        texts = () if self.traits.keeps_texts else sorted(file_texts(checkpoint))
        if texts:
            self.request.reporter.warn(left_out_items(texts, f"{NO_PLACE}{name}", "metadata key"))

    def metadata(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Return what the output says of the version, and where the format has a place, what its files said before."""
        own = metadata_of(self.request.version, others=has_others(checkpoint))
        return {**file_texts(checkpoint), **own} if self.traits.keeps_texts else own

    def reader(
        self, checkpoint: Checkpoint, folder: str, confirm: Callable[[str], None] | None = None
    ) -> ContentReader:
        """Return what reads the content, with temporary files in a folder."""
        request, metadata = self.request, self.metadata(checkpoint)
        if self.lost:
            metadata |= {"partial": "true", "lost": json.dumps(list(self.lost.lines()))}
        names = renamed_by(checkpoint, request.rename)
        ids = look_here(checkpoint, request.part_bytes).ids(checkpoint)
        keeps = self.traits.keeps_matrices and request.cluster is None and not request.partial
        forms = ContentForms(checkpoint, request.selection, ids, names, self.traits.matrix_ending, keeps)
        return ContentReader(
            forms, metadata, folder, confirm=confirm, part_bytes=request.part_bytes, reporter=request.reporter
        )

    def counts(self, content: ExportContent) -> ContentCounts:
        """Return the counts of the output: fewer rows than the content when rows are limited."""
        counts, limit = content.counts, self.request.limit
        rows = counts.rows if limit is None else min(counts.rows, limit)
        return ContentCounts(0 if self.traits.takes_limit else counts.variables, counts.tables, rows)


class LaidOut(ContentFormat):
    """Files in which each tensor has its place; what stands around the values follows from names and shapes."""

    @abstractmethod
    def layout(self, content: ExportContent, metadata: Mapping[str, str]) -> FileLayout:
        """Return where everything goes, '' for the output itself; other metadata of the same size change no place."""

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the values, then what stands around them, and open the files as a reader does."""
        write_laid_out(content, content.tensors, partial(self.layout, content), target.path, target.new_file)
        layout = self.layout(content, content.finish())
        check_reopened(target.path, layout, content.tensors, partial(self.reopened, target.path))

    def reopened(self, path: str, files: Sequence[str]) -> Mapping[str, StoredAt] | None:
        """Return what new files say of themselves, by the format's own reader; None where there is none here."""
        del self, path, files
        return None

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return all files with their sizes."""
        del beside
        files = self.layout(content, content.metadata).files
        return {_inside(path, name): size for name, size in sorted(files.items())}


def write_laid_out(
    content: ExportContent,
    tensors: Sequence[Tensor],
    layout_for: Callable[[Mapping[str, str]], FileLayout],
    path: str,
    new_file: NewFile,
) -> None:
    """Write tensors where the layout for some metadata has them, then what stands around them."""
    layout = layout_for(content.metadata)
    outputs = {name: new_file(_inside(path, name), size) for name, size in layout.files.items()}
    places: dict[str, Place] = {}
    sums: dict[tuple[str, int], Crc32] = {}
    for tensor in tensors:
        name, start = layout.at(tensor.name, 0)
        if layout.checksum:
            sums[tensor.name, 0] = Crc32(layout.checksum)
        places[tensor.name] = Place(outputs[name], start, sums.get((tensor.name, 0)))
    with next(iter(outputs.values())):
        content.fill(places)
    literals = layout_for(content.finish()).literals({part: crc.value() for part, crc in sums.items()})
    for name, offset, data in literals:
        outputs[name].write(offset, data)
    finish_outputs(list(outputs.values()))


def _inside(path: str, name: str) -> str:
    return os.path.join(path, name) if name else path


def metadata_of(version: Version, *, others: bool = False) -> dict[str, str]:
    """Return what an export says of a version; a fingerprint of zeros stands for the one that is not known yet.

    With `others` the version has what tables cannot hold: then its fingerprint is longer.
    """
    if version.unread is not None and version.metadata_fault:
        why = f"its metrics cannot be read now: {version.unread.message}"
        raise version.unread.kind(why, path=version.ref)
    metrics = {name: json_number(value) for name, value in version.metrics.items()}
    return {
        "schema": "edl-ckpt/export/1",
        "version": "" if version.number is None else str(version.number),
        "fingerprint": blank_text(others=others),
        "metrics": json.dumps(metrics),
    }


def _shown(goal: Location) -> str:
    """Return the path or URL of an output as people name it."""
    folder, name = goal.split()
    return name if folder.local_path is not None and folder.url == "." else os.path.join(folder.url, name)
