"""A directory as it is: every entry below it, hidden ones and links as links, with what tells each from a later one.

A listing of versions shows what formats understand. A command that replaces, rewrites or copies a directory accounts
for the entries here, and compares them again before it removes the old directory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.storage.links import Identity

if TYPE_CHECKING:  # it has entries of listings, and its stores have trees
    from edl_ckpt.core.storage.interface import Entry

MOST_ENTRIES: Final = 1 << 20
"""No directory of a checkpoint has more entries; so a look at one ends."""
MOST_DEPTH: Final = 200
"""Nor more directories in one another."""


class Kind(enum.StrEnum):
    """What an entry is."""

    FILE = "a file"
    DIRECTORY = "a directory"
    LINK = "a symbolic link"
    MOUNT = "a mount point"
    PIPE = "a pipe"
    SOCKET = "a socket"
    DEVICE = "a device"

    @property
    def is_special(self) -> bool:
        """Return True for what no command of ours copies: it has no content, or that of another file system."""
        return self not in {Kind.FILE, Kind.DIRECTORY, Kind.LINK}


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry below a directory: the bytes of a file, where a link leads, and a mark that a change changes."""

    kind: Kind
    size_bytes: int = 0
    mark: str = ""
    leads_to: str = ""
    modified: float = field(default=0.0, compare=False)
    """In seconds since the epoch; the mark of a file has it too, and a directory's says only that an entry changed."""
    identity: Identity | None = field(default=None, compare=False)
    """The file itself, whatever its name; None on object storage, where each name has a file of its own."""
    names: int = field(default=1, compare=False)
    """How many names the file has: hard links share it, and lose nothing when one of them goes."""

    @property
    def is_folder(self) -> bool:
        """Return True for a directory, also where a file system is mounted: without its entries it holds nothing."""
        return self.kind in {Kind.DIRECTORY, Kind.MOUNT}


Tree: TypeAlias = Mapping[str, TreeEntry]
"""All entries below a directory by their paths in it; each directory comes before its entries."""


def difference(before: Tree, now: Tree) -> str:
    """Return the first path that is new, gone or another thing than before; '' for none.

    >>> one, two = TreeEntry(Kind.FILE, 5, "a"), TreeEntry(Kind.FILE, 5, "b")
    >>> difference({"x": one}, {"x": one}), difference({"x": one}, {"x": two}), difference({}, {"y": one})
    ('', 'x', 'y')
    """
    if before == now:
        return ""
    return min(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def digest_of(tree: Tree) -> str:
    """Return a digest of all entries: another one means that something has changed."""
    import hashlib  # a listing does without it

    rows = sorted((path, e.kind.value, e.size_bytes, e.mark, e.leads_to) for path, e in tree.items())
    return hashlib.blake2b(repr(rows).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def object_tree(directory: str, entries: Iterable[Entry]) -> dict[str, TreeEntry]:
    """Return the tree of objects below a directory, from a listing of them; each object counts as a file.

    A listing that cannot show a part of it raises the error of that part.
    """
    tree: dict[str, TreeEntry] = {}
    start = f"{directory}/" if directory else ""
    for entry in entries:
        if not entry.relative.startswith(start):
            continue
        if entry.fault is not None:
            raise entry.fault.error()
        path = entry.relative[len(start) :]
        if path.endswith("/") and not entry.size_bytes:  # as consoles of S3 write directories
            tree[path.rstrip("/")] = TreeEntry(Kind.DIRECTORY)
        elif not path and entry.relative.endswith("/") and entry.size_bytes:  # no console writes bytes there
            tree["/"] = TreeEntry(Kind.FILE, entry.size_bytes, entry.mark, modified=entry.modified)
        elif path and not entry.is_dir:
            mark = entry.mark or f"{entry.size_bytes}-{entry.modified}"
            tree[path] = TreeEntry(Kind.FILE, entry.size_bytes, mark, modified=entry.modified)
    return tree


def too_large(path: str) -> RefusedError:
    """Return why a directory is not looked at to its end."""
    bounds = f"{MOST_ENTRIES:,} entries, or over {MOST_DEPTH} directories in one another"
    return RefusedError(f"has over {bounds}: nothing was changed", path=path)
