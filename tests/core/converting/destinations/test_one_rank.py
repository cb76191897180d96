"""A step that one rank saved is split for several, as TorchRec cuts tables; or the result says that it stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torch_items
from edl_ckpt.core import convert_version, open_checkpoint
from edl_ckpt.core.catalog.listing import list_versions
from program import document, edl
from reporters import Recorder

USER = "model.ebc.embedding_bags.user.weight"
SLOT = f"optim.state.{USER}.user.momentum1"
LARGE = "model.over.weight"
SMALL = "model.over.bias"


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """A table, its companion, a large and a small variable, and a number."""
    rng = np.random.default_rng(0)
    shapes = {USER: (10, 4), SLOT: (10,), LARGE: (1025, 257), SMALL: (8,), "step": (1,)}
    return {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}


def write(place: Path, arrays: dict[str, np.ndarray]) -> None:
    parts = [part for name, array in arrays.items() for part in torch_items.boxes(name, array, [[]] * array.ndim)]
    torch_items.write_step(place, parts)


def test_a_step_of_one_rank_is_split(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Rows go in blocks of ceil(n / 4); a small variable stays whole, and every value is what it was."""
    write(tmp_path / "run/step_1", arrays)
    result = convert_version(f"{tmp_path}/run@1", 4, output=str(tmp_path / "out"), reporter=Recorder())
    assert result.to_ps == 4
    (version,) = list_versions(tmp_path / "out").versions
    assert version.ps_num == 4
    with open_checkpoint(version) as opened:
        blocks = {shard.file.ps_id: entry.rows for shard, entry in opened.entries(USER)}
        assert blocks == {0: 3, 1: 3, 2: 3, 3: 1}
        assert {shard.file.ps_id: entry.rows for shard, entry in opened.entries(SLOT)} == blocks
        rows = opened.table(USER).to_numpy(list(range(10)))
        np.testing.assert_array_equal(rows.vectors, arrays[USER])
        for name in (LARGE, SMALL, "step"):
            np.testing.assert_array_equal(opened[name], arrays[name])
    again = edl("reshard", f"{tmp_path}/out@1", "--ranks", "4", "--if-needed")
    assert "nothing to do" in again.stdout
    back = convert_version(f"{tmp_path}/out@1", 1, output=str(tmp_path / "back"), reporter=Recorder())
    assert back.fingerprint == result.fingerprint


def test_what_is_not_split_stays_and_says_so(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A step of small variables alone stays one file: the result counts it, and --if-needed has nothing to do."""
    write(tmp_path / "run/step_1", {name: arrays[name] for name in (SMALL, "step")})
    reporter = Recorder()
    result = convert_version(f"{tmp_path}/run@1", 4, output=str(tmp_path / "out"), reporter=reporter)
    assert result.to_ps == 1
    assert any("the files are those of 1 rank" in line for line in reporter.warnings)
    done = document("reshard", f"{tmp_path}/out@1", "--ranks", "4", "--if-needed")
    assert done["needed"] is False
    assert done["to_ps"] == 1
