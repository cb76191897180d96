"""The simulation runs the real command on a version that is all holes; what it counts is held here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def planned(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Return what the simulation counted, without the measurements."""
    script = Path(__file__).with_name("simulation.py")
    command = [sys.executable, str(script), "--plan", "--work", str(tmp_path), "--json", str(tmp_path / "found.json")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    return found


def check_passes(found: dict[str, Any], terabytes: float) -> int:
    """Check that each byte moves once and is read back once, in small tasks with small results; return the tasks."""
    passes = {each["work"]: each for each in found["passes"]}
    assert (
        sum(passes["MoveWork"]["read"]) == sum(passes["MoveWork"]["written"]) == pytest.approx(terabytes * 1e12, 0.01)
    )
    assert sum(passes["ValuesWork"]["read"]) == pytest.approx(terabytes * 1e12, 0.06)
    for each in found["passes"]:
        assert each["largest_task"] < 64 << 10
        assert each["largest_result"] < 65 << 10
    return sum(each["tasks"] for each in found["passes"])


@pytest.mark.slow
def test_ten_thousand_million_rows(tmp_path: Path) -> None:
    """A plan of 10,000 million rows for 100 servers has few tasks, and neither it nor the command takes much memory."""
    words = ["--terabytes", "0.85", "--tables", "3", "--from", "16", "--to", "100", "--workers", "4", "--threads", "4"]
    found = planned(tmp_path, *words)
    assert check_passes(found, 0.85) < 9000
    assert found["plan_bytes"] < 20 << 20
    assert found["peak_mib"] < 300
    assert found["seal_bytes"] < 32 << 20


@pytest.mark.bench
def test_ten_terabytes(tmp_path: Path) -> None:
    """10 TB from 256 to 400 servers: under 200,000 tasks; plan, tasks and the command in far less than 2 GiB."""
    found = planned(tmp_path)
    assert check_passes(found, 10) < 200_000
    sent = sum(each["task_bytes"] + each["work_bytes"] for each in found["passes"])
    assert found["plan_bytes"] + sent < 1 << 30
    assert found["peak_mib"] < 1024
    assert found["seal_bytes"] < 64 << 20
