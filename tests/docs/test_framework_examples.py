"""The training examples of docs/frameworks.md run, and go on in another process as if they had never stopped."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import console
from places import TOP

pytestmark = pytest.mark.frameworks


def run(script: Path, *arguments: str) -> list[str]:
    """Run an example as a user would; return the lines that it prints."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, script.name, *arguments]
    done = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("library", "name"), [("torch", "train_torch.py"), ("tensorflow", "train_keras.py")], ids=["torch", "tensorflow"]
)
def test_training_goes_on(library: str, name: str, tmp_path: Path) -> None:
    """Twenty steps, and twenty more in a new process that restores them, end with the loss of forty in one process."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install {library}")
    lines = (TOP / "docs" / "frameworks.md").read_text(encoding="utf-8").split("\n")
    files = (example.source.partition("\n") for example in console.examples(lines) if example.kind == "file")
    sources = {file: source for file, _, source in files}
    script = tmp_path / name
    script.write_text(sources[name], encoding="utf-8")
    first = run(script, "run", "20")
    second = run(script, "run", "40")
    whole = run(script, "other", "40")
    assert first[0] == whole[0] == "a new model"
    assert second[0].startswith("step 20 of <Checkpoint run@20: 1 shard, ")
    assert second[-1] == whole[-1] != first[-1]
    assert second[-1].startswith("step 40: loss ")
