"""Arrays that the safetensors library saved, alone and as huggingface_hub splits them: each is read bit for bit."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import save_file

from edl_ckpt.core import list_versions, open_checkpoint, verify_version
from edl_ckpt.core.model.versions import State
from examples import examples
from foreign import run_judge, step

Arrays = dict[str, npt.NDArray[Any]]
KINDS = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "<i1", "<u8", "<u4", "<u2", "<u1", "bool")
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(KINDS).flatmap(lambda kind: arrays_of.arrays(kind, SHAPES))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")


def assert_equal(folder: Path, arrays: Arrays) -> None:
    """Assert that step 1 has exactly these variables."""
    version = step(folder, 1)
    assert version.state is State.COMPLETE
    with open_checkpoint(version) as checkpoint:
        assert set(checkpoint.variable_names) == set(arrays)
        for name, array in arrays.items():
            value = np.asarray(checkpoint.variable(name))
            assert (value.dtype, value.shape, value.tobytes()) == (array.dtype, array.shape, array.tobytes())


@examples(10)
@given(st.dictionaries(NAMES, ARRAYS, max_size=5))
def test_any_arrays(arrays: Arrays) -> None:
    """Whatever the names, dtypes and shapes are, the variables of a file are the arrays that were saved."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step_1").mkdir()
        save_file(arrays, f"{folder}/step_1/model.safetensors")
        assert_equal(Path(folder), arrays)


@pytest.mark.frameworks
def test_sets_of_huggingface_hub(tmp_path: Path) -> None:
    """A state that huggingface_hub splits into files, each of its sizes, is one step with all tensors."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    rng = np.random.default_rng(0)
    state = {f"layers.{n}.weight": rng.standard_normal((n % 7 + 1, 5)).astype("<f4") for n in range(200)}
    for limit in (100, 700, 1 << 20):
        folder = tmp_path / f"{limit}/step_1"
        folder.mkdir(parents=True)
        pattern = "model{suffix}.safetensors"
        split = hub.split_state_dict_into_shards_factory(
            state, get_storage_size=lambda a: a.nbytes, filename_pattern=pattern, max_shard_size=limit
        )
        for name, tensors in split.filename_to_tensors.items():
            save_file({tensor: state[tensor] for tensor in tensors}, str(folder / name), {"format": "pt"})
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
        assert_equal(folder.parent, state)


@pytest.mark.frameworks
def test_directories_of_a_trainer(tmp_path: Path) -> None:
    """Each directory that a transformers Trainer saved is a version with the values of the model at that step."""
    run_judge("EDL_CKPT_TEST_TORCH_PYTHON", "trainer.py", str(tmp_path))
    versions = list_versions(str(tmp_path / "run")).versions
    assert [(version.version, version.state) for version in versions] == [(n, State.COMPLETE) for n in (2, 4, 6)]
    for version in versions:
        with open_checkpoint(version) as checkpoint, np.load(tmp_path / f"{version.version}.npz") as truth:
            assert set(checkpoint.variable_names) == set(truth.files)
            assert all((checkpoint.variable(name) == truth[name]).all() for name in truth.files)
        assert verify_version(version, level="deep").ok
