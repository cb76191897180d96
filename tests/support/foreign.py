"""Steps of other systems that tests read: fixtures with their truth, and copies of them to damage."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edl_ckpt.core import list_versions
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading.reader import Checkpoint
from places import DATA, TESTS

SYSTEMS = DATA / "systems"
Arrays = dict[str, npt.NDArray[Any]]


def step(folder: Path, number: int) -> Version:
    """Return a version in a directory by its number."""
    return next(
        version for version in list_versions(str(folder), grace_seconds=0).versions if version.version == number
    )


def copied(system: str, number: int, folder: Path) -> Path:
    """Return the directory of a copy of a step of a fixture, the only one in a folder."""
    source = next(path for path in (SYSTEMS / system).glob(f"*{number}") if path.is_dir())
    return Path(shutil.copytree(source, folder / source.name))


def truth(system: str, number: int) -> Arrays:
    """Return the arrays that a judge says a step of a fixture has."""
    with np.load(SYSTEMS / system / f"{number}.npz") as arrays:
        return dict(arrays)


def assert_rows(checkpoint: Checkpoint, name: str, ids: npt.NDArray[Any], vectors: npt.NDArray[Any]) -> None:
    """Assert that a table has exactly these rows, bit for bit; `ids` are in order."""
    rows = checkpoint.table(name).to_numpy()
    assert rows.ids.tolist() == ids.tolist()
    assert np.asarray(rows.vectors).tobytes() == np.ascontiguousarray(vectors).tobytes()


def run_judge(variable: str, script: str, *arguments: str) -> None:
    """Run a script of `judges` under the Python that a variable of the environment names, or skip."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} does not name a Python that has what judges/{script} needs")
    program = [python, str(TESTS / "support/judges" / script), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
