"""Files that torch itself saved: each tensor is what torch.load reads, bit for bit, alone and joined from ranks."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest

from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.reading.reader import Checkpoint
from foreign import run_judge

PYTHON = "EDL_CKPT_TEST_TORCH_PYTHON"
FIXTURES = Path(__file__).parents[3] / "data/systems/torch"


def digests(checkpoint: Checkpoint) -> dict[str, list[object]]:
    """Return dtype, shape and the SHA-256 of the bytes of each variable, by its name."""
    found: dict[str, list[object]] = {}
    for shard in checkpoint.shards:
        for entry in shard.variables:
            if not entry.is_item:
                data = checkpoint.reader(shard, entry.values).read(entry.values.start, entry.values.size_bytes)
                assert len(data) == math.prod(entry.shape) * entry.dtype.itemsize
                found[entry.name] = [entry.dtype.name, list(entry.shape), hashlib.sha256(data).hexdigest()]
    return found


def assert_as_torch(folder: Path, least: int) -> None:
    """Assert that each file, or directory, of a folder has what the truth next to it says, and no more."""
    checked = 0
    for truth in sorted(folder.glob("*.json")):
        place = truth.with_suffix("") if truth.with_suffix("").is_dir() else truth.with_suffix(".pt")
        with open_checkpoint(str(place)) as checkpoint:
            assert digests(checkpoint) == json.loads(truth.read_text("utf-8")), place
        checked += 1
    assert checked >= least


def test_fixtures() -> None:
    """Files of torch 2.13, of a release before 1.6 and of 1, 2 and 4 ranks, as `judges/torch_files.py` made them."""
    assert_as_torch(FIXTURES / "sharded2", 1)
    for folder in ("files", "ranks2", "ranks4"):
        assert_as_torch(FIXTURES / folder, 3)


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_files(tmp_path: Path, seed: int) -> None:
    """500 random files in all: nested values, views, ties, transposed and expanded tensors, all dtypes, old and new."""
    run_judge(PYTHON, "torch_files.py", "random", str(tmp_path), str(seed + 1), "100")
    assert_as_torch(tmp_path, 100)


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_random_ranks(tmp_path: Path, ranks: int) -> None:
    """200 models of DTensors from 1 to 8 ranks: meshes of several dimensions, uneven and empty parts, strided ones."""
    run_judge(PYTHON, "torch_files.py", f"ranks{ranks}", str(tmp_path), str(ranks + 40), "25")
    assert_as_torch(tmp_path, 25)
