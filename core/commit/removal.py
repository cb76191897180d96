"""The removal of versions file by file, where they cannot be renamed, so that no remainder looks whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from edl_ckpt.core.commit.journal import Journal
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import SINGLE_FILE
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.state.holder import LostLockError, prove_lock
from edl_ckpt.core.state.owner import describe
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, seal_file, version_file
from edl_ckpt.core.state.seal import base_name
from edl_ckpt.core.storage.interface import ObjectStore

Before: TypeAlias = Callable[[Version], None]
"""Called right before a version is deleted; an error that it raises ends the deletion."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a deletion: the versions that are gone, those that could not be deleted, and what they left."""

    deleted: tuple[Version, ...]
    failed: tuple[tuple[Version, EdlCkptError], ...] = ()
    problems: tuple[EdlCkptError, ...] = ()
    """Why files of deleted versions could not be removed."""
    freed_bytes: int = 0


def safe_order(version: Version) -> tuple[list[str], list[str]]:
    """Return the files of a version as (first, rest): after the first no remainder passes for a whole version."""
    firsts = {shard.ps_num: shard for shard in reversed(version.shards)}
    first = [shard.path for shard in firsts.values()]
    rest = [shard.path for shard in version.shards if shard.path not in first]
    return first, rest + [f"{version.path}/{name}" for name in version.extra]


def remove_in_order(store: ObjectStore, versions: Sequence[Version], before: Before) -> Removal:
    """Delete files one by one; a shard of each ps_num goes first.

    A journal names the version that is being deleted. If this process is stopped on the way, the next one that takes
    the lock finishes the deletion: a version that may lose its files at any moment is never kept, tagged or listed.
    """
    deleted: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []

    def store_path(path: str) -> str:
        return path.removeprefix(store.path(""))

    stage = f"{STAGE_DIR}/{new_id()}"
    for version in versions:
        first, rest = (list(map(store_path, paths)) for paths in safe_order(version))
        before(version)
        has_begun = False
        try:
            if version.layout is not SINGLE_FILE:
                _write_intent(store, stage, version, [*first, *rest])
            prove_lock(store.location)
            has_begun = True
            for path in first:
                store.remove(path)
            prove_lock(store.location)
            store.remove_many(rest)
            prove_lock(store.location)
            store.remove_many([version_file(version.version), seal_file(version.version)])
            store.remove_directory(store_path(version.path))
        except LostLockError:
            if not has_begun:  # else whoever has the lock now finishes the deletion
                store.remove(f"{stage}/{JOURNAL}")
            raise
        except EdlCkptError as error:
            failed.append((version, error))
        else:
            deleted.append(version)
    if deleted or failed:
        prove_lock(store.location)
        store.remove(f"{stage}/{JOURNAL}")
    return Removal(tuple(deleted), tuple(failed), (), sum(v.size_bytes for v in deleted))


def _write_intent(store: ObjectStore, stage: str, version: Version, files: Sequence[str]) -> None:
    """Write the journal of a deletion."""
    journal = Journal(
        version.version,
        base_name(version.path),
        owner=describe("prune"),
        deletes=tuple(map(base_name, files)),
        metadata=_metadata_digest(store, version.version),
    )
    store.write_small(f"{stage}/{JOURNAL}", journal.to_bytes())


def _metadata_digest(store: ObjectStore, version: int) -> str:
    return hashlib.blake2b(store.read_small(version_file(version)) or b"", digest_size=16).hexdigest()


def settle_deletion(store: ObjectStore, stage: str, journal: Journal) -> str:
    """Finish a deletion that was stopped on the way; return what was done. The caller holds the lock.

    It is not finished, and the version stays as it is, when its metadata changed since, or when files were written.
    """
    ages = store.ages(journal.directory)
    begun = store.ages(stage).get(JOURNAL, 0.0)
    is_same = set(ages) <= set(journal.deletes) and all(age >= begun for age in ages.values())
    is_same = is_same and _metadata_digest(store, journal.version) == journal.metadata
    if is_same:
        prove_lock(store.location)
        store.remove_many([f"{journal.directory}/{name}" for name in journal.deletes if name in ages])
        store.remove_many([version_file(journal.version), seal_file(journal.version)])
        store.remove_directory(journal.directory)
    prove_lock(store.location)
    store.remove(f"{stage}/{JOURNAL}")
    if is_same:
        return f"finished the deletion of version {journal.version}"
    return f"version {journal.version} stays as it is: it changed after a prune began to delete it"
