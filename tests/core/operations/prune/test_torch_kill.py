"""A real `dcp.save` that is killed: no torn step is ever the latest one, and a prune keeps the last one that loads."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, numbers
from edl_ckpt.core import verify_version
from edl_ckpt.core.model.versions import State
from pruning import prune

PYTHON = os.environ.get("EDL_CKPT_TEST_TORCHREC_PYTHON", "")
SAVER = Path(__file__).parents[3] / "support/judges/dcp_saver.py"


class Saver:
    """The process with torch, which saves and loads."""

    def __init__(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([PYTHON, str(SAVER)], text=True, **pipes)

    def ask(self, *words: object) -> Any:
        """Return the answer to a line."""
        assert self._process.stdin
        assert self._process.stdout
        line = json.dumps([str(word) if isinstance(word, Path) else word for word in words])
        print(line, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def loads(self, step: Path, *seeds: int) -> bool:
        """Say whether `dcp.load` raises no error; after two saves in one directory it may give values of both."""
        answers = [self.ask("load", step, seed) for seed in seeds]
        return True in answers or (len(seeds) > 1 and answers == ["other values"] * len(seeds))

    def end(self) -> None:
        """Let it come to its end."""
        self._process.communicate()


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    if not PYTHON:
        pytest.skip("set EDL_CKPT_TEST_TORCHREC_PYTHON to a Python that has torch")
    process = Saver()
    yield process
    process.end()


@pytest.mark.frameworks
@pytest.mark.parametrize("instants", [20, pytest.param(200, marks=pytest.mark.hours)])
def test_killed_saves(saver: Saver, tmp_path: Path, instants: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed at any instant, in a new directory or in that of an older step, judged by what `dcp.load` loads."""
    whole = tmp_path / "whole"
    took = max(saver.ask("save", whole / name, seed, 60.0) for name, seed in (("step_1", 1), ("step_2", 2)))
    chance, seen = random.Random(7), {"killed": 0, "loads": 0}
    for instant in range(instants):
        run, again = tmp_path / f"run-{instant}", instant % 2 == 1
        shutil.copytree(whole / "step_1", run / "step_1")
        if again:
            shutil.copytree(whole / "step_2", run / "step_2")
        killed = saver.ask("save", run / "step_2", 3, chance.uniform(0.0, 1.2 * took)) is None
        loads = (run / "step_2").exists() and saver.loads(run / "step_2", *([2, 3] if again else [3]))
        latest = at(run)
        assert (latest.version, latest.state) == (2 if loads else 1, State.COMPLETE)
        assert not verify_version(latest, level="deep").findings
        prune(run)
        assert saver.loads(Path(latest.path), *([2, 3] if loads and again else [3 if loads else 1]))
        assert numbers(run)[-1] == latest.version or not loads
        seen["killed"] += killed
        seen["loads"] += loads
        shutil.rmtree(run)
    with capsys.disabled():
        print(f"\n{instants} saves: {seen['killed']} killed, {seen['loads']} whole")
    assert seen["killed"]
