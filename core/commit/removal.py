"""The removal of versions file by file, where they cannot be renamed, so that no remainder looks whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.state.holder import LostLockError, prove_lock
from edl_ckpt.core.state.paths import seal_file, version_file
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
    """Delete files one by one; a shard of each ps_num goes first."""
    deleted: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        first, rest = safe_order(version)
        before(version)
        try:
            for path in first:
                store.remove(path.removeprefix(store.path("")))
            prove_lock(store.location)
            store.remove_many([path.removeprefix(store.path("")) for path in rest])
            prove_lock(store.location)
            store.remove_many([version_file(version.version), seal_file(version.version)])
            store.remove_directory(version.path.removeprefix(store.path("")))
        except LostLockError:
            raise
        except EdlCkptError as error:
            failed.append((version, error))
        else:
            deleted.append(version)
    return Removal(tuple(deleted), tuple(failed), (), sum(v.size_bytes for v in deleted))
