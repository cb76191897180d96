"""The arithmetic of times and costs, by hand."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


def _script() -> Any:
    """Return the script as a module: benchmarks are on no path."""
    spec = spec_from_file_location("cluster_cost", Path(__file__).with_name("cluster_cost.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["cluster_cost"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cost = _script()
ROW = (
    "| reshard of 8 shards, 2,000 MB, 8 -> 16 | 10 s | 1 | 10 s, 8.00 s CPU | 8 s | 1 MiB |"
    " 1,000 GET, 400 UploadPart; 4,000 MB read, 2,000 MB written | 1 |"
)


def test_measured() -> None:
    """Each figure is for a GB of the version; a page without the row says so."""
    assert cost.measured(f"before\n{ROW}\nafter") == cost.Measured(2.0, 1.0, 500.0, 200.0, 4.0)
    with pytest.raises(ValueError, match="no row"):
        cost.measured("")


def test_seconds() -> None:
    """A time is that of the bytes or that of the CPU, whichever is longer; the volume is a limit for all."""
    assert cost.Machines(1, 0.25, 20).seconds(100, 3.0) == 1200
    assert cost.Machines(1, 100, 200).seconds(100, 3.0) == 48
    assert cost.Machines(16, 3.0, 20).seconds(1000, 3.0, 1.0) == 150


def test_fill() -> None:
    """A table is written between its marks, and nowhere else."""
    page = "a\n<!-- figures: x -->\nold\n<!-- end of figures: x -->\nb\n"
    assert cost.fill(page, "x", iter(["1", "2"])) == page.replace("old", "1\n2")
    with pytest.raises(ValueError, match="no place"):
        cost.fill(page, "y", iter([]))
