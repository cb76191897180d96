"""Checkpoint storage as Determined leaves it: a directory for each checkpoint, named by a UUID, with `metadata.json`.

Its names and files are those of `determined.core.CheckpointContext`: `{storage_path}/{uuid}/`, in it what the trial
saved, and `metadata.json`, which Python's own json wrote with two blanks of indentation.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from checkpoints import save_small

ONE = "4f8a0d1e-07b5-4bd5-8f1c-6f3c2a9be001"
TWO = "4f8a0d1e-17b5-4bd5-8f1c-6f3c2a9be002"
BARE = "aaaa0d1e-07b5-4bd5-8f1c-6f3c2a9be003"
DIGITS = "12345678-07b5-4bd5-8f1c-446655440000"
"""A UUID that begins and ends in digits alone: about one in 280 ends so."""


def put(storage: Path, uuid: str, version: int, metadata: dict[str, Any] | str | None = None) -> Path:
    """Save a version into a directory of Determined's; without metadata, it has recorded nothing but the steps."""
    made = storage / "tmp"
    save_small(made, version, sealed=False)
    directory = storage / uuid
    shutil.move(made / f"version-{version}", directory)
    shutil.rmtree(made)
    (directory / "code").mkdir()
    (directory / "code/model_def.py").touch()
    if metadata is None:
        metadata = {"steps_completed": version}
    text = metadata if isinstance(metadata, str) else json.dumps(metadata, indent=2)
    (directory / "metadata.json").write_text(text, encoding="utf-8")
    return directory


def fill(storage: Path) -> Path:
    """Make the storage of these tests: two checkpoints of 100 and 200 steps, and one that says no number."""
    put(storage, ONE, 100, {"steps_completed": 100, "trial": 7, "loss": float("nan")})
    put(storage, TWO, 200)
    put(storage, BARE, 300, "{}")
    return storage
