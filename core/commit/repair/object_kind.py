"""How versions are deleted, recovered and written on object storage, where nothing is renamed."""

from __future__ import annotations

from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.commit.deletion.removal import NoTrash
from edl_ckpt.core.commit.interface import LockedLocation, NewVersion, VersionOutput
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.commit.publish.probes import probe_objects
from edl_ckpt.core.commit.repair.objects import ObjectRepair
from edl_ckpt.core.commit.shard import Hold, ObjectShard, ShardOutput, ShardPlace
from edl_ckpt.core.storage import ObjectStore
from edl_ckpt.core.storage.facts import Fact


class ObjectKind:
    """Object storage; its methods are those of `DiskKind`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def trash(self) -> NoTrash:
        """Return what deletes versions."""
        return NoTrash(self._store)

    @property
    def repair(self) -> ObjectRepair:
        """Return what settles the work of killed commands."""
        return ObjectRepair(self._store)

    def output(self, place: LockedLocation, new: NewVersion) -> VersionOutput:
        """Return where to write a version of a locked location."""
        return RemoteOutput(self._store, place, new)

    def shard(self, place: ShardPlace, hold: Hold, reporter: Reporter) -> ShardOutput:
        """Return where to write one shard; the caller needs no lock."""
        return ObjectShard(self._store, place, hold, reporter)

    def probe(self) -> list[Fact]:
        """Try what the storage can do; EdlCkptError where nothing can be written."""
        return probe_objects(self._store)
