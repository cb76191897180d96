"""Which files this process has open: those that a test looks for, while threads of other work open and close theirs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def opened() -> list[Path]:
    """Return what each open descriptor of this process is; a file that was removed has ` (deleted)` behind its name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, by another thread
            found.append(Path(os.readlink(f"/proc/self/fd/{number}")))
    return found


def opened_below(folder: Path) -> list[Path]:
    """Return the open files and directories below a directory, that itself included, in the order of their names."""
    return sorted(path for path in opened() if path.is_relative_to(folder))
