"""Setting aside: an unusable file whose name we need is renamed; it is never opened, emptied or removed.

It goes to `.edl-ckpt-0/stage-0/damaged-...`, where nothing looks again, so it is reported once. The caller sees to it
that no other process of ours does the same at that moment.
"""

from __future__ import annotations

import os
import stat

from edl_ckpt.core.state.paths import STAGE_DIR, damaged_name
from edl_ckpt.core.storage.beneath import Directory, kind_of


def set_aside(state: Directory, directory: Directory, name: str, why: str, *, was: str = "") -> str:
    """Move a name of a directory away; return what was done, in words. `was` is the name it had before, if another."""
    new = damaged_name(was or name)
    before = make_way(state, os.path.basename(STAGE_DIR))
    with state.enter(os.path.basename(STAGE_DIR), make=True) as stages:
        directory.rename(name, stages, new)
        stages.flush()
    done = f"{directory.join(was or name)} {why}; it was set aside as {STAGE_DIR}/{new}"
    return f"{before}; {done}" if before else done


def make_way(state: Directory, name: str) -> str:
    """Set aside what has the name of one of our directories and is none; return what was done, '' for nothing."""
    found = state.stat(name)
    if found is None or stat.S_ISDIR(found.st_mode):
        return ""
    moved = f"{damaged_name('')}0"  # its own name must be free before there is a place to put it
    state.rename(name, state, moved)
    return set_aside(state, state, moved, f"is {kind_of(found.st_mode)}", was=name)
