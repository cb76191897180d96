"""The export as a checkpoint: one merged shard of ElasticDL, or the files of another system.

The shard is a file of its own, or in a checkpoint_dir that ElasticDL finds. The files of another system are a directory
with one checkpoint, which that system loads.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.catalog.listing import as_version
from edl_ckpt.core.converting.changes import ROWS, Changes, NameMap, left_out_lines, with_tables
from edl_ckpt.core.converting.items import items_out
from edl_ckpt.core.model.tables import Extent
from edl_ckpt.core.moving.conversion import Conversion, plan_conversion
from edl_ckpt.core.moving.run import Move
from edl_ckpt.core.moving.settings import ReshardSettings, settings_of_files
from edl_ckpt.core.moving.staged_files import StagedFiles
from edl_ckpt.core.moving.version_input import VersionInput
from edl_ckpt.core.operations.export.cluster.shared_files import SharedFiles
from edl_ckpt.core.operations.export.formats.arrays import Safetensors
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
    Selection,
)
from edl_ckpt.core.operations.export.output.target import (
    ExportTarget,
    LocalTarget,
    OpenedFiles,
    check_output,
    open_target,
)
from edl_ckpt.core.operations.reshard.execute import ReshardPlan, execute_reshard, prepare_reshard
from edl_ckpt.core.proof.proving import prove
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.sources.elasticdl.target import ELASTICDL, EMPTY_MODEL
from edl_ckpt.core.sources.safetensors.indexing import read_header
from edl_ckpt.core.storage.directories import remove_tree
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.streams import is_stream
from edl_ckpt.core.storage.user_files import check_target

_COMPARED_BYTES: Final = 1 << 20
"""So many bytes of ids are compared at a time."""


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


class SystemFormat(ExportFormat):
    """A checkpoint of another system, for `ranks` ranks."""

    def __init__(self, request: ExportRequest) -> None:
        chosen = request.selection
        if chosen != Selection(chosen.tables, chosen.variables, chosen.dtype):
            raise UsageError(f"`dense_rows`, `remap`, `order`, `fill` and `quantize` are not for {self.traits.name}")
        super().__init__(request)

    @contextmanager
    def _planned(self) -> Iterator[tuple[Conversion, Trust, VersionInput]]:
        request, chosen, names = self.request, self.request.selection, self.request.names or NameMap()
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
    ) -> AbstractContextManager[SharedFiles | None]:
        """Return what lets the workers of a cluster write the files, too; None where there is none."""
        if self.request.cluster is None:
            return nullcontext()
        assert isinstance(target, LocalTarget)  # noqa: S101 - object storage and streams are refused
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


class Dcp(SystemFormat):
    """A checkpoint of torch.distributed.

    With `remap`, rows are numbered in the order of their ids, which are the tensor NAME.ids next to the table: first a
    temporary file of safetensors gets the matrices, and then they go out as tables of their numbers.
    """

    traits: ClassVar = FormatTraits("dcp", is_directory=True)

    def __init__(self, request: ExportRequest) -> None:
        self._to_number = request if request.selection.remap else None
        self._read: ExportResult | None = None
        """What is known of the version once it was read into the temporary file."""
        super().__init__(replace(request, selection=replace(request.selection, remap=False)))

    def plan(self) -> ExportPlan:
        """Return the files with their sizes; with `remap`, from the temporary file."""
        if self._to_number is None:
            return super().plan()
        with self._numbered(self._to_number) as request:
            return replace(Dcp(request).plan(), ref=self.request.version.ref)

    def export(self) -> ExportResult:
        """Write all files; with `remap`, from the temporary file."""
        if self._to_number is None:
            return super().export()
        with self._numbered(self._to_number) as request:
            done = replace(Dcp(request).export(), ref=self.request.version.ref, proved=False)
            if self._read is None:
                return done
            left_out = (*self._read.left_out, *done.left_out)
            items = replace(done.items, left_out=done.items.left_out + len(self._read.left_out))
            return replace(
                done,
                forced=self._read.forced,
                checksums=self._read.checksums,
                left_out=left_out,
                items=items,
                content=self._read.content,
                bytes_read=self._read.bytes_read + done.bytes_read,
            )

    @contextmanager
    def _numbered(self, request: ExportRequest) -> Iterator[ExportRequest]:
        """Yield the request for a temporary file whose tables are matrices, with their ids next to them."""
        if request.names and request.names.tables:
            raise UsageError("`remap` numbers the rows of all tables: no [tables] in the map")
        with tempfile.TemporaryDirectory(prefix="edl-ckpt-") as folder:
            goal = Location(os.path.join(folder, "numbered.safetensors"))
            rename = (*(request.names.rename.items() if request.names else ()), *request.rename)
            alone = replace(request, goal=goal, names=None, rename=rename, ranks=None, force=False)
            self._read = Safetensors(alone).export()
            with LocalReader(goal.url) as reader:
                tables = numbered_tables(reader)
            version = as_version(goal.url)
            yield replace(
                self.request,
                version=version,
                selection=Selection(),
                names=NameMap(tables=tables),
                rename=(),
                ranks=request.ranks or request.version.ps_num,
            )


def numbered_tables(reader: RangeReader) -> dict[str, dict[str, str]]:
    """Return the tables of a file with numbered rows, as a map has them; a companion has the ids of its table.

    Row k of a companion is that of the k-th id of its table, so its own ids are a copy, and go out once. One with other
    ids is a table of its own.
    """
    header = read_header(reader)
    notes: dict[str, dict[str, str]] = json.loads(header.metadata["tables"])
    ids = {tensor.name: Extent(tensor.start, tensor.end) for tensor in header.tensors}
    tables = {name: {"ids": ROWS, "vectors": note["vectors"]} for name, note in notes.items()}
    for name, note in notes.items():
        owner = notes.get(note.get("companion_of", ""))
        pair = [ids[each["ids"]] for each in (note, owner or {}) if each.get("ids") in ids]
        if len(pair) == 2 and _equal_bytes(reader, *pair):
            tables[name] |= {"companion_of": note["companion_of"], "slot": note["slot"], "same_ids": note["ids"]}
    return tables


def _equal_bytes(reader: RangeReader, one: Extent, other: Extent) -> bool:
    """Say whether two extents of a file have the same bytes."""
    steps = range(0, one.size_bytes, _COMPARED_BYTES)
    sizes = (min(_COMPARED_BYTES, one.size_bytes - at) for at in steps)
    return one.size_bytes == other.size_bytes and all(
        bytes(reader.read(one.start + at, size)) == bytes(reader.read(other.start + at, size))
        for at, size in zip(steps, sizes, strict=True)
    )
