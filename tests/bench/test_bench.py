"""The benchmarks run, at a small size, and measure what they say; nothing here asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.bench
def test_bench_runs(tmp_path: Path) -> None:
    """Every group of figures is measured against its reference, kept as JSON, and written into the page's table."""
    page = tmp_path / "page.md"
    page.write_text("Before\n\n<!-- figures -->\n| an old row |\n<!-- end of figures -->\n\nBehind\n")
    script = Path(__file__).with_name("run.py")
    command = [sys.executable, str(script), "--runs", "1", "--scale", "0.002", "--work", str(tmp_path / "work")]
    command += ["--memory", str(tmp_path / "memory"), "--json", str(tmp_path / "out.json")]
    command += ["--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    assert len(figures) >= 10
    for figure in figures:
        assert len(figure["ours"]) == len(figure["reference"]) == 1
        assert figure["ours"][0]["wall"] > 0
    read = next(f["note"] for f in figures if "inspect" in f["name"])
    assert 0 < int(read.split()[1]) < 1 << 20
    assert not (tmp_path / "work").exists()
    written = page.read_text()
    assert written.startswith("Before\n\n<!-- figures -->\n| work |")
    assert written.endswith("|\n<!-- end of figures -->\n\nBehind\n")
    assert "an old row" not in written
    assert len(written.splitlines()) == len(figures) + 8
