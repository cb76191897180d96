"""What an export would write: its files, where headers and ids tell; no value is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.listing import VersionLike
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.operations.export.cluster.plan import PartFile
from edl_ckpt.core.operations.export.cluster.run import ClusterPlan, planned_parts
from edl_ckpt.core.operations.export.content.selection import Selection
from edl_ckpt.core.operations.export.formats import requested
from edl_ckpt.core.operations.export.formats.content_format import ContentFormat, PartsFormat
from edl_ckpt.core.operations.export.formats.merged import MergedCheckpoint
from edl_ckpt.core.operations.export.interface import ContentCounts, ExportContent, ExportFormat
from edl_ckpt.core.operations.export.output.target import check_output
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that would be written; `size_bytes` is None where only the values would tell."""

    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export would write."""

    ref: str
    output: str
    format: str
    files: tuple[PlannedFile, ...]
    variables: int
    tables: int
    rows: int
    value_bytes: int
    """The bytes of all values that would be written, ids included."""
    bytes_read: int
    """The bytes that were read for the plan."""


def plan_export(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: str | None = None,
    selection: Selection | None = None,
    limit: int | None = None,
    max_shard_bytes: int | None = None,
    force: bool = False,
    use_seal: bool = True,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> ExportPlan:
    """Return what `export_version` would do; nothing is written, and no value is read.

    Errors are those that it raises before it writes.
    """
    chosen = requested(
        version,
        output,
        format_name=format_name,
        selection=selection,
        limit=limit,
        max_shard_bytes=max_shard_bytes,
        use_seal=use_seal,
        executor=executor,
        force=force,
        reporter=reporter,
    )
    request = chosen.request
    goal = request.goal
    if isinstance(chosen, MergedCheckpoint):
        files, counts, read = chosen.plan()
        sizes = {file.path: file.size_bytes for file in files}
        return _plan(chosen, sizes, counts, sum(sizes.values()), read)
    assert isinstance(chosen, ContentFormat)  # noqa: S101 - there are no others
    check_trust(request.version, force=not use_seal, reporter=reporter)
    with open_checkpoint(request.version) as checkpoint:
        chosen.check_dtypes(checkpoint)
        is_directory = request.cluster is not None or chosen.is_directory(checkpoint)
        check_output(goal, chosen.traits, is_directory=is_directory, force=force)
        beside = chosen.beside(checkpoint)
        path, aside = _shown(goal), "" if beside is None else _shown(beside)
        planned, content, read = _files(chosen, checkpoint, path, aside)
        value_bytes = sum(tensor.size_bytes for tensor in content.tensors)
        read += checkpoint.bytes_read
        return _plan(chosen, planned, chosen.counts(content), value_bytes, read)


def _files(
    chosen: ContentFormat, checkpoint: Checkpoint, path: str, beside: str
) -> tuple[Mapping[str, int | None], ExportContent, int]:
    """Return the files with their sizes, what they contain, and how many bytes workers read for that."""
    cluster = chosen.request.cluster
    if cluster is None:
        with chosen.reader(checkpoint, "") as reader:
            content = reader.content()
            return chosen.planned(content, path, beside), content, 0
    assert isinstance(chosen, PartsFormat)  # noqa: S101 - others are refused
    read = cluster.bytes_read()
    with planned_parts(chosen, checkpoint, cluster, path, beside) as plan:
        sizes: dict[str, int | None] = {file.path: _size(chosen, plan, file) for file in plan.files.files}
        sizes[os.path.join(path, chosen.index)] = None
        return sizes, plan.content, cluster.bytes_read() - read


def _size(chosen: PartsFormat, plan: ClusterPlan, file: PartFile) -> int | None:
    """Return the size of a file; None where a range of ids tells how many rows it has."""
    if any(span.total > 1 for span in file.spans):
        return None
    return chosen.part_bytes(plan.reader.content(file.variables, [span.table for span in file.spans]))


def _plan(
    chosen: ExportFormat,
    sizes: Mapping[str, int | None],
    counts: ContentCounts,
    value_bytes: int,
    bytes_read: int,
) -> ExportPlan:
    planned = tuple(PlannedFile(path, size) for path, size in sizes.items())
    ref, output, name = chosen.request.version.ref, chosen.request.goal.url, chosen.traits.name
    return ExportPlan(ref, output, name, planned, counts.variables, counts.tables, counts.rows, value_bytes, bytes_read)


def _shown(goal: Location) -> str:
    """Return the path or URL of an output as people name it."""
    folder, name = goal.split()
    return name if folder.local_path is not None and folder.url == "." else os.path.join(folder.url, name)
