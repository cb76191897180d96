"""What differs between a disk and object storage: how versions are deleted, recovered and written there.

A kind is chosen once for each opened store. A disk's imports what few commands need when they ask for it: most that
write a version delete none, write no single shard, and try nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.commit.interface import LockedLocation, NewVersion, VersionOutput
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.repair.disk import DiskRepair
from edl_ckpt.core.storage import LocalStore, ObjectStore

if TYPE_CHECKING:
    from edl_ckpt.core.commit.deletion.trash import Trash
    from edl_ckpt.core.commit.repair.object_kind import ObjectKind
    from edl_ckpt.core.commit.shard import Hold, ShardOutput, ShardPlace
    from edl_ckpt.core.storage.facts import Fact


class DiskKind:
    """A disk: what is there is renamed."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    @property
    def trash(self) -> Trash:
        """Return what deletes versions."""
        from edl_ckpt.core.commit.deletion.trash import Trash

        return Trash(self._store)

    @property
    def repair(self) -> DiskRepair:
        """Return what settles the work of killed commands."""
        return DiskRepair(self._store)

    def output(self, place: LockedLocation, new: NewVersion) -> VersionOutput:
        """Return where to write a version of a locked location."""
        return LocalOutput(self._store, place, new)

    def shard(self, place: ShardPlace, hold: Hold, reporter: Reporter) -> ShardOutput:
        """Return where to write one shard; the caller needs no lock."""
        from edl_ckpt.core.commit.shard import DiskShard

        return DiskShard(self._store, place, hold, reporter)

    def probe(self) -> list[Fact]:
        """Try what the storage can do; EdlCkptError where nothing can be written."""
        from edl_ckpt.core.commit.publish.probes import probe_disk

        return probe_disk(self._store)


def kind_of(store: LocalStore | ObjectStore) -> DiskKind | ObjectKind:
    """Return what suits a store."""
    if isinstance(store, LocalStore):
        return DiskKind(store)
    from edl_ckpt.core.commit.repair.object_kind import ObjectKind  # most locations are on a disk

    return ObjectKind(store)
