"""Locations of jobs of other systems, made from the fixtures that those systems wrote."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

SYSTEMS = Path(__file__).parents[1] / "data/systems"
OLD_SECONDS = 3600
"""Their files are so old: none of them seems to be written just now."""


def step_run(place: Path, numbers: tuple[int, ...] = (10, 20, 30), spelling: str = "step_") -> Path:
    """Make step directories of TorchRec, each with a file of the job in a directory of its own."""
    for number in numbers:
        step = place / f"{spelling}{number}"
        shutil.copytree(SYSTEMS / "dcp/torchrec/step_2", step)
        (step / "huggingface").mkdir()
        (step / "huggingface/config.json").write_text(f'{{"step": {number}}}')
    return settled(place)


def bundle_run(place: Path, numbers: tuple[int, ...] = (10, 20, 30)) -> Path:
    """Make bundles of TensorFlow, whose files lie side by side."""
    place.mkdir(exist_ok=True)
    for number in numbers:
        for path in (SYSTEMS / "bundle/sharded").iterdir():
            shutil.copy(path, place / path.name.replace("-40", f"-{number}"))
    return settled(place)


def settled(place: Path) -> Path:
    """Let everything in a location be old."""
    then = time.time() - OLD_SECONDS
    for path in (place, *place.rglob("*")):
        os.utime(path, (then, then))
    return place


def tree(place: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory but our state, by their paths."""
    files = (path for path in place.rglob("*") if path.is_file())
    relative = {str(path.relative_to(place)): path for path in files}
    return {name: path.read_bytes() for name, path in sorted(relative.items()) if not name.startswith(".edl-ckpt-0")}
