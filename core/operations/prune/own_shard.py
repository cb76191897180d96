"""keep_checkpoint_max as one parameter server applies it, made safe."""

from __future__ import annotations

import os

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.errors import EdlCkptError, NotFoundError, UsageError
from edl_ckpt.core.format.model import State
from edl_ckpt.core.operations.prune.guards import find_unreadable
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.faults import storage_errors


def remove_own_shard(location: LocationLike, ps_id: int, ps_num: int, keep: int) -> tuple[str, ...]:
    """Apply keep_checkpoint_max as one parameter server does after saving; return the paths that were removed.

    Source: the checkpoint design of ElasticDL. While more than `keep` versions have this server's shard, the server
    removes its own shard of the smallest, then the directory if it is empty. Made safe: the newest complete version
    that can be read keeps its shard, and so does a tagged one; `keep` 0 removes nothing. Local locations only. Servers
    need no lock among each other, because each removes only its own shards.
    """
    if keep <= 0:
        return ()
    if not 0 <= ps_id < ps_num:
        raise UsageError(f"ps_id must be 0 to {ps_num - 1}, got {ps_id}")
    versions = list_versions(location).versions
    own = [
        (v, s.path)
        for v in versions
        for s in v.shards
        if (s.ps_id, s.ps_num) == (ps_id, ps_num) and v.state not in {State.MIXED, State.UNREADABLE} and not v.linked
    ]
    removed: list[str] = []
    unreadable = find_unreadable(versions) if len(own) > keep else {}
    whole = [v for v in versions if v.state is State.COMPLETE and v.path not in unreadable]
    for version, path in own[: max(len(own) - keep, 0)]:
        if not whole or version.path == whole[-1].path or version.tags or version.metadata_fault:
            continue
        removed += _remove_shard(path, version.path)
    return tuple(removed)


def _remove_shard(path: str, directory: str) -> list[str]:
    """Remove a shard, and its directory when it is empty; neither need exist."""
    removed: list[str] = []
    for remove, target in ((os.unlink, path), (os.rmdir, directory)):
        try:
            with storage_errors(target):
                remove(target)
        except NotFoundError:
            continue
        except EdlCkptError:
            if remove is os.rmdir:  # it has shards of other servers
                break
            raise
        removed.append(target)
    return removed
