"""The version that a server's shard belongs to: where the shard goes, and the seal once all shards are there.

The last server to arrive seals the version, from the notes of all of them. Several servers may think that they are the
last. They take turns at the lock of the location, and the second finds the seal of the first. A server that cannot seal
has still saved its shard, so this raises nothing: the next server that seals a version also seals the ones before it
that were left.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.job import Reporter
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.grouping import look_at
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.target import choose_layout, layouts_at
from edl_ckpt.core.commit.kinds import kind_of
from edl_ckpt.core.commit.repair.notes import noted_versions, remove_notes, sweep_notes
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.shard import SHARD_PURPOSE, ShardPlace
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.proof.noted_seal import seal_from_notes
from edl_ckpt.core.sources.elasticdl.target import writable_layout
from edl_ckpt.core.sources.registry import shard_named
from edl_ckpt.core.state.holder import write_proved
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.metadata import sealed_versions
from edl_ckpt.core.state.paths import META_DIR, seal_file
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.state.shard_note import NoteName, ShardNote
from edl_ckpt.core.storage import Location, Store


@dataclass(slots=True)
class ShardServer:
    """One server of a job, and where its shards go.

    The layout is chosen at the first save, as every server chooses it: the one `asked` for, else the one that is at the
    location, else 'design'. So servers that start together in an empty location agree, in whatever order.
    """

    location: Location
    asked: str | None
    ps_id: int
    ps_num: int
    wait_seconds: float
    reporter: Reporter
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.asked is not None:
            writable_layout(self.asked)

    def lock(self, purpose: str, *, create: bool = False) -> AbstractContextManager[object]:
        """Return the lock of the location, for which the server waits."""
        return location_lock(
            self.location, purpose, create=create, wait_seconds=self.wait_seconds, reporter=self.reporter
        )

    def place(self, number: int) -> ShardPlace:
        """Return the place of the shard of a version.

        Raises RefusedError when the number is taken by another layout, or by a version of another number of servers
        that is complete or has a tag; the shards of such a version that is neither go to the trash.
        """
        store = open_location(self.location)
        names = list(store.names(""))
        if any(map(shard_named, names)):
            raise UsageError("is one version's directory", path=self.location.url, hint="name the directory it is in")
        if self.layout is None:
            layout, warnings = choose_layout(self.location, layouts_at(store), self.asked)
            for warning in warnings:
                self.reporter.warn(warning)
            self.layout = layout
        place = ShardPlace(store, self.layout, number, self.ps_id, self.ps_num)
        place.check_number(names)
        if place.directory in names:
            self._check_directory(place)
        return place

    def _check_directory(self, place: ShardPlace) -> None:
        """See to it that the version's directory has no shards of another number of servers."""
        if not place.other_shards():
            return
        with self.lock(SHARD_PURPOSE):
            others = place.other_shards()
            if not others:  # another server of this run was here
                return
            version = look_at(place.store, place.directory)
            unfinished = version is not None and version.state in {State.INCOMPLETE, State.WRITING}
            if version is None or not unfinished or version.extra or self._is_protected(place.version):
                raise place.refuse_directory(others[0])
            store = place.store
            removal = kind_of(store).trash.delete([version], keep=store.properties.trash)
            for _, error in removal.failed:
                raise error
            remove_notes(store, place.version)
            self.reporter.warn(
                f"{version.ref}: a run of {version.ps_num} servers had not finished it; it was removed"
                + (", and is in the trash" if store.properties.trash else "")
            )

    def _is_protected(self, number: int) -> bool:
        """Say whether a version has a tag, or metadata that cannot be read and may have one."""
        versions = list_versions(self.location, known=Known()).versions
        return any(v.version == number and bool(v.tags or v.metadata_fault) for v in versions)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Whether a version had all its shards after a save, and whether it is sealed."""

    complete: bool
    sealed: bool = False
    by_us: bool = False
    """True for the server that wrote the seal."""


def seal_if_whole(server: ShardServer, place: ShardPlace, own: tuple[NoteName, ShardNote]) -> Sealing:
    """Seal a version when all its shards are there; `own` is the note on the shard that was just saved."""
    try:
        names = place.store.names(place.directory)
        if set(names) != {place.layout.shard_file(i, place.ps_num) for i in range(place.ps_num)}:
            return Sealing(complete=False)
        with server.lock("seal"):
            return _seal_all(place, own)
    except EdlCkptError as error:
        server.reporter.warn(f"{place.store.location}@{place.version} is saved, but not sealed: {error}")
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
            version = look_at(store, place.layout.version_dir(number))
            if version is not None and version.state is State.COMPLETE:
                with suppress(EdlCkptError):  # a mixture, say, of which `verify` tells
                    _write_seal(store, version)
    sweep_notes(store)
    return done


def _write_seal(store: Store, version: Version, own: tuple[NoteName, ShardNote] | None = None) -> None:
    write_proved(store, seal_file(version.version), seal_bytes(seal_from_notes(store, version, own=own)))
    remove_notes(store, version.version)
