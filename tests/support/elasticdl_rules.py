"""What ElasticDL's own code does with a checkpoint_dir, restated: its scan, and the shards its restore reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

Order = Callable[[Sequence[str]], list[str]]


def is_valid(version_dir: Path, order: Order = sorted) -> bool:
    """Return whether ElasticDL takes a version for whole: as many entries as the first name's N says."""
    names = order(os.listdir(version_dir))
    if not names:
        return False
    return int(names[0].split(".")[0].split("-")[-1]) == len(names)


def latest_valid(checkpoint_dir: Path, order: Order = sorted) -> str | None:
    """Return the name ElasticDL restores from; raises ValueError where its scan crashes."""
    names = order(os.listdir(checkpoint_dir))
    for _, name in sorted(((int(n.split("-")[-1]), n) for n in names), reverse=True):
        if is_valid(checkpoint_dir / name, order):
            return name
    return None


def leftovers(location: Path) -> list[str]:
    """Return what of our own state lies in a location besides what is known of its versions."""
    state = location / ".edl-ckpt-0"
    return sorted(str(p.relative_to(state)) for p in state.rglob("*") if p.relative_to(state).parts[0] != "meta-0")


def visible(location: Path) -> set[str]:
    """Return the names in a location, without our own state, of which there are no leftovers."""
    assert leftovers(location) == []
    return {p.name for p in location.iterdir()} - {".edl-ckpt-0"}


def answer(checkpoint_dir: Path) -> tuple[str | None, str]:
    """Return what the scan says over several listing orders, crash included, to compare before and after."""
    said = []
    for order in (sorted, lambda names: sorted(names, reverse=True)):
        try:
            said.append(latest_valid(checkpoint_dir, order) or "none")
        except ValueError as error:
            said.append(f"crash {type(error).__name__}")
    return said[0], said[1]
