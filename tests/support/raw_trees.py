"""Directories as they are, read by `os` alone: every entry, links as links, with owner, mode and time."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple


class RawEntry(NamedTuple):
    """An entry of a directory: what it is, its content or where it leads, and whose it is."""

    kind: int
    content: bytes
    mode: int
    uid: int
    gid: int
    modified_ns: int


def raw_tree(directory: Path) -> dict[str, RawEntry]:
    """Return every entry below a directory but our state, by its path in it; no link is followed."""
    found: dict[str, RawEntry] = {}
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                name = os.path.relpath(entry.path, directory)
                if name.partition("/")[0] == ".edl-ckpt-0":
                    continue
                state = entry.stat(follow_symlinks=False)
                found[name] = _entry(entry.path, state)
                if stat.S_ISDIR(state.st_mode):
                    waiting.append(Path(entry.path))
    return found


def _entry(path: str, state: os.stat_result) -> RawEntry:
    content = b""
    if stat.S_ISLNK(state.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(state.st_mode):
        content = Path(path).read_bytes()
    kind, modified = stat.S_IFMT(state.st_mode), state.st_mtime_ns
    return RawEntry(kind, content, stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid, modified)


def lost_entries(before: dict[str, RawEntry], after: dict[str, RawEntry], own: set[str]) -> dict[str, str]:
    """Return what became of entries that the system does not own, and that are not as they were; {} for nothing.

    The time of a directory that has an own file in it may change.
    """
    lost: dict[str, str] = {}
    for name, was in before.items():
        if name in own:
            continue
        now = after.get(name)
        if now is None:
            lost[name] = "gone"
        elif stat.S_ISDIR(was.kind):
            if now[:5] != was[:5]:
                lost[name] = f"{was[:5]} is now {now[:5]}"
        elif now != was:
            change = f"{was} is now {now}" if now.modified_ns == was.modified_ns else "another time"
            lost[name] = change
    return lost
