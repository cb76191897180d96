"""Owners: a small file names the process that is at work (which process, where, since when), under the kernel's lock.

The kernel's lock ends with its process, so an unlocked file was left by a killed process. On this host that is certain
at once. A process that it forks would keep the lock, and so closes its copy of the file. A file system may not pass
locks on between hosts, so an owner on another host counts as dead when it has not touched its file for ten minutes. The
lock of a location and the staging directories both work this way (`stage_owner.py`).
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.ids import host_name, kernel_id
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.storage.beneath import Directory

OWNER_FILE: Final = "owner.json"
OWNER_BYTES: Final = 1 << 16
STALE_SECONDS: Final = 600.0
"""An owner on another host counts as dead when it has not touched its file for this long."""
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""The errors by which a file system without locks can be recognised."""
_SILENT_SECONDS: Final = 24 * 3600.0
ID_PATTERN: Final = LatePattern(r"\d{8}T\d{6}-(?P<host>[^-]*)-(?P<pid>\d+)-[0-9a-f]{8}")


def format_owner(owner: Mapping[str, Any]) -> str:
    """Return an owner in words."""
    if not owner:
        return "another edl-ckpt"
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')} ({owner.get('purpose')})"


def read_owner(directory: Directory, name: str = OWNER_FILE) -> dict[str, Any]:
    """Return the description in an owner's file, {} when there is no file or it is damaged."""
    with suppress(EdlCkptError):
        data = directory.read(name, OWNER_BYTES)
        return parse_document(data, directory.join(name)) if data else {}
    return {}


def is_here(owner: Mapping[str, Any]) -> bool:
    """Say whether an owner is, or was, a process of this host since its last boot, which can be looked up."""
    return owner.get("host") == os.uname().nodename and owner.get("kernel") == kernel_id()


def is_me(owner: Mapping[str, Any]) -> bool:
    """Say whether an owner is this process."""
    return owner.get("pid") == os.getpid() and is_here(owner)


def is_dead(owner: Mapping[str, Any], silent_seconds: float) -> bool:
    """Say whether an owner that touches its file is dead: here by its process, elsewhere by ten minutes of silence."""
    if is_here(owner) and isinstance(owner.get("pid"), int):
        return not _is_alive(owner["pid"])
    return silent_seconds > STALE_SECONDS


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Say whether an owner is surely dead: a process of this host that has ended. Silence proves nothing here."""
    return is_here(owner) and is_dead(owner, 0.0)


def processes_at(path: str) -> list[int]:
    """Return the other processes that have a file open, as far as this user may look."""
    found: set[int] = set()
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):  # it was closed meanwhile
            if os.path.samefile(link, path):
                found.add(int(link.split("/")[2]))
    return sorted(found - {os.getpid()})


def is_presumed_dead(owner: Mapping[str, Any], age_seconds: float) -> bool:
    """Say whether an owner that touches no file is dead: here by its process, elsewhere a day after its last write."""
    return is_dead(owner, age_seconds - _SILENT_SECONDS)


def owner_in(name: str) -> dict[str, Any]:
    """Return the owner that a name with a `new_id` in it describes, {} for another name."""
    match = ID_PATTERN.search(name)
    if match is None:
        return {}
    here = {"host": os.uname().nodename, "kernel": kernel_id()} if match["host"] == host_name() else {}
    return {"pid": int(match["pid"]), "host": match["host"], **here}


def lock_file(fd: int) -> bool | None:
    """Take the kernel's lock on an open file; False when another process has it, None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, *_NO_LOCKS}:
            raise
        return None if error.errno in _NO_LOCKS else False
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
