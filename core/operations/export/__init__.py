"""Exporting a version: to formats that other tools open, in bounded memory, published whole or not at all.

`interface.py` describes a format, `formats` has all of them. `content` turns a checkpoint into tensors, `output` makes
the result visible, and `cluster` does the same work in other processes. The fingerprint proves every export that
changes no value.
"""

from __future__ import annotations

import time
from dataclasses import replace

from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.operations.export.content.selection import Selection
from edl_ckpt.core.operations.export.formats import FORMATS, guess_format, requested
from edl_ckpt.core.operations.export.interface import ExportedFile, ExportPlan, ExportRequest, ExportResult
from edl_ckpt.core.sorting.partition import PART_BYTES
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.location import Location

__all__ = [
    "FORMATS",
    "ExportPlan",
    "ExportResult",
    "ExportedFile",
    "Selection",
    "export_version",
    "guess_format",
    "plan_export",
]


def export_version(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: str | None = None,
    selection: Selection | None = None,
    limit: int | None = None,
    max_shard_bytes: int | None = None,
    force: bool = False,
    use_seal: bool = True,
    part_bytes: int = PART_BYTES,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> ExportResult:
    """Write a version in another format to a path or URL, where nothing may be unless `force` is given.

    A version that does not match its seal is CorruptError; `use_seal=False` goes on, and the result says why.

    An `executor` on a cluster writes safetensors and parquet to S3, or to a file system that its workers share:
    a directory with a file for each task.

    Memory is a few times `part_bytes`; an output at a URL is written to the local disk first. Raises RefusedError for a
    target that exists, or that lies among checkpoints, where ElasticDL's scan would meet it; NoSpaceError before
    anything is written; UsageError for a selection that the format cannot contain;
    UnsupportedError for what a cluster cannot write; and the errors of reading.
    """
    begin = time.perf_counter()
    goal, asked = Location.of(output), selection or Selection()
    request = ExportRequest(
        as_version(version), goal, asked, limit, max_shard_bytes, part_bytes, reporter, use_seal, force
    )
    result = requested(request, format_name, executor).export()
    return replace(result, seconds=time.perf_counter() - begin)


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
    goal, asked = Location.of(output), selection or Selection()
    request = ExportRequest(
        as_version(version), goal, asked, limit, max_shard_bytes, PART_BYTES, reporter, use_seal, force
    )
    return requested(request, format_name, executor).plan()
