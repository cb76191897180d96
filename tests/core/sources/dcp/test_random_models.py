"""Random models that real TorchRec saves, compared with what it reads and looks up.

They need a Python with torch, torchrec and fbgemm-gpu-cpu. The full counts, 200 models and 50 with managed collision:
`EDL_CKPT_TEST_TORCHREC_PYTHON=.../python pytest -n 0 -m hours tests/core/sources/dcp/test_random_models.py`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint
from places import TESTS
from torch_checkpoints import raw, truth
from torch_items import Saved, boxes, write_step

JUDGE = TESTS / "support/judges/torchrec_models.py"
PYTHON = os.environ.get("EDL_CKPT_TEST_TORCHREC_PYTHON", "")
needs_torchrec = pytest.mark.skipif(not PYTHON, reason="EDL_CKPT_TEST_TORCHREC_PYTHON names no Python with torchrec")


def saved(job: str, out: Path, world: int, count: int) -> list[Path]:
    """Let the ranks of a job save some models; return their steps."""
    command = [PYTHON, "-W", "ignore", str(JUDGE), job, str(out), str(world), str(count), str(world)]
    subprocess.run(command, check=True, capture_output=True, timeout=3600)
    return steps(out, count)


def steps(out: Path, count: int) -> list[Path]:
    """Return the directories of some steps."""
    return [out / f"step_{number}" for number in range(count)]


def compare(step: Path) -> None:
    """Compare all tensors of a step with what torch reads, bit for bit; a table has a row for each row number."""
    expected = truth(step.with_suffix(".npz"))
    with open_checkpoint(f"{step.parent}@{step.name.removeprefix('step_')}") as checkpoint:
        assert not any(shard.problems for shard in checkpoint.shards)
        for name in checkpoint.variable_names:
            tensor, values = expected.pop(name), checkpoint.variable(name, bits=True)
            stored = checkpoint.find_variable(name)[1].dtype.name
            assert (values.shape, stored) == (tensor.shape, tensor.dtype), (step, name)
            assert np.array_equal(raw(values), tensor.data), (step, name)
        for name in checkpoint.table_names:
            tensor, table = expected.pop(name), checkpoint.table(name)
            ids, vectors = table.to_numpy()
            assert table.dtype == tensor.dtype
            assert np.array_equal(ids, np.arange(tensor.shape[0])), (step, name)
            assert np.array_equal(raw(vectors), tensor.data), (step, name)
            some = np.random.default_rng(0).permutation(ids)[:5]
            assert np.array_equal(raw(table.to_numpy(some).vectors), raw(tensor.rows[some])), (step, name)
    assert not expected


def compare_ids(step: Path) -> int:
    """Compare the rows of all live raw ids with those that a forward pass looked up; return how many there are."""
    arrays, compared = np.load(step.with_suffix(".npz")), 0
    with open_checkpoint(f"{step.parent}@{step.name.removeprefix('step_')}") as checkpoint:
        assert not any(shard.problems for shard in checkpoint.shards)
        for key in filter(lambda key: key.startswith("ids:"), arrays.files):
            ids, rows = arrays[key], arrays[key.replace("ids:", "rows:")]
            name = f"model.mc._embedding_module.embedding_bags.{key[4:]}.weight"
            table = checkpoint.table(name)
            assert np.array_equal(np.sort(ids), table.to_numpy().ids), (step, name)
            if len(ids):
                assert np.array_equal(table.to_numpy(ids).vectors, rows), (step, name)
            for companion in (info.name for info in checkpoint.infos.values() if info.companion_of == name):
                assert np.array_equal(np.sort(ids), checkpoint.table(companion).to_numpy().ids), (step, companion)
            compared += len(ids)
    return compared


@needs_torchrec
@pytest.mark.frameworks
def test_a_few_models_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    """Tables by rows, by columns, whole and data-parallel, and tensors in boxes equal `dcp.load`, bit for bit."""
    for step in saved("models", tmp_path, 2, 3):
        compare(step)


@needs_torchrec
@pytest.mark.frameworks
def test_a_few_models_with_managed_collision_give_the_rows_of_raw_ids(tmp_path: Path) -> None:
    """Each live raw id gives the row that a forward pass looks up."""
    assert sum(map(compare_ids, saved("collisions", tmp_path, 2, 2))) > 0


@needs_torchrec
@pytest.mark.hours
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_200_models_are_read_as_torch_reads_them(tmp_path: Path, world: int) -> None:
    """As above, 50 models of each world size, all written by one set of processes."""
    for step in saved("models", tmp_path, world, 50):
        compare(step)


@needs_torchrec
@pytest.mark.hours
@pytest.mark.parametrize(("world", "count"), [(1, 12), (2, 13), (3, 13), (8, 12)])
def test_50_models_with_managed_collision_give_the_rows_of_raw_ids(tmp_path: Path, world: int, count: int) -> None:
    """As above, with evicted ids."""
    assert sum(map(compare_ids, saved("collisions", tmp_path, world, count))) > 0


@needs_torchrec
@pytest.mark.frameworks
def test_torch_reads_the_steps_that_tests_make(tmp_path: Path) -> None:
    """Steps that the tests write without torch are such that torch reads the same values from them."""
    array = np.arange(70, dtype=np.float32).reshape(10, 7)
    parts = [*boxes("by_both", array, [[4], [3, 5]], ranks=2), *boxes("ids", np.arange(9), [[2]], ranks=2)]
    step = write_step(tmp_path / "step_1", [*parts, Saved("t", (7, 10), (0, 0), (7, 10), array, strides=(1, 7))])
    command = [PYTHON, "-W", "ignore", str(JUDGE), "truth", str(step), f"{step}.npz"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    assert np.array_equal(truth(step.with_suffix(".npz"))["by_both"].data, raw(array))
    compare(step)
