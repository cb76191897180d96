"""A part without rows of a table has the dtype of the table, whichever shards have its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import only
from edl_ckpt.core import Checkpoint, CheckpointSaver, Version, restore, verify_version
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.reading import reader, restoring
from oracle import Model, Table

DIM = 2


def written(location: Path, dtype: str, ids: list[int], ps_num: int, saver: str) -> None:
    """Write a table whose rows have some ids, as servers of ElasticDL do."""
    rows = {i: np.full(DIM, i, dtype).tobytes() for i in ids}
    write_checkpoint(location, Model(100, {}, {"t": Table(DIM, "uniform", dtype, rows)}), ps_num, saver=saver)


@pytest.mark.parametrize("saver", ["python", "go"])
@pytest.mark.parametrize("dtype", ["float64", "int64", "float32"])
@pytest.mark.parametrize(("ps_num", "to"), [(2, 2), (3, 3), (8, 4), (4, 8), (3, 2)])
def test_each_server_gets_the_dtype_of_the_rows(tmp_path: Path, dtype: str, saver: str, ps_num: int, to: int) -> None:
    """Rows are on one server only, and the infos of Python's servers say float32."""
    written(tmp_path, dtype, [ps_num - 1], ps_num, saver)
    parts = [restore(only(tmp_path), ps_id, to) for ps_id in range(to)]
    assert {part.tables["t"].vectors.dtype.name for part in parts} == {dtype}
    assert sum(len(part.tables["t"].ids) for part in parts) == 1


def test_what_was_restored_is_saved_without_a_finding(tmp_path: Path) -> None:
    """The real Go server ends at shards of one table with two dtypes."""
    written(tmp_path / "old", "float64", [1], 2, "python")
    for ps_id in range(2):
        part = restore(only(tmp_path / "old"), ps_id, 2)
        saver = CheckpointSaver(tmp_path / "new", ps_id=ps_id, ps_num=2, run="r", layout="elasticdl")
        saver.save(110, part.variables, part.tables)
    result = verify_version(only(tmp_path / "new"), level="deep")
    assert not [finding for finding in result.findings if finding.severity == "error"]


def test_few_headers_are_read_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each shard has rows, no other shard is opened."""
    written(tmp_path, "float64", list(range(16)), 8, "python")
    opened: list[int] = []
    genuine = reader.open_checkpoint

    def counted(version: Version, **options: Any) -> Checkpoint:
        opened.append(len(version.shards))
        return genuine(version, **options)

    monkeypatch.setattr(restoring, "open_checkpoint", counted)
    assert restore(only(tmp_path), 3, 8).tables["t"].vectors.dtype == np.dtype(DTYPES["float64"].name)
    assert opened == [1]
