"""Models that Keras itself puts together, saved and restored as objects: their graphs have tensors without values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.training.objects import CheckpointManager, ObjectCheckpoint
from frameworks import need


def _model(keras: Any, kind: str) -> Any:
    """Return a compiled model that was fitted to random numbers."""
    layers = keras.layers
    if kind == "sequential":
        model = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(2)])
    elif kind == "nested":
        inner = keras.Sequential([layers.Dense(4), layers.Dense(4)])
        model = keras.Sequential([keras.Input((3,)), inner, layers.Dense(2)])
    else:
        inputs = keras.Input((3,))
        model = keras.Model(inputs, layers.Dense(2)(layers.Dense(4)(inputs)))
    model.compile("adam", "mse")
    values = np.random.default_rng()
    model.fit(values.standard_normal((8, 3)), values.standard_normal((8, 2)), verbose=0)
    return model


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["sequential", "nested", "functional"])
def test_a_model_of_tensorflow_keras(tmp_path: Path, kind: str) -> None:
    """Weights, statistics of a normalization and the optimizer come back, and nothing is left over."""
    need("tensorflow")
    keras = need("keras")
    saved, other = _model(keras, kind), _model(keras, kind)
    CheckpointManager(ObjectCheckpoint(model=saved, optimizer=saved.optimizer), tmp_path, max_to_keep=1).save()
    checkpoint = ObjectCheckpoint(model=other, optimizer=other.optimizer)
    status = checkpoint.restore(CheckpointManager(checkpoint, tmp_path, max_to_keep=1).latest_checkpoint)
    status.assert_consumed()
    for old, new in zip(saved.variables, other.variables, strict=True):
        assert np.array_equal(np.asarray(old), np.asarray(new))
    for old, new in zip(saved.optimizer.variables, other.optimizer.variables, strict=True):
        assert np.array_equal(np.asarray(old), np.asarray(new))
