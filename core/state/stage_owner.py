"""Owners of staging directories: which of our commands made one, and whether that command is dead."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.state.owner import (
    ID_PATTERN,
    OWNER_BYTES,
    OWNER_FILE,
    is_dead,
    is_here,
    lock_file,
    owner_in,
    read_owner,
)
from edl_ckpt.core.state.paths import is_copy_of_a_name, resumed_number
from edl_ckpt.core.storage.beneath import Directory, close_read

_SIGNING_SECONDS: Final = 1.0


def is_stage_name(name: str) -> bool:
    """Say whether we give such names to staging directories.

    >>> is_stage_name("20261121T211600-host_0a1b2c3d-7-0a1b2c3d"), is_stage_name("copy-100"), is_stage_name("mine")
    (True, True, False)
    """
    return bool(ID_PATTERN.fullmatch(name)) or resumed_number(name) is not None or is_copy_of_a_name(name)


def has_our_owner(directory: Directory) -> bool:
    """Say whether the owner's file of a staging directory is one that we wrote, or that we were about to write."""
    with suppress(EdlCkptError):
        data = directory.read(OWNER_FILE, OWNER_BYTES)
        if data is None or not data.strip(b"\0"):  # after a power cut, a file may be zeros
            return data is not None
        owner = parse_document(data, directory.join(OWNER_FILE))
        return isinstance(owner.get("pid"), int) and isinstance(owner.get("host"), str)
    return False


@contextmanager
def if_abandoned(directory: Directory) -> Iterator[bool]:
    """Yield whether the owner of an open staging directory is dead, False where that cannot be known.

    No other process takes the directory over while the block runs.
    """
    fd = -1
    try:
        try:
            fd = directory.open_file(OWNER_FILE, os.O_RDWR)
            dead = _take_from_dead(fd, directory)
        except FileNotFoundError:  # killed before it made the file, or about to make it
            silent_seconds = time.time() - os.fstat(directory.fd).st_mtime
            dead = is_dead(_owner_by_name(directory), silent_seconds)
        except (OSError, EdlCkptError):
            dead = False
        yield dead
    finally:
        close_read(fd)


def is_abandoned(root: str, relative: str) -> bool:
    """Say whether the owner of a staging directory, given by its path below a location, is dead at this moment."""
    with suppress(EdlCkptError, OSError), Directory.beneath(root, relative) as stage, if_abandoned(stage) as dead:
        return dead
    return False


def _take_from_dead(fd: int, directory: Directory) -> bool:
    """Lock the open file of an owner that is dead; return False for one that is alive, or may be."""
    silent_seconds = time.time() - os.fstat(fd).st_mtime
    is_locked = lock_file(fd)
    if is_locked is None:  # a file system without locks
        return is_dead(read_owner(directory), silent_seconds)
    if not is_locked:
        return False
    owner = read_owner(directory)
    silent_seconds = time.time() - os.fstat(fd).st_mtime
    if not owner:  # the process that makes the file locks and signs it a moment later
        return silent_seconds > _SIGNING_SECONDS or is_dead(_owner_by_name(directory), silent_seconds)
    # A process of this kernel has ended, or we could not lock its file; the lock of another host may not reach us.
    return is_here(owner) or is_dead(owner, silent_seconds)


def _owner_by_name(directory: Directory) -> dict[str, Any]:
    """Return the owner that the name of a staging directory describes, {} for none."""
    return owner_in(os.path.basename(directory.path))
