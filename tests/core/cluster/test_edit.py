"""An edit on a cluster: what is counted there, by conditions on rows and by casts, is what this machine counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import only, save_large, save_varied, shards_of
from edl_ckpt.core import Changes, Table, convert_version, save_checkpoint
from reporters import Recorder

CHANGES = Changes(
    drop=("layer_3/kernel:0",),
    rows=("user where id < 0",),
    cast=(("user", "float64"), ("layer_*", "float32")),
    rename=(("user", "people"), ("layer_*", "l/*")),
)


def test_rows_by_a_column_on_a_cluster(tmp_path: Path, client: Any) -> None:
    """A condition on ids leaves out the same rows of a large table, whoever counts and moves them."""
    save_large(tmp_path / "run")
    version, changes = only(tmp_path / "run"), Changes(rows=("users where id < 500000000000",))
    here = convert_version(version, 3, output=tmp_path / "here", changes=changes)
    there = convert_version(version, 3, output=tmp_path / "there", changes=changes, executor=client)
    assert shards_of(tmp_path / "here") == shards_of(tmp_path / "there")
    (left,) = here.left_out
    assert (left.name, left.rows + here.rows, there.left_out) == ("users", 220_000, (left,))


def test_values_that_become_infinite(tmp_path: Path, client: Any) -> None:
    """Values that float16 cannot hold are counted once, on a cluster too."""
    vectors = np.full((1000, 4), 1e30, np.float32)
    variables = {"w": np.full(5, 1e30)}
    save_checkpoint(tmp_path / "run", 1, 2, variables=variables, tables={"t": Table(np.arange(1000), vectors)})
    changes = Changes(cast=(("*", "float16"),))
    for executor in (None, client):
        place = tmp_path / f"to-{executor is None}"
        done = convert_version(only(tmp_path / "run"), output=place, changes=changes, executor=executor)
        assert done.overflowed == 4005


@pytest.mark.parametrize("limit", [300_000, 4 << 20])
def test_memory_is_bounded(tmp_path: Path, limit: int) -> None:
    """Smaller batches change nothing of the result."""
    save_varied(tmp_path / "run", 2)
    version = only(tmp_path / "run")
    convert_version(version, 3, output=tmp_path / "a", changes=CHANGES)
    convert_version(version, 3, output=tmp_path / "b", changes=CHANGES, max_memory_bytes=limit, reporter=Recorder())
    assert shards_of(tmp_path / "a") == shards_of(tmp_path / "b")
