"""What the directory of a version holds, all of it: what a deletion would take along, and what leads into it.

No link is followed, and nothing is left out: hidden directories, links, pipes and what lies deeper than any checkpoint
are there. A place where a file system is mounted is named, and not entered.

Guards reason about files: two names may lead to one file, over links or over a mount. So an entry has the identity of
its file, and `leads_to` has the identity of each thing that a version depends on.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.companions import is_of_a_host
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore
from edl_ckpt.core.storage.beneath import kind_of
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import Entry, lists_marks
from edl_ckpt.core.storage.links import Identity, led_through

_FILE: Final = "a file"
_DIRECTORY: Final = "a directory"
LINK: Final = "a symbolic link"


@dataclass(frozen=True, slots=True)
class Held:
    """One entry below the directory of a version: its path there, and what it is; links are not followed."""

    path: str
    kind: str
    """In words, as `kind_of` says: a file, a directory, a symbolic link, a pipe."""
    size_bytes: int
    modified: float
    identity: Identity | None = None
    """None on object storage, where each name has a file of its own."""
    names: int = 1
    """How many names the file has: hard links share it, and lose nothing when one of them goes."""

    @property
    def is_directory(self) -> bool:
        """Return True for a directory: without its entries it holds nothing."""
        return self.kind == _DIRECTORY


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything that goes when a version is deleted, by its path in the version's directory, in order."""

    entries: tuple[Held, ...]
    mounts: tuple[str, ...] = ()
    """The directories in it where a file system is mounted: a deletion goes into none of them."""
    top: Identity | None = None
    """The identity of the directory, or of the link, that the version is; None for files side by side."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files; what links lead to is not among them."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def names(self) -> list[str]:
        """Return the paths of all that is no directory."""
        return [entry.path for entry in self.entries if not entry.is_directory]

    @property
    def identities(self) -> frozenset[Identity]:
        """Return what goes, by the identities of files and directories."""
        own = {entry.identity for entry in self.entries if entry.identity is not None}
        return frozenset(own if self.top is None else own | {self.top})

    @property
    def digest(self) -> str:
        """Return a digest of names, kinds, sizes and times; what hosts leave there and take away does not count."""
        facts = [
            (entry.path, entry.kind, entry.size_bytes, entry.modified)
            for entry in self.entries
            if not entry.is_directory and not is_of_a_host(entry.path)
        ]
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def holdings(store: LocalStore | ObjectStore, version: Version, mounts: frozenset[str] = frozenset()) -> Holdings:
    """Return what goes when a version is deleted: of a link, only the link; `mounts` are all mount points.

    Raises the error of listing any directory in it.
    """
    if version.location.local_path is None:
        return Holdings(tuple(_of_objects(store, version)))
    if version.is_file:
        found = (_held(name, version.path_of(name)) for name in sorted(version.names_inside))
        return Holdings(tuple(each for each in found if each is not None))
    top = _held("", version.path)
    if top is None:
        return Holdings(())
    if not top.is_directory:
        return Holdings((), top=top.identity)
    inside, mounted = _walk(version.path, mounts)
    return Holdings(tuple(inside), tuple(mounted), top.identity)


def _of_objects(store: LocalStore | ObjectStore, version: Version) -> Iterator[Held]:
    """Yield the objects of a version on object storage."""
    if version.is_file:
        names = {file.path: version.name_of(file.path) for file in version.files}
        yield from (Held(names[file.path], _FILE, file.size_bytes, file.modified) for file in version.files)
        return
    directory = version.path.rpartition("/")[2]
    for entry in sorted(_entries_below(store, directory), key=lambda entry: entry.relative):
        if entry.fault is not None:
            raise entry.fault.error()
        path = entry.relative[len(directory) + 1 :]
        if path and entry.name and not entry.is_dir:  # consoles write objects named DIRECTORY/
            yield Held(path, _FILE, entry.size_bytes, entry.modified)


def _entries_below(store: LocalStore | ObjectStore, directory: str) -> list[Entry]:
    below = f"{directory}/"
    if lists_marks(store):
        found = store.below(directory, lambda _: True)
    else:
        found = store.entries(lambda inside: inside == directory or inside.startswith(below))
    return [entry for entry in found if entry.relative.startswith(below)]


def _held(path: str, full: str) -> Held | None:
    """Return what has a path, a link itself; None when nothing has it."""
    with storage_errors(full):
        try:
            state = os.lstat(full)
        except FileNotFoundError:
            return None
    return _as_held(path, state)


def _as_held(path: str, state: os.stat_result) -> Held:
    size = state.st_size if stat.S_ISREG(state.st_mode) else 0
    identity = (state.st_dev, state.st_ino)
    return Held(path, kind_of(state.st_mode), size, state.st_mtime, identity, state.st_nlink)


def _walk(top: str, mounts: frozenset[str]) -> tuple[list[Held], list[str]]:
    """Return everything below a directory, and the places in it where a file system is mounted."""
    real = os.path.realpath(top)
    entries: list[Held] = []
    mounted: list[str] = [""] if real in mounts else []
    folders = deque([""])
    while folders:
        folder = folders.popleft()
        place = os.path.join(top, folder) if folder else top
        with storage_errors(place), os.scandir(place) as found:
            states = sorted((item.name, item.stat(follow_symlinks=False)) for item in found)
        for name, state in states:
            path = f"{folder}/{name}" if folder else name
            held = _as_held(path, state)
            entries.append(held)
            if f"{real}/{path}" in mounts:
                mounted.append(path)
            elif held.is_directory:
                folders.append(path)
    return sorted(entries, key=lambda entry: entry.path), mounted


def leads_to(location: Location, version: Version, held: Holdings) -> dict[Identity, str]:
    """Return the identities of all that a version needs, each with the path in the location that leads there.

    These are its own files and directories, and whatever links in it lead through. A file with several names is not
    among them by its own name: it stays as long as one of them does. Nothing on object storage, which has no links.
    """
    if location.local_path is None:
        return {}
    name = version.path.rpartition("/")[2]
    found: dict[Identity, str] = {}
    if not version.is_file:
        for identity in led_through(version.path):
            found.setdefault(identity, name)
    for entry in held.entries:
        if entry.kind == LINK:
            inside = entry.path if version.is_file else f"{name}/{entry.path}"
            for identity in led_through(version.path_of(entry.path)):
                found.setdefault(identity, inside)
        elif entry.identity is not None and (entry.is_directory or entry.names == 1):
            found.setdefault(entry.identity, f"{name}/{entry.path}")
    return found
