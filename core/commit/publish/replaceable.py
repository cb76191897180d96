"""What an output may replace when a user says so: the files of an earlier output of the same kind, and nothing else.

Nothing records what an export made. Its names tell: each entry of the old directory has the path of a new one, but for
the numbers in it, which count parts and ranks. Where the directory itself has an ending, as `model.npy` has, files with
that ending are of an export too. Any other entry is of somebody, and there is no trash to bring it back.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Final

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.tree import Kind, Tree
from edl_ckpt.core.storage.walk import local_tree

_NUMBER: Final = re.compile(r"\d+")


def check_names(old: Iterable[str], new: Iterable[str], path: str) -> None:
    """Raise RefusedError, which names the first of them, for an old path that no new one is like.

    >>> check_names(["a-00003-of-00004.parquet"], ["a-00001-of-00002.parquet"], "out")
    >>> check_names(["old.npy"], ["new.npy"], "model.npy")
    """
    known = {_NUMBER.sub("0", name) for name in new}
    ending = posixpath.splitext(path.rstrip("/"))[1]
    for name in sorted(old):
        is_named = bool(ending) and name.endswith(ending) and not name.rpartition("/")[2].startswith(".")
        if _NUMBER.sub("0", name) not in known and not is_named:
            raise _foreign(name, path)


def check_directory(old: str, new: str, *, shown: str = "") -> None:
    """Raise RefusedError where a directory has anything that a new one, which is to replace it, would not have.

    `shown` is the name of the old one in messages, where it was moved away already.
    """
    shown = shown or old
    with Directory.open(old) as top:
        there = local_tree(top)
    with Directory.open(new) as top:
        made = local_tree(top)
    for path, entry in there.items():
        if entry.kind not in {Kind.FILE, Kind.DIRECTORY}:
            raise _foreign(path, shown)
    check_names(_of(there, Kind.DIRECTORY), _of(made, Kind.DIRECTORY), shown)
    check_names(_of(there, Kind.FILE), _of(made, Kind.FILE), shown)


def _of(tree: Tree, kind: Kind) -> list[str]:
    return [path for path, entry in tree.items() if entry.kind is kind]


def _foreign(name: str, path: str) -> RefusedError:
    return RefusedError(
        f"contains {escaped(name)!r}, which is no file of such an export; nothing was changed",
        path=path,
        hint="--force replaces only an earlier export; remove the directory yourself, or choose another OUTPUT",
    )
