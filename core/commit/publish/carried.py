"""What goes along in a new directory: links as links, every directory, and of files all but their bytes.

In the place of an old version each keeps owner, group, mode, ACL, attributes and time, and so do directories that are
made anew. A copy belongs to whoever makes it: there entries keep mode, attributes and time, and nobody else may read
more than before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.storage.beneath import Directory, close_read
from edl_ckpt.core.storage.faults import Access, give_attributes, storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.tree import Kind

_PERMISSIONS = 0o777


@dataclass(frozen=True, slots=True)
class Carrying:
    """The entries of a directory that go along into another one; `in_place` when that takes its place."""

    contents: Contents
    names: frozenset[str]
    """Files and links."""
    in_place: bool

    @property
    def directories(self) -> list[str]:
        """Return the directories, each before those in it."""
        return [path for path, entry in self.contents.tree.items() if entry.kind is Kind.DIRECTORY]

    def protect(self, path: str, file: PreallocatedFile) -> tuple[str, ...]:
        """Give a file the access of the one at its path before there is anything to read in it; return what is lost."""
        if not self.contents.is_local:
            return ()
        with self._top() as top, self._opened(top, path) as old, storage_errors(file.path):
            return file.give(self._access(old, file.descriptor, path))

    def finish(self, inside: Directory) -> set[str]:
        """Make links and directories, and give everything its access and time; return what could not be kept."""
        lost: set[str] = set()
        if not self.contents.is_local:
            for path in self.directories:
                inside.enter(path, make=True).close()
            return lost
        with self._top() as top:
            tree = self.contents.tree
            for path in sorted(self.names, reverse=True):
                with inside.above(path, make=True) as (folder, name):
                    if tree[path].kind is Kind.LINK:
                        lost |= self._link(top, path, folder, name)
                    else:
                        lost |= self._settle(top, path, folder, name)
            for path in self.directories:
                inside.enter(path, make=True).close()
            for path in reversed(self.directories):  # a directory gets its time after what is in it
                with top.enter(path) as old, inside.enter(path) as new:
                    lost |= self._give(old.fd, new.fd, new.path)
        return lost

    @contextmanager
    def _top(self) -> Iterator[Directory]:
        with Directory.open(self.contents.version.path) as top:
            yield top

    @contextmanager
    def _opened(self, top: Directory, path: str) -> Iterator[int]:
        with ExitStack() as stack:
            folder, name = stack.enter_context(top.above(path))
            with storage_errors(folder.join(name)):
                fd = folder.open_file(name, os.O_RDONLY)
            stack.callback(close_read, fd)
            yield fd

    def _access(self, old: int, new: int, path: str) -> Access:
        access = Access.of(path, old)
        if self.in_place:
            return access
        made = os.fstat(new)
        return access._replace(
            uid=made.st_uid, gid=made.st_gid, mode=access.mode & _PERMISSIONS, acl=None, default_acl=None
        )

    def _settle(self, top: Directory, path: str, folder: Directory, name: str) -> set[str]:
        with self._opened(top, path) as old:
            new = folder.open_file(name, os.O_RDONLY)
            try:
                return self._give(old, new, folder.join(name))
            finally:
                close_read(new)

    def _give(self, old: int, new: int, path: str) -> set[str]:
        with storage_errors(path):
            lost = {*self._access(old, new, path).give(new)}
            if not give_attributes(old, new):
                lost.add("attributes")
            times = os.fstat(old)
            os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
        return lost

    def _link(self, top: Directory, path: str, folder: Directory, name: str) -> set[str]:
        with top.above(path) as (old_folder, old_name), storage_errors(folder.join(name)):
            state = os.stat(old_name, dir_fd=old_folder.fd, follow_symlinks=False)
            folder.remove(name)  # the one of an interrupted copy that goes on, which may be out of date
            os.symlink(self.contents.tree[path].leads_to, name, dir_fd=folder.fd)
            made = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            is_other = (made.st_uid, made.st_gid) != (state.st_uid, state.st_gid)
            lost: set[str] = set()
            if self.in_place and is_other:
                try:
                    os.chown(name, state.st_uid, state.st_gid, dir_fd=folder.fd, follow_symlinks=False)
                except PermissionError:
                    lost = {"owner"}
            times = (state.st_atime_ns, state.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=folder.fd, follow_symlinks=False)
        return lost
