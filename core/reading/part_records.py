"""The variables of an opened version that only describe how its system cuts tables into parts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.bundle.parts import OF_SYSTEM, part_records


def records_of(checkpoint: Checkpoint) -> Mapping[str, str]:
    """Return the table of each variable that describes one of its parts, by the name of the variable."""
    if checkpoint.version.layout.system != OF_SYSTEM:
        return {}
    shapes = {entry.name: entry.shape for shard in checkpoint.shards for entry in shard.variables if not entry.is_item}
    return part_records(shapes, set(checkpoint.table_names))


def without_variables(checkpoint: Checkpoint, names: Container[str]) -> Checkpoint:
    """Return the same open files without some variables."""
    shards = [replace(s, variables=tuple(v for v in s.variables if v.name not in names)) for s in checkpoint.shards]
    return Checkpoint(checkpoint.version, shards, checkpoint.files, checkpoint.store)
