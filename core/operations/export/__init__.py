"""Exporting a version: to formats that other tools open, in bounded memory, published whole or not at all.

`interface.py` describes a format. To add one, write its class in `formats`, and add it to `_FORMATS`. `content` turns a
checkpoint into tensors, `output` makes the result visible, and `cluster` does the same work in other processes. The
fingerprint proves every export that changes no value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.catalog.target import check_outside
from edl_ckpt.core.cluster.choice import ExecutorLike, check_shared, job_of
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.converting.name_map import NameMap, template
from edl_ckpt.core.operations.export.cluster.run import PartsFormat
from edl_ckpt.core.operations.export.formats.arrays import NpyDirectory, Npz, Safetensors, TensorFlow, Torch
from edl_ckpt.core.operations.export.formats.dcp import Dcp
from edl_ckpt.core.operations.export.formats.merged_checkpoint import MergedCheckpoint
from edl_ckpt.core.operations.export.formats.parquet import Parquet
from edl_ckpt.core.operations.export.formats.systems import (
    Bundle,
    Dynamicemb,
    SystemFormat,
    Tfra,
    TorchCheckpointing,
)
from edl_ckpt.core.operations.export.formats.text import Csv, JsonLines, Projector, Word2Vec
from edl_ckpt.core.operations.export.interface import (
    ExportedFile,
    ExportFormat,
    ExportPlan,
    ExportRequest,
    ExportResult,
    FormatTraits,
    Selection,
)
from edl_ckpt.core.operations.export.output.target import open_target
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.sorting.partition import PART_BYTES
from edl_ckpt.core.storage import Location, LocationLike
from edl_ckpt.core.storage.streams import is_stream

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


_FORMATS: Final[tuple[type[ExportFormat], ...]] = (
    MergedCheckpoint,
    Safetensors,
    Npz,
    NpyDirectory,
    Csv,
    JsonLines,
    Word2Vec,
    Projector,
    Parquet,
    Torch,
    TensorFlow,
    Dcp,
    Tfra,
    Dynamicemb,
    TorchCheckpointing,
)
FORMATS: Final[Mapping[str, type[ExportFormat]]] = {each.traits.name: each for each in _FORMATS}
"""Every format by its name."""
_BY_ENDING: Final = {ending: each.traits.name for each in _FORMATS for ending in each.traits.endings}
_BY_WORD: Final = {
    **dict.fromkeys(("torchrec", "torchtitan", "megatron", "fsdp", "verl"), "dcp"),
    **dict.fromkeys(("tf", "keras", "deeprec", "easyrec", "tfplus", "bundle"), "tensorflow"),
    **dict.fromkeys(("hf", "huggingface", "transformers"), "safetensors"),
    **dict.fromkeys(("pt", "pytorch", "lightning"), "torch"),
    **dict.fromkeys(("numpy", "np"), "npz"),
    **dict.fromkeys(("arrow", "pandas", "polars", "duckdb"), "parquet"),
    **dict.fromkeys(("elasticdl", "edl"), "checkpoint"),
}
"""The formats by what people call their readers."""


def guess_format(output: str) -> str:
    """Return the name of the format that the ending of a path chooses; UsageError when there is none.

    >>> guess_format("model.safetensors"), guess_format("arrays.npy")
    ('safetensors', 'npy')
    """
    ending = os.path.splitext(output.rstrip("/"))[1].lower()
    if ending not in _BY_ENDING:
        raise UsageError(f"no format has the ending of {output!r}", hint=f"choose one: --format {'|'.join(FORMATS)}")
    return _BY_ENDING[ending]


def requested(request: ExportRequest, format_name: str | None, executor: ExecutorLike | None) -> ExportFormat:
    """Return the format that fulfils a request, to which the cluster of an executor is added.

    Raises UsageError for an unknown name, or a request that the format cannot fulfil; UnsupportedError for where a
    cluster cannot write, or what.
    """
    name = format_name or guess_format(request.goal.url)
    cluster = _cluster_of(executor, request)
    if request.force or not request.version.is_elasticdl:
        check_outside(request.version, request.goal, replaces=request.force)
    _check_name(name)
    if request.digests and request.partial:
        raise UsageError("`digests` cannot be used with `partial`: they are of a whole version")
    _check_traits(FORMATS[name], request, is_cluster=cluster is not None)
    chosen = Bundle if name == Bundle.traits.name and _is_whole_bundle(request) else FORMATS[name]
    if cluster is not None:
        if request.partial:
            raise UsageError("`partial` cannot be used with `executor`")
        _check_parts(chosen, request)
    _check_remap(FORMATS[name], request)
    if not issubclass(chosen, SystemFormat) and (request.ranks or request.names):
        of_systems = _names(each for each in _FORMATS if issubclass(each, SystemFormat))
        raise UsageError(f"`ranks` and `names` are for {of_systems}, and for tensorflow with `ranks`")
    return chosen(replace(request, cluster=cluster))


def _names(formats: Iterable[type[ExportFormat]]) -> str:
    """Return the names of formats in one line."""
    return ", ".join(each.traits.name for each in formats)


def _check_name(name: str) -> None:
    """Raise UsageError for the name of no format, with the one that another tool's name stands for."""
    if name in FORMATS:
        return
    theirs = _BY_WORD.get(name.lower())
    hint = f"for {name}: --format {theirs}" if theirs else meant(name, FORMATS)
    raise UsageError(f"no format {name!r}; expected one of {', '.join(FORMATS)}", hint=hint)


def _check_traits(kind: type[ExportFormat], request: ExportRequest, *, is_cluster: bool) -> None:
    """Raise UsageError for limits that a format does not take."""
    if request.limit is not None and not kind.traits.takes_limit:
        limited = sorted(each.traits.name for each in _FORMATS if each.traits.takes_limit)
        raise UsageError(f"`limit` is for {', '.join(limited)}")
    in_parts = is_cluster and issubclass(kind, PartsFormat)
    if request.max_shard_bytes and kind is not Safetensors and not in_parts:
        raise UsageError("`max_shard_bytes` is for safetensors")


def _check_remap(kind: type[ExportFormat], request: ExportRequest) -> None:
    """Raise UsageError for `remap` where a format has no arrays of ids."""
    if not request.selection.remap or not kind.traits.spools or kind is Dcp:
        return
    of_arrays = _names(each for each in _FORMATS if not each.traits.spools or each is Dcp)
    raise UsageError(f"`remap` is for {of_arrays}; other formats have ids in rows or files")


def _is_whole_bundle(request: ExportRequest) -> bool:
    """Say whether TensorFlow's own writer is asked for: with ranks, or where a bundle goes out as a bundle.

    Then the object graph, strings and the names of tables are those of the source. Another selection of values, such as
    --dense-rows, makes arrays of it.
    """
    chosen = request.selection
    is_plain = chosen == Selection(chosen.tables, chosen.variables, chosen.dtype) and not request.partial
    is_bundle = request.version.layout.system == Bundle.traits.name
    return request.ranks is not None or (is_bundle and is_plain and request.limit is None)


def _cluster_of(executor: ExecutorLike | None, request: ExportRequest) -> ClusterExecutor | None:
    """Return the cluster whose workers do the work, None for this process; UnsupportedError for where they cannot."""
    given = None if executor is None else job_of(executor, [request.version], reporter=request.reporter).executor
    if not isinstance(given, ClusterExecutor):
        return None
    path = request.goal.local_path
    if path is not None and is_stream(path):
        hint = "without --cluster, this machine writes into it"
        raise UnsupportedError("a cluster cannot write into a stream", path=path, hint=hint)
    check_shared(request.goal)
    return given


def _check_parts(kind: type[ExportFormat], request: ExportRequest) -> None:
    """Raise UnsupportedError unless the workers of a cluster can write an export."""
    if issubclass(kind, SystemFormat):
        _check_shared_files(request)
        return
    if not issubclass(kind, PartsFormat):
        in_parts = sorted(each.traits.name for each in _FORMATS if issubclass(each, (PartsFormat, SystemFormat)))
        raise UnsupportedError(
            f"a cluster cannot export as {kind.traits.name}",
            hint=f"without --cluster, this machine exports it; a cluster writes {', '.join(in_parts)}",
        )
    chosen = request.selection
    if chosen.is_matrix or chosen.quantize is not None or request.rename:
        raise UnsupportedError(
            "a cluster writes tables as ids and vectors, and not as a matrix, quantized or renamed",
            hint="without --cluster, this machine writes them",
        )


def _check_shared_files(request: ExportRequest) -> None:
    """Raise UnsupportedError unless the workers of a cluster can write the files of a system together."""
    if request.selection.remap:
        hint = "without --cluster, this machine numbers them"
        raise UnsupportedError("a cluster does not number the rows of tables (`remap`)", hint=hint)


def run_export(request: ExportRequest, format_name: str | None, executor: ExecutorLike | None) -> ExportResult:
    """Fulfil a request, as `export_version` does; errors as there and in `requested`."""
    begin = time.perf_counter()
    result = requested(request, format_name, executor).export()
    return replace(result, seconds=time.perf_counter() - begin, peak_memory_bytes=peak_memory_bytes())


def export_version(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: FormatName | None = None,
    selection: Selection | None = None,
    executor: ExecutorLike | None = None,
    limit: int | None = None,
    max_shard_bytes: int | None = None,
    part_bytes: int = PART_BYTES,
    use_seal: bool = True,
    force: bool = False,
    ranks: int | None = None,
    names: NameMap | None = None,
    rename: tuple[tuple[str, str], ...] = (),
    partial: bool = False,
    digests: bool = False,
    reporter: Reporter = WARNINGS,
) -> ExportResult:
    """Write a version in another format to a path or URL, where nothing may be unless `force` is given.

    A version that does not match its seal is CorruptError; `use_seal=False` goes on, and the result says why. With
    `partial`, what can be read is exported where shards are missing or damaged; the result says what is lost, and is
    never proved. With `digests` the result's `content` is always known: the digest of each name of the version as it
    was read, whatever goes out; without, it is None where another content goes out as checkpoint files.

    `rename` has pairs of an old name, or a glob, and a new one, for every format but checkpoint. The systems dcp, tfra
    and dynamicemb, and with `ranks` tensorflow, get their own checkpoint files for so many ranks; `names` says there
    which matrices are tables, and renames too.

    An `executor` on a cluster writes to S3, or to a file system that its workers share: safetensors and parquet as a
    directory with a file for each task, and the files of the systems dcp, tfra, dynamicemb, torch-checkpointing and,
    with `ranks`, tensorflow as one machine does.

    Memory is a few times `part_bytes`. An output at a URL is written to the local disk first, but for files of other
    systems on S3, which are proved under a hidden name there. Raises RefusedError for a target that exists, or that
    lies among checkpoints, where ElasticDL's scan would meet it; NoSpaceError before anything is written; UsageError
    for a selection that the format cannot contain; UnsupportedError for what a cluster cannot write; and the errors of
    reading.

    >>> result = export_version("run@200", "model.npz", selection=Selection(tables=("user",)))
    >>> result.format, result.tables, result.rows
    ('npz', 1, 10)
    """
    request = ExportRequest(
        as_version(version),
        Location.of(output),
        selection or Selection(),
        limit=limit,
        max_shard_bytes=max_shard_bytes,
        part_bytes=part_bytes,
        reporter=reporter,
        use_seal=use_seal,
        force=force,
        ranks=ranks,
        names=names,
        rename=rename,
        partial=partial,
        digests=digests,
    )
    return run_export(request, format_name, executor)


def plan_export(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: FormatName | None = None,
    selection: Selection | None = None,
    executor: ExecutorLike | None = None,
    limit: int | None = None,
    max_shard_bytes: int | None = None,
    part_bytes: int = PART_BYTES,
    use_seal: bool = True,
    force: bool = False,
    ranks: int | None = None,
    names: NameMap | None = None,
    rename: tuple[tuple[str, str], ...] = (),
    partial: bool = False,
    reporter: Reporter = WARNINGS,
) -> ExportPlan:
    """Return what `export_version` would do; nothing is written, and no value is read.

    Errors are those that it raises before it writes.
    """
    request = ExportRequest(
        as_version(version),
        Location.of(output),
        selection or Selection(),
        limit=limit,
        max_shard_bytes=max_shard_bytes,
        part_bytes=part_bytes,
        reporter=reporter,
        use_seal=use_seal,
        force=force,
        ranks=ranks,
        names=names,
        rename=rename,
        partial=partial,
    )
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
        done = ExportResult(version.ref, goal.url, "map", target.publish(), *counts, "", 0.0, 0, proved=False)
        return replace(done, bytes_read=checkpoint.bytes_read, peak_memory_bytes=peak_memory_bytes())
