"""All formats of exports. To add one, write its class and add it to `_FORMATS`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.cluster.choice import ExecutorLike, check_shared, executor_of
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export.content.selection import Selection
from edl_ckpt.core.operations.export.formats.arrays import NpyDirectory, Npz, Safetensors
from edl_ckpt.core.operations.export.formats.content_format import PartsFormat
from edl_ckpt.core.operations.export.formats.frameworks import Parquet, TensorFlow, Torch
from edl_ckpt.core.operations.export.formats.merged import MergedCheckpoint
from edl_ckpt.core.operations.export.formats.text import Csv, JsonLines, Projector, Word2Vec
from edl_ckpt.core.operations.export.interface import ExportFormat, ExportRequest
from edl_ckpt.core.sorting.partition import PART_BYTES
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.streams import is_stream

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


def requested(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: str | None,
    selection: Selection | None,
    limit: int | None,
    max_shard_bytes: int | None,
    use_seal: bool,
    executor: ExecutorLike | None,
    force: bool,
    reporter: Reporter,
    part_bytes: int = PART_BYTES,
) -> ExportFormat:
    """Return the format that fulfils a request.

    Raises UsageError for an unknown name, or a request that the format cannot fulfil; UnsupportedError for where a
    cluster cannot write, or what.
    """
    version, goal = as_version(version), Location.of(output)
    name = format_name or guess_format(goal.url)
    cluster = _cluster_of(executor, version, goal, reporter)
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}; expected one of {', '.join(FORMATS)}", hint=meant(name, FORMATS))
    if limit is not None and not FORMATS[name].traits.takes_limit:
        limited = sorted(each.traits.name for each in _FORMATS if each.traits.takes_limit)
        raise UsageError(f"--limit is for {', '.join(limited)}")
    chosen = selection or Selection()
    if cluster is not None:
        _check_parts(name, chosen)
    request = ExportRequest(
        version, goal, chosen, limit, max_shard_bytes, part_bytes, reporter, use_seal, force, cluster
    )
    return FORMATS[name](request)


def _cluster_of(
    executor: ExecutorLike | None, version: Version, goal: Location, reporter: Reporter
) -> ClusterExecutor | None:
    """Return the cluster whose workers do the work, None for this process; UnsupportedError for where they cannot."""
    given = None if executor is None else executor_of(executor, [version], reporter=reporter)
    if not isinstance(given, ClusterExecutor):
        return None
    path = goal.local_path
    if path is not None and is_stream(path):
        hint = "without --cluster, this machine writes into it"
        raise UnsupportedError("a cluster cannot write into a stream", path=path, hint=hint)
    check_shared(goal)
    return given


def _check_parts(name: str, selection: Selection) -> None:
    """Raise UnsupportedError unless the workers of a cluster can write an export."""
    if not issubclass(FORMATS[name], PartsFormat):
        in_parts = sorted(each.traits.name for each in _FORMATS if issubclass(each, PartsFormat))
        raise UnsupportedError(
            f"a cluster cannot export as {name}",
            hint=f"without --cluster, this machine exports it; a cluster writes {', '.join(in_parts)}",
        )
    if selection.dense_rows is not None:
        raise UnsupportedError(
            "a cluster writes tables as ids and vectors, and not as a matrix",
            hint="without --cluster, this machine writes a matrix",
        )
