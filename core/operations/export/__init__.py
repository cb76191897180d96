"""Exporting a version: to formats that other tools open, in bounded memory, published whole or not at all.

`interface.py` describes a format, `formats` has all of them. `content` turns a checkpoint into tensors, `output` makes
the result visible, and `cluster` does the same work in other processes. The fingerprint proves every export that
changes no value.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Unpack

from edl_ckpt.core.base.words import FormatName
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.converting.changes import template
from edl_ckpt.core.operations.export.formats import FORMATS, guess_format, requested
from edl_ckpt.core.operations.export.interface import (
    ExportedFile,
    ExportOptions,
    ExportPlan,
    ExportRequest,
    ExportResult,
    FormatTraits,
    Selection,
)
from edl_ckpt.core.operations.export.output.target import open_target
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.storage import Location, LocationLike

__all__ = [
    "FORMATS",
    "ExportPlan",
    "ExportResult",
    "ExportedFile",
    "Selection",
    "export_version",
    "guess_format",
    "plan_export",
    "write_map",
]


def export_version(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: FormatName | None = None,
    selection: Selection | None = None,
    executor: ExecutorLike | None = None,
    **options: Unpack[ExportOptions],
) -> ExportResult:
    """Write a version in another format to a path or URL, where nothing may be unless `force` is given.

    A version that does not match its seal is CorruptError; `use_seal=False` goes on, and the result says why. With
    `partial`, what can be read is exported where shards are missing or damaged; the result says what is lost, and is
    never proved.

    `rename` has pairs of an old name, or a glob, and a new one, for every format but checkpoint. The systems dcp, tfra
    and dynamicemb, and with `ranks` tensorflow, get their own checkpoint files for so many ranks; `names` says there
    which matrices are tables, and renames too.

    An `executor` on a cluster writes safetensors and parquet to S3, or to a file system that its workers share:
    a directory with a file for each task.

    Memory is a few times `part_bytes`; an output at a URL is written to the local disk first. Raises RefusedError for a
    target that exists, or that lies among checkpoints, where ElasticDL's scan would meet it; NoSpaceError before
    anything is written; UsageError for a selection that the format cannot contain;
    UnsupportedError for what a cluster cannot write; and the errors of reading.

    >>> result = export_version("run@200", "model.npz", selection=Selection(tables=("user",)))
    >>> result.format, result.tables, result.rows
    ('npz', 1, 10)
    """
    begin = time.perf_counter()
    request = ExportRequest(as_version(version), Location.of(output), selection or Selection(), **options)
    result = requested(request, format_name, executor).export()
    return replace(result, seconds=time.perf_counter() - begin)


def plan_export(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: FormatName | None = None,
    selection: Selection | None = None,
    executor: ExecutorLike | None = None,
    **options: Unpack[ExportOptions],
) -> ExportPlan:
    """Return what `export_version` would do; nothing is written, and no value is read.

    Errors are those that it raises before it writes.
    """
    request = ExportRequest(as_version(version), Location.of(output), selection or Selection(), **options)
    return requested(request, format_name, executor).plan()


def write_map(version: VersionLike, output: LocationLike, *, force: bool = False) -> ExportResult:
    """Write a map of all names of a version to a file or a stream, to start from; errors as `export_version`."""
    goal, version = Location.of(output), as_version(version)
    traits = FormatTraits("map", is_text=True)
    with (
        open_checkpoint(version) as checkpoint,
        open_target(goal, traits, is_directory=False, force=force) as target,
    ):
        with target.open_text() as file:
            file.write(template(checkpoint))
        counts = len(checkpoint.variable_names), len(checkpoint.table_names), 0
        return ExportResult(version.ref, goal.url, "map", target.publish(), *counts, "", 0.0, 0, proved=False)
