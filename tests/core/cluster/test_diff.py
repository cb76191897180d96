"""A diff on a cluster: what it finds of versions that are not as they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_unchecked
from checkpoints import at
from edl_ckpt.core import CorruptError, Table, diff_versions
from edl_ckpt.core.operations.diff import tables as by_tables


def test_misplaced_rows(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the wrong shards have their counterparts anywhere, and are found."""
    monkeypatch.setattr(by_tables, "SMALL_BYTES", 100)
    ids, rows = np.arange(2000), np.ones((2000, 4), np.float32)
    for version in (1, 2):
        directory = write_unchecked(tmp_path, version, 2, {"t": Table(ids, rows * version)})
    first, second = (directory / f"variables-{i}-of-2.ckpt" for i in (0, 1))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    here, there = (diff_versions(at(tmp_path, 1), at(tmp_path, 2), executor=e) for e in (None, client))
    assert here.tables[0].changed == 2000
    assert [(t.changed, t.unchanged, t.histogram) for t in there.tables] == [
        (t.changed, t.unchanged, t.histogram) for t in here.tables
    ]


def test_an_id_twice(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that occurs twice in a table is the same error."""
    monkeypatch.setattr(by_tables, "SMALL_BYTES", 100)
    ids, rows = np.array([*range(2000), 7]), np.ones((2001, 4), np.float32)
    for version in (1, 2):
        write_unchecked(tmp_path, version, 2, {"t": Table(ids, rows * version)})
    for executor in (None, client):
        with pytest.raises(CorruptError, match="table 't'") as caught:
            diff_versions(at(tmp_path, 1), at(tmp_path, 2), executor=executor)
        assert caught.value.code == "duplicate-id"
