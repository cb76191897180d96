"""The location that the tests of retention prune."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import at, save_small
from edl_ckpt.core.operations.annotate import add_tag, set_metrics, set_note


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with five complete versions, the first tagged, with metrics and a note."""
    save_small(tmp_path / "run", 1, 2, 3, 4, 5, sealed=False)
    first = at(tmp_path / "run", 1)
    add_tag(first, "prod")
    second = at(tmp_path / "run", 2)
    set_metrics(second, {"auc": 0.5})
    set_note(second, "second")
    return tmp_path / "run"
