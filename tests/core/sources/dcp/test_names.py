"""Names where a step has several indexes: those of one index do not depend on which others there are."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import torch_items
from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.sources.dcp.names import shown_names

OVER = "model.over.weight"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A step with a model, an optimizer, and an average of the model."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for folder, name in (("model", OVER), ("optimizer", f"state.{OVER}.exp_avg"), ("dense_ema", OVER)):
        torch_items.write_step(tmp_path / "run/step_1" / folder, torch_items.boxes(name, values, [[], []]))
    return tmp_path / "run/step_1"


def names(step: Path) -> list[str]:
    with open_checkpoint(f"{step.parent}@1") as checkpoint:
        return checkpoint.variable_names


def test_a_third_index_renames_nothing(step: Path) -> None:
    """With the average or without it, the model and the optimizer have the names that their own indexes have."""
    both = [OVER, f"state.{OVER}.exp_avg"]
    assert names(step) == [f"dense_ema.{OVER}", *both]
    shutil.rmtree(step / "dense_ema")
    assert names(step) == both
    shutil.rmtree(step / "optimizer")
    assert names(step) == [OVER]


def test_directories_of_models_and_optimizers() -> None:
    """Two main directories with one name get theirs before it, as ever; an index alone stays as it is, wherever."""
    assert shown_names({"ema/": ["w"]}) == {"ema/": {"w": "w"}}
    both = shown_names({"pytorch_model_fsdp_0/": ["step", "w"], "optimizer_0/": ["step", "m"]})
    assert both["pytorch_model_fsdp_0/"] == {"step": "pytorch_model_fsdp_0.step", "w": "w"}
    assert both["optimizer_0/"] == {"step": "optimizer_0.step", "m": "m"}
    assert shown_names({"": ["w"], "a/b/": ["w"]}) == {"": {"w": "w"}, "a/b/": {"w": "a.b.w"}}
