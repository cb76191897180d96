"""What is written as a variable is read back as one, in every system: the names of real models go there and back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core import (
    Table,
    convert_version,
    export_version,
    import_checkpoint,
    open_checkpoint,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.dcp.table_names import owners_of
from examples import examples
from model_names import MODELS, variables_of
from reporters import Recorder

BOOKKEEPING = re.compile(r"^emb/part_\d-(?:freqs|versions|partition_offset)$")
"""What a bundle of DeepRec has of a table besides rows."""


def saved(model: str, place: Path, *, tables: bool = True) -> dict[str, np.ndarray]:
    """Save the variables of a model, and perhaps a table, and return them."""
    variables = variables_of(model)
    with_table = {"emb": Table(np.arange(6), np.ones((6, 4), np.float32))} if tables else {}
    save_checkpoint(place, 1, 2, variables=variables, tables=with_table, reporter=Recorder())
    return dict(variables)


def assert_same(ref: object, variables: dict[str, np.ndarray], tables: int) -> None:
    """Assert that a checkpoint has these variables as variables, and so many tables."""
    with open_checkpoint(str(ref)) as opened:
        assert {name for name in opened.variable_names if not BOOKKEEPING.search(name)} == set(variables)
        for name, values in variables.items():
            np.testing.assert_array_equal(opened[name], values)
        assert len(opened.table_names) == tables
    assert verify_version(str(ref), level="deep").ok


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("system", ["dcp", "tensorflow"])
def test_to_each_system_and_back(tmp_path: Path, model: str, system: str) -> None:
    """The variables of a model are variables in the files of a system, after a reshard there, and back in ElasticDL."""
    variables = saved(model, tmp_path / "run")
    there = tmp_path / "there"
    export_version(f"{tmp_path}/run@1", str(there), format_name=system, ranks=2, reporter=Recorder())  # type: ignore[arg-type]
    assert_same(there, variables, 1)
    convert_version(str(there), 3, output=str(tmp_path / "again"), number=1, reporter=Recorder())
    assert_same(f"{tmp_path}/again@1", variables, 1)
    import_checkpoint(f"{tmp_path}/again@1", str(tmp_path / "back"), 1, 2, reporter=Recorder())
    assert_same(f"{tmp_path}/back@1", variables, 1)


@pytest.mark.parametrize("model", MODELS)
def test_a_healthy_model_of_safetensors_goes_to_torch(tmp_path: Path, model: str) -> None:
    """A model without tables, as Hugging Face saves it, goes to torch and back to one file."""
    variables, file = saved(model, tmp_path / "run", tables=False), tmp_path / "model.safetensors"
    export_version(f"{tmp_path}/run@1", str(file), reporter=Recorder())
    export_version(str(file), str(tmp_path / "dcp"), format_name="dcp", reporter=Recorder())
    assert_same(tmp_path / "dcp", variables, 0)
    back = tmp_path / "back.safetensors"
    export_version(str(tmp_path / "dcp"), str(back), reporter=Recorder())
    assert_same(back, variables, 0)


def test_a_name_that_a_system_takes_for_a_table_is_refused_by_name(tmp_path: Path) -> None:
    """Two variables with the names of a table's parts in TensorFlow end with 15 and the way out."""
    variables: dict[str, np.ndarray] = {"emb-keys": np.arange(5), "emb-values": np.ones((5, 2), np.float32)}
    save_checkpoint(tmp_path / "run", 1, 1, variables=variables, reporter=Recorder())
    with pytest.raises(UnsupportedError, match="part of a table") as raised:
        convert_version(f"{tmp_path}/run@1", 2, output=str(tmp_path / "out"), system="tensorflow", reporter=Recorder())
    assert "--rename 'emb-keys=NEW'" in (raised.value.hint or "")
    assert not (tmp_path / "out/step_1").exists()


WORDS = ("a", "b", "weight", "bias", "embeddings", "embedding_bags", "T", "0", "optim", "state", "momentum1", "ids")
NAMES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(".".join)


@examples(10)
@given(st.dictionaries(NAMES, st.integers(0, 2), min_size=1, max_size=8))
def test_any_names_go_to_torch(tmp_path_factory: pytest.TempPathFactory, dims: dict[str, int]) -> None:
    """Names put together from those that tables and their companions have are those of variables all the same."""
    place = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    variables = {name: np.asarray(rng.standard_normal((5, 2)[:count]), np.float32) for name, count in dims.items()}
    save_checkpoint(place / "run", 1, 1, variables=variables, reporter=Recorder())
    export_version(f"{place}/run@1", str(place / "dcp"), format_name="dcp", ranks=2, reporter=Recorder())
    assert_same(place / "dcp", variables, 0)


def test_only_names_that_mislead_are_marked() -> None:
    """A mark is of those names alone that a reader would take for a table's or a companion's."""
    shapes = {name: values.shape for name, values in variables_of("bert").items()}
    taken = [name for name in owners_of(shapes) if not name.startswith("bert.embeddings.")]
    assert not taken
