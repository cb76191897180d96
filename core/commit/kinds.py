"""What differs between a disk and object storage, chosen once for each opened store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.job import Reporter
from edl_ckpt.core.commit.deletion.removal import NoTrash
from edl_ckpt.core.commit.deletion.trash import Trash
from edl_ckpt.core.commit.interface import LockedLocation, NewVersion, VersionOutput
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.commit.publish.staging import probe_disk, probe_objects
from edl_ckpt.core.commit.repair.disk import DiskRepair
from edl_ckpt.core.commit.repair.objects import ObjectRepair
from edl_ckpt.core.commit.shard import DiskShard, Hold, ObjectShard, ShardOutput, ShardPlace
from edl_ckpt.core.state.document import is_newer, schema_at_head
from edl_ckpt.core.state.paths import META_DIR, metadata_owner
from edl_ckpt.core.storage import LocalStore, ObjectStore
from edl_ckpt.core.storage.beneath import ForeignError
from edl_ckpt.core.storage.location import Fact


@dataclass(frozen=True, slots=True)
class Kind:
    """How versions are deleted, recovered and written on one kind of storage."""

    trash: Trash | NoTrash
    repair: DiskRepair | ObjectRepair
    output: Callable[[LockedLocation, NewVersion], VersionOutput]
    """Returns where to write a version of a locked location."""
    shard: Callable[[ShardPlace, Hold, Reporter], ShardOutput]
    """Returns where to write one shard; the caller needs no lock."""
    probe: Callable[[], list[Fact]]
    """Tries what the storage can do; EdlCkptError where nothing can be written."""


def kind_of(store: LocalStore | ObjectStore) -> Kind:
    """Return what suits a store."""
    if isinstance(store, LocalStore):
        return Kind(
            Trash(store),
            DiskRepair(store),
            output=partial(LocalOutput, store),
            shard=partial(DiskShard, store),
            probe=partial(probe_disk, store),
        )
    return Kind(
        NoTrash(store),
        ObjectRepair(store),
        output=partial(RemoteOutput, store),
        shard=partial(ObjectShard, store),
        probe=partial(probe_objects, store),
    )


def forget_gone(store: LocalStore | ObjectStore, present: Iterable[int]) -> list[EdlCkptError]:
    """Remove the metadata of gone versions: a restarted job may use their numbers. The caller holds the lock.

    Returns why some could not be removed, which the next prune tries again.

    `present` are the numbers in a listing. On a local disk each name of another number is looked up as well, and only
    what has no name is gone. Storage whose listings may lack something keeps all metadata.
    """
    if not store.properties.whole_listings:
        return []
    listed = set(present)
    try:
        owners = {name: metadata_owner(name) for name in store.names(META_DIR)}
        gone = {name: number for name, number in owners.items() if number is not None and number not in listed}
        newer = {gone[name] for name in gone if is_newer(schema_at_head(store.read_small(f"{META_DIR}/{name}")))}
        gone = {name: number for name, number in gone.items() if number not in newer}
        return kind_of(store).trash.forget(gone) if gone else []
    except ForeignError:  # the directory of the metadata is none of ours, of which the listing warns
        return []
    except EdlCkptError as error:
        return [error]
