"""All formats of exports. To add one, write its class and add it to `_FORMATS`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.catalog.target import check_outside
from edl_ckpt.core.cluster.choice import ExecutorLike, check_shared, job_of
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.operations.export.cluster.run import PartsFormat
from edl_ckpt.core.operations.export.formats.arrays import NpyDirectory, Npz, Safetensors, TensorFlow, Torch
from edl_ckpt.core.operations.export.formats.checkpoints import (
    Bundle,
    Dcp,
    Dynamicemb,
    MergedCheckpoint,
    SystemFormat,
    Tfra,
)
from edl_ckpt.core.operations.export.formats.parquet import Parquet
from edl_ckpt.core.operations.export.formats.text import Csv, JsonLines, Projector, Word2Vec
from edl_ckpt.core.operations.export.interface import ExportFormat, ExportRequest
from edl_ckpt.core.storage.local import is_stream

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
)
FORMATS: Final[Mapping[str, type[ExportFormat]]] = {each.traits.name: each for each in _FORMATS}
"""Every format by its name."""
_BY_ENDING: Final = {ending: each.traits.name for each in _FORMATS for ending in each.traits.endings}


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
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}; expected one of {', '.join(FORMATS)}", hint=meant(name, FORMATS))
    if request.limit is not None and not FORMATS[name].traits.takes_limit:
        limited = sorted(each.traits.name for each in _FORMATS if each.traits.takes_limit)
        raise UsageError(f"--limit is for {', '.join(limited)}")
    if cluster is not None:
        if request.partial:
            raise UsageError("--partial cannot be used with --cluster")
        _check_parts(name, request)
    if request.selection.remap and FORMATS[name].traits.spools:
        of_arrays = ", ".join(kind.traits.name for kind in _FORMATS if not kind.traits.spools)
        hint = "for dcp, export as safetensors with --remap, then export that file with --map"
        raise UsageError(f"--remap is for {of_arrays}; other formats have ids in rows or files", hint=hint)
    chosen = Bundle if name == Bundle.traits.name and request.ranks is not None else FORMATS[name]
    if not issubclass(chosen, SystemFormat) and (request.ranks or request.names):
        of_systems = ", ".join(each.traits.name for each in _FORMATS if issubclass(each, SystemFormat))
        raise UsageError(f"--ps and --map are for {of_systems}, and for tensorflow with --ps")
    return chosen(replace(request, cluster=cluster))


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


def _check_parts(name: str, request: ExportRequest) -> None:
    """Raise UnsupportedError unless the workers of a cluster can write an export."""
    if not issubclass(FORMATS[name], PartsFormat):
        in_parts = sorted(each.traits.name for each in _FORMATS if issubclass(each, PartsFormat))
        raise UnsupportedError(
            f"a cluster cannot export as {name}",
            hint=f"without --cluster, this machine exports it; a cluster writes {', '.join(in_parts)}",
        )
    chosen = request.selection
    if chosen.is_matrix or chosen.quantize is not None or request.rename:
        raise UnsupportedError(
            "a cluster writes tables as ids and vectors, and not as a matrix, quantized or renamed",
            hint="without --cluster, this machine writes them",
        )
