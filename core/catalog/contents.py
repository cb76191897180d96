"""The directory of a version as it is before a command reads it: what the command accounts for, entry by entry.

Each entry is written anew, because the format of the system has it, or goes along as it is, or the command refuses. No
link is followed: it may lead to a file that others must not see. Before the directory goes, it is looked at again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from edl_ckpt.core.base.errors import LockedError, NotFoundError, RefusedError
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.beneath import Directory, close_read
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.local import LocalReader, file_mark
from edl_ckpt.core.storage.tree import Kind, Tree, difference
from edl_ckpt.core.storage.walk import local_tree


@dataclass(frozen=True, slots=True)
class Contents:
    """A version, and every entry below its directory; none for a version that is files side by side."""

    version: Version
    tree: Tree

    @staticmethod
    def of(version: Version) -> Contents:
        """Return the contents of a version now; RefusedError for what can neither be written anew nor carried.

        Those are pipes, sockets and devices, and what is mounted there. Raises the errors of listing a directory.
        """
        contents = Contents(version, _tree(version))
        for path, entry in contents.tree.items():
            if entry.kind.is_special:
                raise RefusedError(
                    f"contains {entry.kind} ({escaped(path)}), which no command copies; nothing was changed",
                    path=version.path,
                    hint="move it away, and try again",
                )
        return contents

    @property
    def files(self) -> Mapping[str, int]:
        """Return the regular files with their sizes."""
        return {path: entry.size_bytes for path, entry in self.tree.items() if entry.kind is Kind.FILE}

    @property
    def is_local(self) -> bool:
        """Return True for a directory on a disk."""
        return self.version.location.local_path is not None

    def all_but(self, own: Collection[str]) -> tuple[str, ...]:
        """Return the paths that are neither of these files nor directories: what goes along, but for directories."""
        return tuple(path for path, entry in self.tree.items() if path not in own and entry.kind is not Kind.DIRECTORY)

    def check_only(self, own: Collection[str], hint: str) -> None:
        """Raise RefusedError, which names the first of them, where there is anything but these files."""
        for path in self.tree:
            if path not in own:
                what = f"contains {self.tree[path].kind} that is none of its shards ({escaped(path)})"
                raise RefusedError(f"{what}; nothing was changed", path=self.version.path, hint=hint)

    @contextmanager
    def open(self, path: str) -> Iterator[RangeReader]:
        """Open a file of the tree, on no way over a link; LockedError when it is another one by now."""
        full = self.version.path_of(path)
        if not self.is_local:
            with open_store(self.version.location).open(full) as remote:
                yield remote
            return
        try:
            with Directory.open(self.version.path) as top, top.above(path) as (folder, name), storage_errors(full):
                fd = folder.open_file(name, os.O_RDONLY)
        except NotFoundError:
            raise self._changed(path) from None
        try:
            if file_mark(os.fstat(fd)) != self.tree[path].mark:
                raise self._changed(path)
            with open(fd, "rb", closefd=False) as file, LocalReader(full, file) as reader:
                yield reader
        finally:
            close_read(fd)

    def check_unchanged(self, but: Collection[str] = ()) -> None:
        """Raise LockedError, which names the first of them, when an entry is new, gone or another one by now.

        `but` are files that the caller has written there itself, perhaps in directories that it made.
        """
        own = set(but)
        for path in but:
            own.update(map(str, PurePosixPath(path).parents))
        before = {name: entry for name, entry in self.tree.items() if name not in own}
        now = {name: entry for name, entry in _tree(self.version).items() if name not in own}
        changed = difference(before, now)
        if changed:
            raise self._changed(changed)

    def _changed(self, path: str) -> LockedError:
        return LockedError(
            "changed while the version was being rewritten: another process writes there; nothing was replaced",
            path=self.version.path_of(path),
            hint="try again when the job has finished saving",
        )


def _tree(version: Version) -> Tree:
    is_directory = version.layout.name == "directory" if version.is_alone else not version.layout.loose
    if not is_directory:
        return {}
    if version.location.local_path is not None:
        with Directory.open(version.path) as top:
            return local_tree(top)
    store = open_store(version.location)
    top_path = store.path("").rstrip("/")
    return store.raw_tree(version.path.removeprefix(top_path).strip("/"))
