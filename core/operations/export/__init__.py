"""Exporting a version: to formats that other tools open, in bounded memory, published whole or not at all.

`interface.py` describes a format, `formats` has all of them. `content` turns a checkpoint into tensors, `output` makes
the result visible, and `cluster` does the same work in other processes. The fingerprint proves every export that
changes no value.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.catalog.listing import VersionLike
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.operations.export.cluster.run import export_on_cluster
from edl_ckpt.core.operations.export.content.selection import Selection
from edl_ckpt.core.operations.export.dry import ExportPlan, plan_export
from edl_ckpt.core.operations.export.formats import FORMATS, guess_format, requested
from edl_ckpt.core.operations.export.formats.content_format import PartsFormat
from edl_ckpt.core.operations.export.interface import ExportedFile
from edl_ckpt.core.sorting.partition import PART_BYTES
from edl_ckpt.core.storage import LocationLike

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


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The written files; `proved` when every value went out unchanged, with the fingerprint of the source."""

    ref: str
    output: str
    format: str
    files: tuple[ExportedFile, ...]
    variables: int
    tables: int
    rows: int
    fingerprint: str
    seconds: float
    overflowed: int
    proved: bool
    forced: str | None = None
    """Why the version did not match its seal, where `use_seal=False` went on; None in every other case."""

    def __repr__(self) -> str:
        return describe(
            "ExportResult",
            escaped(self.ref),
            f"{self.format} in {escaped(self.output)}",
            counted(self.variables, "variable"),
            counted(self.tables, "table"),
            counted(self.rows, "row"),
        )


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
        part_bytes=part_bytes,
    )
    request = chosen.request
    if request.cluster is not None and isinstance(chosen, PartsFormat):
        outcome = export_on_cluster(chosen, request.cluster)
    else:
        outcome = chosen.export()
    return ExportResult(
        ref=request.version.ref,
        output=request.goal.url,
        format=chosen.traits.name,
        files=outcome.files,
        variables=outcome.counts.variables,
        tables=outcome.counts.tables,
        rows=outcome.counts.rows,
        fingerprint=outcome.fingerprint,
        seconds=time.perf_counter() - begin,
        overflowed=outcome.overflowed,
        proved=outcome.proved,
        forced=outcome.forced,
    )
