from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shim_sweep import FAULTS, READING, build, start
from sweep_commands import COMMANDS

CHANGING = [c.name for c in COMMANDS if not c.always and not c.then]
SAMPLED = ("prune", "tag add", "reshard in place", "export", "list", "verify", "metrics show")
"""The commands of the fast suite; `pytest -m hours tests/core/commit/test_shim_sweep.py` tries all, at each call."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs LD_PRELOAD and gcc")
    return build(tmp_path_factory.mktemp("shim"))


def outcomes(done: subprocess.CompletedProcess[str]) -> Iterator[dict[str, Any]]:
    """Return what a sweep found, command by command."""
    assert done.returncode == 0, done.stderr[-3000:]
    return map(json.loads, done.stdout.splitlines())


def test_sample(library: Path) -> None:
    """Faults in reads, stat, readdir, close, flock and renames: old or new, the right code, no traceback."""
    found = list(outcomes(start(library, "--sample", "2", *SAMPLED)))
    assert {outcome["command"] for outcome in found} == set(SAMPLED)
    assert all(outcome["met"] == outcome["points"] == 2 for outcome in found)
    wrong = [f"{o['command']} {point}: {problem}" for o in found for point, problem in o["wrong"].items()]
    assert not wrong, "\n".join(wrong)


@pytest.mark.hours
@pytest.mark.parametrize("command", [*CHANGING, *READING])
def test_every_call(library: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every fault at every call that concerns the directory leaves old or new; prints the counts."""
    (outcome,) = outcomes(start(library, command))
    with capsys.disabled():
        calls = ", ".join(f"{call} {count}" for call, count in sorted(outcome["calls"].items()))
        print(f"\n{command}: {outcome['points']} points ({calls}), {outcome['met']} met, {len(outcome['wrong'])} wrong")
    assert outcome["points"] > 20
    assert set(outcome["calls"]) <= set(FAULTS)
    assert not outcome["wrong"], json.dumps(outcome["wrong"], indent=1)
