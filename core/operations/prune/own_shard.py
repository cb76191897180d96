"""keep_checkpoint_max as one parameter server applies it, made safe."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from edl_ckpt.core.checkpoint.catalog import GRACE_SECONDS, list_versions
from edl_ckpt.core.commit.notes import remove_notes
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.commit.trash import forget_gone
from edl_ckpt.core.errors import EdlCkptError, NotFoundError, UsageError
from edl_ckpt.core.format.model import State, Version
from edl_ckpt.core.operations.prune.guards import find_unreadable, prunable
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.holder import prove_lock
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import base_name
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, open_store
from edl_ckpt.core.storage.faults import storage_errors


def remove_own_shard(
    location: LocationLike,
    ps_id: int,
    ps_num: int,
    keep_checkpoint_max: int,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
) -> tuple[str, ...]:
    """Apply keep_checkpoint_max as one parameter server does after saving; return the paths that were removed.

    Source: the checkpoint design of ElasticDL. While more than so many versions have this server's shard, the server
    removes its own shard of the smallest, then the directory if it is empty. Made safe: the newest complete version
    that can be read keeps its shard, and so does a tagged one. So do later versions, which slower servers may still
    complete: else a server that is far ahead would leave none. 0 removes nothing. The seal of a version goes
    before its first shard, and empty directories that a killed server left go too. Takes the lock of the location only
    when there is something to remove. Raises LockedError when it is not free in time; the next call catches up.
    """
    if keep_checkpoint_max <= 0:
        return ()
    if not 0 <= ps_id < ps_num:
        raise UsageError(f"ps_id must be 0 to {ps_num - 1}, got {ps_id}")
    where = Location.of(location)
    if not any(_doomed(list_versions(where).versions, ps_id, ps_num, keep_checkpoint_max)):
        return ()
    with location_lock(where, "keep_checkpoint_max", wait_seconds=wait_seconds, reporter=reporter):
        # Once more: now no other command of ours changes them, and what has tags is read from its own files.
        versions = list_versions(where, known=Known()).versions
        removed: list[str] = []
        for version, path in list(_doomed(versions, ps_id, ps_num, keep_checkpoint_max)):
            removed += _remove(version, path)
        if removed:
            present = {version.version for version in prunable(list_versions(where).versions)}
            for error in forget_gone(where, present):
                reporter.warn(str(error))
    return tuple(removed)


def _doomed(versions: Sequence[Version], ps_id: int, ps_num: int, keep: int) -> Iterator[tuple[Version, str | None]]:
    """Yield the versions that lose a shard, with its path; None stands for one that is an empty directory."""
    versions = prunable(versions)
    own = [
        (v, s.path)
        for v in versions
        for s in v.shards
        if (s.ps_id, s.ps_num) == (ps_id, ps_num) and v.state not in {State.MIXED, State.UNREADABLE} and not v.linked
    ]
    long_ago = time.time() - GRACE_SECONDS
    yield from ((v, None) for v in versions if _is_empty(v) and v.modified < long_ago)
    if len(own) <= keep:
        return
    unreadable = find_unreadable(versions)
    whole = [v for v in versions if v.state is State.COMPLETE and v.path not in unreadable]
    for version, path in own[: len(own) - keep]:
        if whole and version.version < whole[-1].version and not version.tags and not version.metadata_fault:
            yield version, path


def _is_empty(version: Version) -> bool:
    return not (version.shards or version.extra or version.fault or version.linked)


def _remove(version: Version, path: str | None) -> list[str]:
    """Remove a shard, and its directory when it is empty; neither need exist. The caller holds the lock."""
    store, removed = open_store(version.location), list[str]()
    directory = base_name(version.path)
    prove_lock(version.location)
    if path is not None:
        store.remove(seal_file(version.version))
        remove_notes(store, version.version)
    if not isinstance(store, LocalStore):
        if path is not None:
            store.remove(f"{directory}/{base_name(path)}")
            store.remove_directory(directory)
            removed.append(path)
        return removed
    if path is not None:
        with suppress(NotFoundError), storage_errors(path):
            os.unlink(path)
            removed.append(path)
    with suppress(EdlCkptError), storage_errors(version.path):  # it may have shards of other servers
        os.rmdir(version.path)
        removed.append(version.path)
    return removed
