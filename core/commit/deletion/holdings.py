"""All entries in the directory of a version: a deletion takes them along, and guards ask what leads into it.

No link is followed, and nothing is left out: hidden directories, links, pipes and what lies deeper than any checkpoint
are there. A place where a file system is mounted is named, and not entered.

Guards reason about files: two names may lead to one file, over links or over a mount. So an entry has the identity of
its file, and `leads_to` has the identity of each thing that a version depends on.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.side_files import is_of_a_host
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import ListedRow, MarkedStore, flat_listing
from edl_ckpt.core.storage.links import Identity, led_through
from edl_ckpt.core.storage.tree import Kind, Tree, TreeEntry, object_tree
from edl_ckpt.core.storage.walk import entry_of, local_tree


@dataclass(frozen=True)
class Holdings:
    """Everything that goes when a version is deleted, by its path in the version's directory, in order."""

    entries: Tree
    mounts: tuple[str, ...] = ()
    """The directories in it where a file system is mounted: a deletion goes into none of them."""
    top: Identity | None = None
    """The identity of the directory, or of the link, that the version is; None for files side by side."""

    @cached_property
    def size_bytes(self) -> int:
        """Return the bytes of all files; what links lead to is not among them."""
        return sum(entry.size_bytes for entry in self.entries.values())

    @cached_property
    def names(self) -> list[str]:
        """Return the paths of all that is no directory."""
        return [path for path, entry in self.entries.items() if not entry.is_folder]

    @cached_property
    def empty_folders(self) -> list[str]:
        """Return the paths of directories without an entry, but not those where a file system is mounted."""
        above = {path.rpartition("/")[0] for path in self.entries}
        return [path for path, one in self.entries.items() if one.kind is Kind.DIRECTORY and path not in above]

    @cached_property
    def identities(self) -> frozenset[Identity]:
        """Return what goes, by the identities of files and directories."""
        own = {entry.identity for entry in self.entries.values() if entry.identity is not None}
        return frozenset(own if self.top is None else own | {self.top})

    def is_like(self, other: Holdings) -> bool:
        """Say whether both have the same entries, by their digests; equal marks say so at a fifth of the cost."""
        return self.entries == other.entries or self.digest == other.digest

    @cached_property
    def digest(self) -> str:
        """Return a digest of names, kinds, sizes and times; what hosts leave there and take away does not count."""
        facts = [
            (path, entry.kind.value, entry.size_bytes, entry.modified)
            for path, entry in sorted(self.entries.items())
            if not entry.is_folder and not is_of_a_host(path)
        ]
        facts += [(path, Kind.DIRECTORY.value, 0, 0.0) for path in sorted(self.empty_folders) if not is_of_a_host(path)]
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def holdings(
    store: LocalStore | ObjectStore, version: Version, mounts: frozenset[str], known: Tree | None = None
) -> Holdings:
    """Return what goes when a version is deleted: of a link, only the link; `mounts` are all mount points.

    `known` is the tree of its directory on object storage, where it was listed just now.

    Raises the error of listing any directory in it.
    """
    if version.is_file:
        return Holdings(_of_files(version))
    name = version.path.rpartition("/")[2]
    if version.location.local_path is None:
        return Holdings(store.raw_tree(name) if known is None else known)
    top = _state_of(version.path)
    if top is None:
        return Holdings({})
    identity = (top.st_dev, top.st_ino)
    if not stat.S_ISDIR(top.st_mode):
        return Holdings({}, top=identity)
    with Directory.open(version.path) as directory:
        tree = local_tree(directory, mounts)
    mounted = [path for path, entry in tree.items() if entry.kind is Kind.MOUNT]
    own = [""] if name in _last_names(mounts) and os.path.realpath(version.path) in mounts else []
    return Holdings(tree, (*own, *mounted), identity)


@lru_cache(maxsize=1)  # they are the same for each of a thousand versions
def _last_names(mounts: frozenset[str]) -> frozenset[str]:
    """Return the last parts of the paths of mount points."""
    return frozenset(point.rpartition("/")[2] for point in mounts)


def object_trees(store: MarkedStore, names: Sequence[str]) -> dict[str, Tree]:
    """Return the trees of directories that are named, from one listing of the location; {} where that has no end soon.

    A tree by itself takes a request. So the listing may take a quarter as many, and a thousand objects come with each.
    """
    rows: dict[str, list[ListedRow]] = {name: [] for name in names}
    token = ""
    for _ in range(len(names) // 4):
        page = store.page(token=token)
        for row in page.rows:
            mine = rows.get(row[0].partition("/")[0])
            if mine is not None and "/" in row[0]:
                mine.append(row)
        token = page.token
        if not token:
            return {name: object_tree(name, flat_listing(store, own, lambda _: True)) for name, own in rows.items()}
    return {}


def _of_files(version: Version) -> dict[str, TreeEntry]:
    """Return the files of a version that lie side by side in its location."""
    if version.location.local_path is None:
        files = {version.name_of(file.path): file for file in version.files}
        return {n: TreeEntry(Kind.FILE, f.size_bytes, modified=f.modified) for n, f in files.items()}
    found = {}
    for name in sorted(version.names_inside):
        state = _state_of(version.path_of(name))
        if state is not None:
            found[name] = entry_of(state)
    return found


def _state_of(path: str) -> os.stat_result | None:
    """Return what has a path, a link itself; None when nothing has it."""
    with storage_errors(path):
        try:
            return os.lstat(path)
        except FileNotFoundError:
            return None


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
    for path, entry in held.entries.items():
        if entry.kind is Kind.LINK:
            inside = path if version.is_file else f"{name}/{path}"
            for identity in led_through(version.path_of(path)):
                found.setdefault(identity, inside)
        elif entry.identity is not None and (entry.is_folder or entry.names == 1):
            found.setdefault(entry.identity, f"{name}/{path}")
    return found


def leads_to_by_names(version: Version) -> dict[Identity, str]:
    """Return what `leads_to` returns for a version whose directory cannot be listed, as far as its listing names files.

    Raises the error of looking at one of them.
    """
    if version.location.local_path is None:
        return {}
    name = version.path.rpartition("/")[2]
    found: dict[Identity, str] = {}
    for path in ("", *sorted(version.names_inside)):
        inside = "/".join(filter(None, ("" if version.is_file else name, path)))
        for identity in led_through(version.path_of(path) if path else version.path):
            found.setdefault(identity, inside)
    return found
