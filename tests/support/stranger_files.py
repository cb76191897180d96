"""Locations of torch's steps, with what strangers put there: files, links, other runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from foreign import copied

NOW = 2_000_000_000.0
"""Long after the steps of `steps_at` were written: none of them is still being written."""


def steps_at(location: Path, numbers: tuple[int, ...], fixture: str = "dcp/torchrec", step: int = 2) -> Path:
    """Return a location with these steps, written an hour apart, long before `NOW`; each is a copy of a real one."""
    first = copied(fixture, step, location)
    made = first.rename(location / "made")
    for number in numbers:
        shutil.copytree(made, location / f"step_{number}")
    shutil.rmtree(made)
    age(location)
    return location


def age(location: Path) -> None:
    """Let everything at a location be old; what has a higher number in its name is younger."""
    for place in sorted(location.iterdir()):
        digits = "".join(filter(str.isdigit, place.name)) or "0"
        moment = 1_000_000_000.0 + 3600.0 * (int(digits[:6]))
        for path in [place, *(() if place.is_symlink() else place.rglob("*"))]:
            os.utime(path, (moment, moment), follow_symlinks=False)
