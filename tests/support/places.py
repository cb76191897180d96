"""Where things are in the source tree, whatever folder a test is in."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
TOP = TESTS.parent
DATA = TESTS / "data"
BENCH = TESTS / "bench"
GOLDEN = DATA / "golden"
