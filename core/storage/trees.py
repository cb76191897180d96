"""Removing whole directories, and what has their names without being one."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress


def remove_tree(path: str) -> None:
    """Remove a directory with its content, or anything else of that name without opening it; errors are ignored.

    `shutil.rmtree` opens what it is given, and so waits for ever at a pipe.
    """
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
