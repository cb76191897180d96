"""ElasticDL as a source: what it claims of a listing, and the index of a version, of all layouts and generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.elasticdl import claiming, names
from edl_ckpt.core.sources.interface import OnFault
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.model.tables import Problem, ShardIndex

name, alone = names.SYSTEM, names.FREE_FILE
endings: Final = (".ckpt", ".chkpt")
claims = claiming.claims
shard_named, version_named, version_names = names.shard_named, names.version_named, names.version_names


def looks_into(directory: str) -> bool:
    """Say whether a directory's name is that of a version."""
    return "/" not in directory and (names.parse_version_dir(directory) is not None or names.is_uuid(directory))


def number_in_file(reader: RangeReader, name: str) -> int:
    """Return the version in a model, read from its first fields; without any, the number at the end of the name."""
    from edl_ckpt.core.sources.elasticdl.alone import number_in_model  # numpy: most references name no file

    return number_in_model(reader, name)


def index(
    version: Version, readers: Mapping[str, RangeReader], *, workers: int = 1, on_fault: OnFault | None = None
) -> Sequence[ShardIndex]:
    """Return the contents of shards; their generation is decided over all of them together."""
    from edl_ckpt.core.sources.elasticdl.indexing import index_version  # numpy and protobuf: no listing needs them

    return index_version(version, readers, workers=workers, on_fault=on_fault)


def check(version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex | None, Problem]]:
    """Return what the headers show that ElasticDL would lose, refuse or take for something else."""
    from edl_ckpt.core.sources.elasticdl.consistency import cross_check  # numpy

    return cross_check(version, shards)


def blocking(version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex, Problem]]:
    """Return the problems that make the content of a version uncertain."""
    from edl_ckpt.core.sources.elasticdl.consistency import blocking_problems  # numpy

    return blocking_problems(version, shards)
