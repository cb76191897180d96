"""Directories of the local disk that a command makes for its work, and removes again."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.local import is_gone


def remove_tree(path: str) -> None:
    """Remove a directory with its content, or anything else of that name without opening it; errors are ignored.

    `shutil.rmtree` opens what it is given, and so waits for ever at a pipe.
    """
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


@contextmanager
def made_directory(path: str | None, *, keep: bool = True) -> Iterator[None]:
    """Make a directory and those above it; at the end remove those that were made and are empty.

    Those that a block has made without an error stay, unless `keep` is False.
    """
    missing: list[str] = []
    above = os.path.abspath(path) if path is not None else ""
    while above and is_gone(above):
        missing.append(above)
        above = os.path.dirname(above)
    if path is not None:
        with storage_errors(path):
            try:
                os.makedirs(path, exist_ok=True)
            except FileExistsError:  # `makedirs` takes any error in looking at it for a file in its place
                os.listdir(path)
    stay = False
    try:
        yield
        stay = keep
    finally:
        if not stay:
            with suppress(OSError):
                for folder in missing:
                    os.rmdir(folder)
