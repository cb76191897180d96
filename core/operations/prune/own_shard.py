"""keep_checkpoint_max as one parameter server applies it, made safe: a removal of its own shards, without a plan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import forget_gone, location_lock
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.guards import is_good
from edl_ckpt.core.operations.prune.readable import find_unreadable, prunable
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.shard_note import remove_notes
from edl_ckpt.core.storage import Location, LocationLike


def remove_own_shard(
    location: LocationLike,
    ps_id: int,
    ps_num: int,
    keep_checkpoint_max: int,
    *,
    leftovers: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> tuple[str, ...]:
    """Apply keep_checkpoint_max as one parameter server does after saving; return the paths that were removed.

    Source: the checkpoint design of ElasticDL. While more than so many versions have this server's shard, the server
    removes its own shard of the smallest, then the directory if it is empty. Made safe: the newest complete version
    that can be read keeps its shard, and so does a tagged one. So do later versions, which slower servers may still
    complete: else a server that is far ahead would leave none. 0 removes nothing. With `leftovers`, versions that this
    server has no shard of lose those of other servers too, by the same rule: a server that was ahead at its last save
    cannot come back for them. The seal of a version goes
    before its first shard, and empty directories that a killed server left go too. Takes the lock of the location only
    when there is something to remove. Raises LockedError when it is not free in time; the next call catches up.
    """
    if keep_checkpoint_max <= 0:
        return ()
    if not 0 <= ps_id < ps_num:
        raise UsageError(f"ps_id must be 0 to {ps_num - 1}, got {ps_id}")
    where = Location.of(location)
    doomed = partial(doomed_shards, ps_id=ps_id, ps_num=ps_num, keep=keep_checkpoint_max, leftovers=leftovers)
    if not any(doomed(list_versions(where).versions)):
        return ()
    with location_lock(where, "keep_checkpoint_max", wait_seconds=wait_seconds, reporter=reporter) as locked:
        # Once more: now no other command of ours changes them, and what has tags is read from its own files.
        versions = list_versions(where, known=Known()).versions
        removed: list[str] = []
        for version, path in list(doomed(versions)):
            prove_lock(version.location)
            if path is not None:
                locked.store.remove(seal_file(version.version))
                remove_notes(locked.store, version.version)
            # Neither it nor its directory need exist.
            removed += kind_of(locked.store).trash.remove_shard(version, path)
        if removed:
            present = {version.version for version in list_versions(where).versions if not version.uuid}
            for error in forget_gone(locked.store, present):
                reporter.warn(str(error))
    return tuple(removed)


def doomed_shards(
    versions: Sequence[Version], ps_id: int, ps_num: int, keep: int, *, leftovers: bool = False
) -> Iterator[tuple[Version, str | None]]:
    """Yield the versions that lose a shard, with its path; None stands for one that is an empty directory."""
    versions = [version for version in prunable(versions) if version.is_elasticdl]
    for version in versions:
        if _is_left_empty(version):
            yield version, None
    servers = _shards_of_servers(versions, ps_id, ps_num, leftovers=leftovers)
    if all(len(shards) <= keep for shards in servers.values()):
        return
    unreadable = find_unreadable(versions)
    newest = max((version.version for version in versions if is_good(version, unreadable)), default=-1)
    staying = set[str]()
    for server, shards in servers.items():
        too_many = max(len(shards) - keep, 0)
        for place, (version, path) in enumerate(shards):
            is_old = place < too_many and version.version < newest
            is_protected = bool(version.tags or version.metadata_fault) or version.path in staying
            if is_old and not is_protected:
                yield version, path
            elif server == ps_id:
                staying.add(version.path)


def _is_left_empty(version: Version) -> bool:
    """Return True for the directory of a version without anything in it, which a killed server left."""
    is_empty = not (version.shards or version.extra or version.fault or version.linked)
    return is_empty and version.modified < time.time() - GRACE_SECONDS


def _shards_of_servers(
    versions: Sequence[Version], ps_id: int, ps_num: int, *, leftovers: bool
) -> dict[int, list[tuple[Version, str]]]:
    """Return versions with the paths of their shards, by server; those of the server itself alone without `leftovers`.

    They come first: a version that keeps its own shard keeps all.
    """
    servers: dict[int, list[tuple[Version, str]]] = {ps_id: []}
    for version in versions:
        if version.state in {State.MIXED, State.UNREADABLE} or version.linked:
            continue
        for shard in version.shards:
            if shard.ps_num == ps_num and (leftovers or shard.ps_id == ps_id):
                servers.setdefault(shard.ps_id, []).append((version, shard.path))
    return servers
