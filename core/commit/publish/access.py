"""Keeping owner, group, mode and ACLs when a version takes the place of another one on a local disk."""

from __future__ import annotations

from collections.abc import Sequence

from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.storage.access import Access, inherit_as
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile


class OldAccess:
    """The access of a version that is replaced, for the one that takes its place; warns once of what is lost."""

    def __init__(self, old: Version, reporter: Reporter) -> None:
        self._old = old
        self._reporter = reporter
        self._warned = False
        self._shards: list[Access] = []
        for shard in old.shards:
            with storage_errors(shard.path):
                self._shards.append(Access.of(shard.path))
        with storage_errors(old.path):
            self._directory = Access.of(old.path)

    def give_file(self, shard: int, file: PreallocatedFile) -> None:
        """Give a new shard the access of the old one with its number; more shards than before get the first one's."""
        if self._shards:
            self._warn(file.give(self._shards[shard if shard < len(self._shards) else 0]))

    def give_directory(self, directory: Directory) -> None:
        """Give the new directory the access of the old one, once all files are in it."""
        with storage_errors(directory.path):
            self._warn(self._directory.give(directory.fd))

    def _warn(self, lost: Sequence[str]) -> None:
        if lost and not self._warned:
            self._warned = True
            self._reporter.warn(
                f"{self._old.path}: this user cannot keep the {' and '.join(lost)} of the replaced files;"
                " the new files have those of this process"
            )


def inherit_access(place: Directory, stage: Directory) -> None:
    """Let new files in a staging directory inherit what they would inherit in the location itself."""
    with storage_errors(stage.path):
        inherit_as(place.fd, stage.fd)
