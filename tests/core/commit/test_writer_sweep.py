"""Every writer at steps of other systems, with one call of it failing, killed or stopped; every look below a step."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import look_sweep
import stop_sweep
import writer_rows
from shim_sweep import build, start

SAMPLED: Mapping[str, tuple[str, ...]] = {
    "writer_sweep": ("reshard in place, dcp", "copy, tensorflow", "verify of damage, dcp"),
    "look_sweep": ("list, dcp", "prune, tfra"),
    "stop_sweep": ("prune, safetensors",),
}
"""The commands of the ordinary suite; `pytest -n 0 -m hours tests/core/commit/test_writer_sweep.py` tries all."""
EVERY: Mapping[str, tuple[str, ...]] = {
    "writer_sweep": tuple(writer_rows.ROWS),
    "look_sweep": tuple(look_sweep.names()),
    "stop_sweep": stop_sweep.NAMES,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs LD_PRELOAD and gcc")
    return build(tmp_path_factory.mktemp("shim"))


def outcomes(library: Path, module: str, *words: str) -> list[dict[str, Any]]:
    """Return what a sweep found, command by command."""
    done = start(library, *words, module=module)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("module", SAMPLED)
def test_sample(library: Path, module: str) -> None:
    """After a fault, a kill or a stop each version is the old one or the new one, and what others wrote is there."""
    found = outcomes(library, module, "--sample", "2", *SAMPLED[module])
    assert {outcome["command"] for outcome in found} == {*SAMPLED[module]}
    wrong = [f"{o['command']} {point}: {problem}" for o in found for point, problem in o["wrong"].items()]
    assert not wrong, "\n".join(wrong)


@pytest.mark.hours
@pytest.mark.parametrize(
    ("module", "command"), [(module, command) for module, commands in EVERY.items() for command in commands]
)
def test_every_call(library: Path, module: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same at every call that changes something, and at many of those that look; prints the counts."""
    (outcome,) = outcomes(library, module, command)
    with capsys.disabled():
        calls = ", ".join(f"{call} {count}" for call, count in sorted(outcome["calls"].items()))
        print(f"\n{module}, {command}: {outcome['points']} points ({calls}), {len(outcome['wrong'])} wrong")
    assert outcome["points"] > 10
    assert not outcome["wrong"], json.dumps(outcome["wrong"], indent=1)
