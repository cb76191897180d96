"""Exports: a file or directory is written under a hidden name beside its target, then renamed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final, Self

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, RefusedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.commit.publish.replaceable import check_directory
from edl_ckpt.core.state.owner import is_presumed_dead, owner_in
from edl_ckpt.core.storage.directories import remove_tree
from edl_ckpt.core.storage.faults import Access, storage_errors
from edl_ckpt.core.storage.files import exchange_names, flush_path, rename_new
from edl_ckpt.core.storage.interface import ObjectStore
from edl_ckpt.core.storage.local import is_gone, is_there
from edl_ckpt.core.storage.user_files import check_target

_OLD: Final = ".old"
_WORK: Final = ".work"
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
        self._is_published = False
        folder, name = os.path.split(target)
        self.path = os.path.join(folder, f".{name[:_NAME_PART]}.{new_id()}.edl-ckpt")
        self._folder = folder or "."
        self._others: list[str] = []
        """What goes too when the context ends."""

    def check(self) -> None:
        """Raise what entering raises before it makes anything."""
        check_target(self.target)
        with storage_errors(self._folder):
            os.stat(self._folder)
        if not self._force and is_there(self.target):
            raise RefusedError("exists already; nothing was changed", path=self.target, hint="--force replaces it")
        if self._force and is_there(self.target) and os.path.isdir(self.target) != self._is_directory:
            kinds = ("a file", "a directory") if self._is_directory else ("a directory", "a file")
            raise RefusedError(
                f"is {kinds[0]}, and this output is {kinds[1]}; nothing was changed",
                path=self.target,
                hint="choose another OUTPUT",
            )

    def __enter__(self) -> Self:
        with storage_errors(self._folder):
            _sweep_outputs(self._folder)  # which may bring back an older output
        self.check()
        if self._is_directory:
            with storage_errors(self.path):
                os.mkdir(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        for path in filter(None, (self.path, *self._others)):
            remove_tree(path)

    def share(self) -> str:
        """Make a directory for the work of other processes on the output, hidden beside it; return its absolute path.

        It is removed with the context, and by the next process that sweeps the outputs of a killed one.
        """
        path = os.path.abspath(f"{self.path}{_WORK}")
        with storage_errors(path):
            os.mkdir(path)
        self._others.append(path)
        return path

    def publish(self) -> None:
        """Move the output into its place; with `force`, an old one stays visible until the new one replaces it."""
        if self._is_directory:
            flush_path(self.path)
        with storage_errors(self._folder):
            folder = os.open(
                self._folder, os.O_RDONLY | os.O_CLOEXEC
            )  # now: once the output is visible, none may be free
        try:
            self._put_in_place()
            with storage_errors(self._folder):
                os.fsync(folder)
        finally:
            os.close(folder)

    def _put_in_place(self) -> None:
        with COMMIT:
            if not self._force or not is_there(self.target):
                rename_new(self.path, self.target)
            else:
                with storage_errors(self.target):
                    self._check_replaced(self.target, self.path, is_link=os.path.islink(self.target))
                    self._keep_access()
                    self._replace()
            self._is_published = True

    def retract(self, but: StagedOutput) -> None:
        """Remove what was published, unless another one was too, or it has replaced an older output."""
        if self._is_published and not but._is_published and not self._force:
            remove_tree(self.target)
            COMMIT.is_past = is_there(self.target)

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
        """Exchange both if the kernel can, and leave the old one for removal; or else use one rename, or two.

        The old directory is looked at once more where it has no place any more: what came into it after the first look
        brings it back.
        """
        is_link = os.path.islink(self.target)
        if exchange_names(self.path, self.target):
            try:
                self._check_replaced(self.path, self.target, is_link=is_link)
            except BaseException:
                old, self.path = self.path, ""  # where it cannot go back, it stays
                exchange_names(old, self.target)
                self.path = old
                raise
            return
        if not self._is_directory and not os.path.isdir(self.target):
            os.replace(self.path, self.target)
            return
        old = f"{self.path}{_OLD}"
        os.rename(self.target, old)
        try:
            self._check_replaced(old, self.path, is_link=is_link)
            os.rename(self.path, self.target)
        except BaseException as error:
            self._bring_back(old, error)
            raise
        self._others.append(old)

    def _bring_back(self, old: str, error: BaseException) -> None:
        """Move an earlier output back; where a job has made another one meanwhile, LockedError says where it is."""
        try:
            os.rename(old, self.target)
        except OSError:
            kept = f"{self.target}.{new_id()}"
            os.rename(old, kept)
            message = f"another process has made it meanwhile; the earlier output is in {kept}"
            raise LockedError(message, path=self.target) from error

    def _check_replaced(self, old: str, new: str, *, is_link: bool) -> None:
        if self._is_directory and not is_link:  # of a link, only the link goes
            check_directory(old, new, shown=self.target)


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


def work_name(name: str) -> str:
    """Return a new name beside an output for the work of other processes on it."""
    return f".{name[:_NAME_PART]}.{new_id()}.edl-ckpt{_WORK}"


def works_in(store: ObjectStore) -> list[str]:
    """Return the names of the work beside the outputs of a location without rename."""
    return [name for name in store.names("") if name.endswith(f".edl-ckpt{_WORK}") and owner_in(name)]


def sweep_work(store: ObjectStore, own: str = "") -> list[str]:
    """Remove the work of dead processes beside the outputs of a location without rename, and abort their uploads.

    An upload is theirs when it has the name of the output and began after the work, as services round to seconds. `own`
    is the work of the caller, which has begun no upload. Returns what was done, in words.
    """
    done: list[str] = []
    works = works_in(store)
    ages = {name: store.ages(name).values() or [0.0] for name in works}
    dead = {name for name in works if is_presumed_dead(owner_in(name), min(ages[name]))}
    with suppress(EdlCkptError):
        for name in dead:
            output = name[1:].rsplit(".", 3)[0]
            if any(other.startswith(f".{output}.") for other in ages.keys() - dead - {own}):
                continue  # one that lives writes the same output
            for each in store.open_uploads():
                top = each.relative.partition("/")[0]
                is_theirs = top == name or (top == output and each.age_seconds <= max(ages[name]) + 1)
                if is_theirs and store.abort_upload(each.relative, each.upload_id):
                    done.append(f"aborted an upload of {each.relative} that a killed export had left")
            store.remove_many(store.tree(name))
    return done
