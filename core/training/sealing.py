"""The last server to arrive seals the version, from the notes of all of them.

Several servers may think that they are the last. They take turns at the lock of the location, and the second finds the
seal of the first. A server that cannot seal has still saved its shard, so this raises nothing: the next server that
seals a version also seals the ones before it that were left.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.catalog.listing import look_at
from edl_ckpt.core.commit.repair.notes import noted_versions, remove_notes, sweep_notes
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.shard import ShardPlace
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.proof.noted_seal import seal_from_notes
from edl_ckpt.core.state.holder import write_proved
from edl_ckpt.core.state.metadata import sealed_versions
from edl_ckpt.core.state.paths import META_DIR, seal_file
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.state.shard_note import NoteName, ShardNote
from edl_ckpt.core.storage import Store


@dataclass(frozen=True, slots=True)
class Sealing:
    """Whether a version had all its shards after a save, and whether it is sealed."""

    complete: bool
    sealed: bool = False
    by_us: bool = False
    """True for the server that wrote the seal."""


def seal_if_whole(
    place: ShardPlace, own: tuple[NoteName, ShardNote], *, wait_seconds: float, reporter: Reporter
) -> Sealing:
    """Seal a version when all its shards are there; `own` is the note on the shard that was just saved."""
    try:
        names = place.store.names(place.directory)
        if len(names) != place.ps_num or any(
            place.layout.shard_file(i, place.ps_num) not in names for i in range(place.ps_num)
        ):
            return Sealing(complete=False)
        with location_lock(place.location, "seal", wait_seconds=wait_seconds, reporter=reporter):
            return _seal_all(place, own)
    except EdlCkptError as error:
        reporter.warn(f"{place.location}@{place.version} is saved, but not sealed: {error}")
        return Sealing(complete=True)


def _seal_all(place: ShardPlace, own: tuple[NoteName, ShardNote]) -> Sealing:
    """Seal the version, those before it that were left, and remove old notes; the caller has the lock."""
    store = place.store
    sealed = sealed_versions(store.names(META_DIR))
    done = Sealing(complete=True, sealed=True)
    if place.version not in sealed:
        version = look_at(store, place.directory)
        if version is None or version.state is not State.COMPLETE:
            return Sealing(complete=False)
        _write_seal(store, version, own)
        done = Sealing(complete=True, sealed=True, by_us=True)
    for number in noted_versions(store):
        if number != place.version and number not in sealed:
            _seal_earlier(place, number)
    sweep_notes(store)
    return done


def _seal_earlier(place: ShardPlace, number: int) -> None:
    """Seal a version whose last server could not, if it can be sealed now."""
    version = look_at(place.store, place.layout.version_dir(number))
    if version is not None and version.state is State.COMPLETE:
        try:
            _write_seal(place.store, version)
        except EdlCkptError:  # a mixture, say, of which `verify` tells
            return


def _write_seal(store: Store, version: Version, own: tuple[NoteName, ShardNote] | None = None) -> None:
    seal = seal_from_notes(store, version, own=own)
    write_proved(store, seal_file(version.version), seal_bytes(seal))
    remove_notes(store, version.version)
