"""Exports: a file or directory is written under a hidden name beside its target, then renamed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TypeVar

from edl_ckpt.core.commit.remote import UPLOAD_BYTES, send_files
from edl_ckpt.core.errors import EdlCkptError, RefusedError
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.parallel import impatient, run_parallel
from edl_ckpt.core.state.owner import is_presumed_dead, owner_in
from edl_ckpt.core.storage.access import Access
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import exchange, flush_directory, rename_new
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter
from edl_ckpt.core.storage.local import LocalReader, is_gone, is_there
from edl_ckpt.core.storage.regular import check_target
from edl_ckpt.core.storage.trees import remove_tree

_OLD: Final = ".old"
_WORK: Final = ".work"
_UPLOADS: Final = 16
"""Small files that are uploaded, and objects that are completed, at a time."""
Item = TypeVar("Item")
_NAME_PART: Final = 100
"""The characters of a target's name that its hidden name repeats: a name has 255 bytes at most."""


class StagedOutput:
    """A file or a directory that is written under a hidden name beside its target, and renamed when it is whole.

    A context manager; leaving it removes an output that was not published. Entering raises RefusedError when the target
    exists and `force` is False, or is neither a file nor a directory, NotFoundError when its directory does not exist.
    """

    def __init__(self, target: str, *, is_directory: bool, force: bool) -> None:
        self.target = target
        self._force = force
        self._is_directory = is_directory
        folder, name = os.path.split(target)
        self.path = os.path.join(folder, f".{name[:_NAME_PART]}.{new_id()}.edl-ckpt")
        self._folder = folder or "."
        self._others: list[str] = []

    def __enter__(self) -> Self:
        check_target(self.target)
        with storage_errors(self._folder):
            os.stat(self._folder)
        with storage_errors(self._folder):
            _sweep_outputs(self._folder)
        if not self._force and is_there(self.target):
            raise RefusedError("exists already; nothing was changed", path=self.target, hint="--force replaces it")
        if self._is_directory:
            with storage_errors(self.path):
                os.mkdir(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in (self.path, *self._others):
            remove_tree(path)

    def share(self) -> str:
        """Make a directory for the work of other processes on the output, hidden beside it; return its absolute path.

        It is removed with the context, and by whoever sweeps the outputs of a process that was killed.
        """
        path = os.path.abspath(f"{self.path}{_WORK}")
        with storage_errors(path):
            os.mkdir(path)
        self.also(path)
        return path

    def also(self, path: str) -> None:
        """Remove this path too when the context ends."""
        self._others.append(path)

    def publish(self) -> None:
        """Move the output into its place; with `force`, an old one stays visible until the new one replaces it."""
        if self._is_directory:
            flush_directory(self.path)
        if not self._force or not is_there(self.target):
            rename_new(self.path, self.target)
        else:
            with storage_errors(self.target):
                self._keep_access()
                self._replace()
        flush_directory(self._folder)

    def _keep_access(self) -> None:
        """Give the output the owner, mode and ACL of the one that it replaces, as far as this process may."""
        if os.path.isdir(self.target) != self._is_directory:
            return
        access = Access.of(self.target)
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            access.give(fd)
        finally:
            os.close(fd)

    def _replace(self) -> None:
        """Exchange both if the kernel can, and leave the old one for removal; or else use one rename, or two."""
        if not exchange(self.path, self.target):
            if not self._is_directory and not os.path.isdir(self.target):
                os.replace(self.path, self.target)
                return
            old = f"{self.path}{_OLD}"
            os.rename(self.target, old)
            try:
                os.rename(self.path, self.target)
            except BaseException:
                os.rename(old, self.target)
                raise
            self.also(old)


def _sweep_outputs(folder: str) -> None:
    """Remove abandoned outputs in a folder: hidden names that end as ours do, of dead processes."""
    for name in os.listdir(folder):
        owner = owner_in(name) if name.startswith(".") and ".edl-ckpt" in name else {}
        path = os.path.join(folder, name)
        with suppress(OSError):
            if not owner or not is_presumed_dead(owner, time.time() - os.lstat(path).st_mtime):
                continue
            target = os.path.join(folder, name[1:].rsplit(".", 3)[0])
            if name.endswith(_OLD) and is_gone(target):  # killed between two renames
                if len(os.path.basename(target)) < _NAME_PART:
                    os.rename(path, target)
                continue
            remove_tree(path)


def put_files(store: ObjectStore, files: Mapping[str, str], *, replace: bool) -> None:
    """Upload local files, given by their paths below the location, and make them visible right after all of them.

    Names must be free unless `replace` is True. A failure before the first file is visible changes nothing; a later one
    leaves the files that are complete. Large files go part by part, small ones several at a time.
    """
    objects: list[ObjectWriter] = []

    def send(relative: str) -> None:
        with LocalReader(files[relative]) as reader:
            item = store.new_object(relative, reader.size_bytes)
            objects.append(item)
            item.begin()
            if reader.size_bytes > UPLOAD_BYTES:
                send_files([(reader, item)])
            else:
                item.write(0, reader.read(0, reader.size_bytes))
            item.finish()

    def each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
        for _ in run_parallel(function, items, _UPLOADS):
            pass

    large = [relative for relative, path in files.items() if os.path.getsize(path) > UPLOAD_BYTES]
    try:
        for relative in large:
            send(relative)
        each(send, sorted(files.keys() - set(large)))
        each(lambda item: item.complete(replace=replace), objects)
    except BaseException as error:
        with impatient(error):
            for item in objects:
                with suppress(EdlCkptError):
                    item.abort()
        raise
