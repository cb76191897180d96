"""Where a server's shard goes: the layout of the location, and a directory in which nothing is in the way."""

from __future__ import annotations

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import list_versions, look_at
from edl_ckpt.core.catalog.target import choose_layout, layouts_at
from edl_ckpt.core.commit.kinds import kind_of
from edl_ckpt.core.commit.repair.notes import remove_notes
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.shard import ShardPlace
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.sources.elasticdl.target import writable_layout
from edl_ckpt.core.sources.registry import shard_named
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.storage import Location


class Places:
    """The places of one server's shards. The layout is chosen at the first save, as every server chooses it.

    Without `layout` it is the one that is at the location, else 'design'. So servers that start together in an empty
    location agree, in whatever order.
    """

    def __init__(
        self, location: Location, layout: str | None, ps_id: int, ps_num: int, wait_seconds: float, reporter: Reporter
    ) -> None:
        self._location = location
        self._asked = layout
        self._ps_id = ps_id
        self._ps_num = ps_num
        self._wait_seconds = wait_seconds
        self._reporter = reporter
        self._layout: Layout | None = None
        if layout is not None:
            writable_layout(layout)

    def of(self, number: int) -> ShardPlace:
        """Return the place of the shard of a version.

        Raises RefusedError when the number is taken by another layout, or by a version of another number of servers
        that is complete or has a tag; the shards of such a version that is neither go to the trash.
        """
        store = open_location(self._location)
        names = list(store.names(""))
        if any(map(shard_named, names)):
            raise UsageError("is one version's directory", path=self._location.url, hint="name the directory it is in")
        if self._layout is None:
            layout, warnings = choose_layout(self._location, layouts_at(store), self._asked)
            for warning in warnings:
                self._reporter.warn(warning)
            self._layout = layout
        place = ShardPlace(store, self._layout, number, self._ps_id, self._ps_num)
        place.check_number(names)
        if place.directory in names:
            self._check_directory(place)
        return place

    def _check_directory(self, place: ShardPlace) -> None:
        """See to it that the version's directory has no shards of another number of servers."""
        if not place.other_shards():
            return
        lock = location_lock(self._location, "save a shard", wait_seconds=self._wait_seconds, reporter=self._reporter)
        with lock:
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
            self._reporter.warn(
                f"{version.ref}: a run of {version.ps_num} servers had not finished it; it was removed"
                + (", and is in the trash" if store.properties.trash else "")
            )

    def _is_protected(self, number: int) -> bool:
        """Say whether a version has a tag, or metadata that cannot be read and may have one."""
        versions = list_versions(self._location, known=Known()).versions
        return any(v.version == number and bool(v.tags or v.metadata_fault) for v in versions)
