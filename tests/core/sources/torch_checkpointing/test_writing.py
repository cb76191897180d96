"""What is written for torch_checkpointing comes back with the same content, and the library itself loads it.

All numbers of ranks, in five minutes:
EDL_CKPT_TEST_TORCH_PYTHON=PYTHON pytest -n 0 -m "frameworks and slow" tests/core/sources/torch_checkpointing
where PYTHON has torch and torch_checkpointing 0.1.1.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import export_version, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.proof.fingerprint import of_tables
from foreign import SYSTEMS, run_judge

SHAPES = ((7, 4), (3,), (1, 5), (64, 33), (8, 8), (2, 3, 4), (), (9,), (0, 3))
JUDGE, PYTHON = "torch_checkpointing_loads.py", "EDL_CKPT_TEST_TORCH_PYTHON"


def truth() -> dict[str, Any]:
    """Tensors of several shapes and dtypes, by their names in the item `model`."""
    random = np.random.default_rng(5)
    found = {f"layer.{n}.w": random.standard_normal(shape).astype(np.float32) for n, shape in enumerate(SHAPES)}
    return found | {"ids": np.arange(5), "mask": np.array([True, False]), "half": np.ones((5, 2), np.float64)}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A version with these tensors."""
    variables = {f"model.{name}": array for name, array in truth().items()}
    return save_checkpoint(str(tmp_path / "source"), 7, 2, variables=variables, tables={}).ref


def fingerprint(path: Path | str) -> str:
    """The fingerprint of a version, in which nothing is wrong."""
    result = verify_version(str(path), level="deep")
    assert result.own_errors == []
    return of_tables(result.fingerprint or "")


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_comes_back(ranks: int, source: str, tmp_path: Path) -> None:
    """By way of so many ranks, of a safetensors set and of DCP the content keeps its fingerprint."""
    done = export_version(source, str(tmp_path / "tc"), format_name="torch-checkpointing", ranks=ranks)
    assert done.proved
    files = sorted(path.name for path in (tmp_path / "tc").iterdir())
    assert files == ["metadata.pkl", *(f"model_{rank}.pt" for rank in range(ranks))]
    wanted = fingerprint(source)
    assert fingerprint(tmp_path / "tc") == wanted
    export_version(str(tmp_path / "tc"), str(tmp_path / "set"), format_name="safetensors", max_shard_bytes=4096)
    export_version(str(tmp_path / "set"), str(tmp_path / "dcp"), format_name="dcp", ranks=2)
    export_version(str(tmp_path / "dcp"), str(tmp_path / "again"), format_name="torch-checkpointing", ranks=2)
    assert fingerprint(tmp_path / "dcp") == fingerprint(tmp_path / "again") == wanted
    with open_checkpoint(str(tmp_path / "again")) as checkpoint:
        for name, array in truth().items():
            assert np.array_equal(checkpoint[f"model.{name}"], array), name


def test_tables_and_optimizers(tmp_path: Path) -> None:
    """TorchRec's tables stay tables; the state of an optimizer is nested, with numbers as keys."""
    step = SYSTEMS / "dcp" / "torchrec" / "step_2"
    export_version(str(step), str(tmp_path / "tc"), format_name="torch-checkpointing", ranks=3)
    with open_checkpoint(str(step)) as one, open_checkpoint(str(tmp_path / "tc")) as other:
        assert len(one.table_names) == len(other.table_names) > 0
    variables = {"model.w": np.ones(3), "optim.state.0.exp_avg": np.ones(3), "optim.state.0.step": np.ones(())}
    save_checkpoint(str(tmp_path / "run"), 1, 1, variables=variables, tables={})
    export_version(f"{tmp_path / 'run'}@1", str(tmp_path / "two"), format_name="torch-checkpointing", ranks=2)
    stored = pickle.loads((tmp_path / "two" / "metadata.pkl").read_bytes())
    assert set(stored["metadata"]) == {"model", "optim"}
    assert set(stored["metadata"]["optim"]["nested_path_to_metadata"]) == {
        '["state",0,"exp_avg"]',
        '["state",0,"step"]',
    }
    assert (stored["world_size"], stored["version"]) == (2, "2.0")
    assert fingerprint(tmp_path / "two") == fingerprint(f"{tmp_path / 'run'}@1")


def test_names_without_items(tmp_path: Path) -> None:
    """Where names do not begin with an item, all tensors are in `model`, under their whole names."""
    save_checkpoint(str(tmp_path / "run"), 1, 1, variables={"a.b": np.ones(3), "model.c": np.ones(2)}, tables={})
    export_version(f"{tmp_path / 'run'}@1", str(tmp_path / "tc"), format_name="torch-checkpointing")
    with open_checkpoint(str(tmp_path / "tc")) as checkpoint:
        assert sorted(checkpoint.variable_names) == ["model.a.b", "model.model.c"]


def judged(source: str, folder: Path, saved: int, loaded: int) -> None:
    """Write for some ranks, and let the library load with others."""
    arrays: dict[str, Any] = {name: array for name, array in truth().items() if array.size}
    np.savez(folder / "truth.npz", **arrays)
    shutil.rmtree(folder / "tc", ignore_errors=True)
    export_version(source, str(folder / "tc"), format_name="torch-checkpointing", ranks=saved)
    run_judge(PYTHON, JUDGE, str(folder / "tc"), str(loaded), str(folder / "truth.npz"))


@pytest.mark.frameworks
@pytest.mark.parametrize(("saved", "loaded"), [(3, 2), (1, 2)])
def test_the_library_loads_it(saved: int, loaded: int, source: str, tmp_path: Path) -> None:
    """torch_checkpointing loads it into DTensors cut by rows and by columns, and into plain tensors."""
    judged(source, tmp_path, saved, loaded)


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize("saved", [1, 2, 3, 8])
@pytest.mark.parametrize("loaded", [1, 2, 3, 8])
def test_the_library_loads_all(saved: int, loaded: int, source: str, tmp_path: Path) -> None:
    """Every number of ranks loads every number."""
    judged(source, tmp_path, saved, loaded)
