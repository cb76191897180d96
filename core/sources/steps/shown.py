"""The files of a step that its formats see: none that the host, a file server or a desktop has put next to them.

A Mac writes `._model.safetensors` beside each file on a foreign disk, NFS keeps a deleted file as `.nfs0001`, and
Windows has a `Thumbs.db`. They end like files of a checkpoint, and are none. Hidden files are claimed by no format
either, but for the index of torch. Files of a host belong to no version at all; they stay where they are, or go with
its directory.
"""

from __future__ import annotations

import re
from typing import Final

_HOST_BEGINS: Final = ("._", ".nfs", ".fuse_hidden", ".smbdelete", ".afpDeleted", ".__afs", ".gvfs", ".~lock.")
_HOST_NAMES: Final = frozenset({
    ".DS_Store", ".AppleDouble", ".localized", ".directory", ".sync", "Thumbs.db", "thumbs.db", "ehthumbs.db",
    "desktop.ini", "Desktop.ini",
})  # fmt: skip
_CLAIMED: Final = ".metadata"
_ODD: Final = re.compile(r"(?:^|[/\n])(?:\.(?!metadata(?:[/\n]|$))|[Tt]humbs\.|ehthumbs\.|[Dd]esktop\.)")


def are_plain(paths: str) -> bool:
    r"""Say whether no path is hidden or of a host, from one look at all of them, each on a line.

    >>> are_plain(".metadata\na/__0_0.distcp\nb/.metadata"), are_plain("a\nb/._a"), are_plain("Thumbs.db")
    (True, False, False)
    """
    return _ODD.search(paths) is None


def is_of_host(path: str) -> bool:
    """Return True for a file that its file system or desktop made, not the job that saved the step.

    >>> is_of_host("model/._model.safetensors"), is_of_host(".nfs00a1"), is_of_host(".metadata")
    (True, True, False)
    """
    name = path[path.rfind("/") + 1 :]
    return name.startswith(_HOST_BEGINS) or name in _HOST_NAMES


def is_shown(path: str) -> bool:
    """Say whether a format may claim a file by its name.

    >>> is_shown(".metadata"), is_shown(".model.safetensors"), is_shown("model.safetensors")
    (True, False, True)
    """
    name = path[path.rfind("/") + 1 :]
    return (name[:1] != "." or name == _CLAIMED) and name not in _HOST_NAMES
