"""The target of a version to be written: its location, its number, its directory, and its shards there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.errors import NotFoundError, RefusedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.format.shard_layout import ShardLayout
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a version to be written; `directory` is its path or URL."""

    location: Location
    layout: Layout
    number: int
    directory: str
    replaces: Version | None = None
    """The version whose place it takes; None where nothing is yet."""

    @property
    def in_place(self) -> bool:
        """Return True when it takes the place of an existing version."""
        return self.replaces is not None


@dataclass(frozen=True, slots=True)
class TargetShard:
    """A shard to be written, or written."""

    ps_id: int
    path: str
    size_bytes: int
    variables: int
    rows: int


def free_target(location: Location, layout: Layout, number: int) -> Target:
    """Return the place of a new version; RefusedError when the location has a version of this number already.

    Raises RefusedError too when anything else is in its directory's place, NotFoundError when the location is a file.
    """
    directory = open_store(location).path(layout.version_dir(number))
    path = location.local_path
    try:
        taken = any(v.version == number for v in list_versions(location).versions)
    except NotFoundError:
        if path is not None and os.path.lexists(path):
            raise NotFoundError("not a directory", path=location.url) from None
        taken = False
    if taken or (path is not None and os.path.lexists(directory)):
        raise RefusedError(f"version {number} exists there already", path=location.url, hint="nothing was changed")
    return Target(location, layout, number, directory)


def target_shards(target: Target, layouts: Sequence[ShardLayout], rows: bulk.I64) -> tuple[TargetShard, ...]:
    """Return the shards of a target from their layouts and their rows, int64 [ps_num]."""
    return tuple(
        TargetShard(
            ps_id,
            os.path.join(target.directory, target.layout.shard_file(ps_id, len(layouts))),
            layout.size_bytes,
            len(layout.dense_at),
            int(rows[ps_id]),
        )
        for ps_id, layout in enumerate(layouts)
    )
