"""Variables of Keras and TensorFlow go through a checkpoint by their names, and back into variables that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint, save_checkpoint
from edl_ckpt.core.adapters.tensorflow import assign_variables, to_tensor, to_variables
from edl_ckpt.core.base.arrays import BFLOAT16
from edl_ckpt.core.base.errors import MismatchError, UsageError
from frameworks import need

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]


def model_of(keras: Any, units: int = 8) -> Any:
    """Return a compiled model of three layers with names."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(units, activation="relu", name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(1, name="head"),
    ]
    model = keras.Sequential(layers, name="model")
    model.compile(optimizer=keras.optimizers.Adam(0.05, name="adam"), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_tensorflow_model_and_optimizer(tmp_path: Path) -> None:
    """A Keras model and its optimizer that were restored take the same steps, and predict the same, as the first."""
    keras = need("tensorflow").keras
    inputs = np.random.default_rng(3).standard_normal((64, 4)).astype(np.float32)

    def fit(model: Any) -> list[float]:
        losses: list[float] = model.fit(
            inputs, inputs.sum(1), epochs=2, batch_size=16, shuffle=False, verbose=0
        ).history["loss"]
        return losses

    model = model_of(keras)
    fit(model)
    variables = to_variables(model, prefix="a/") | to_variables(model.optimizer, prefix="b/")
    assert {"a/model/hidden/kernel", "a/model/norm/moving_mean", "a/model/head/bias"} < set(variables)
    save_checkpoint(tmp_path, 2, 3, variables=variables, tables={})
    expected = fit(model)
    again = model_of(keras)
    with open_checkpoint(tmp_path) as checkpoint:
        assign_variables(again, checkpoint, prefix="a/")
        assign_variables(again.optimizer, checkpoint, prefix="b/")
    assert fit(again) == expected
    assert np.array_equal(model.predict(inputs, verbose=0), again.predict(inputs, verbose=0))


def test_tensorflow_mismatches_are_listed() -> None:
    """Every variable that is absent or different is named with both shapes, and none was assigned."""
    keras = need("tensorflow").keras
    variables = to_variables(model_of(keras))
    del variables["model/head/bias"]
    variables["model/norm/gamma"] = variables["model/norm/gamma"].astype(np.float64)
    other = model_of(keras, units=5)
    before = [value.tolist() for value in to_variables(other).values()]
    with pytest.raises(MismatchError) as caught:
        assign_variables(other, variables)
    assert "'model/head/bias' is absent" in str(caught.value)
    assert "'model/hidden/kernel' is float32 [4, 8], expected float32 [4, 5]" in str(caught.value)
    assert "'model/norm/gamma' is float64 [8], expected float32 [5]" in str(caught.value)
    assert [value.tolist() for value in to_variables(other).values()] == before


def test_tensorflow_variables_and_modules(tmp_path: Path) -> None:
    """tf.Variable by its name, modules, lists of variables and single ones; bfloat16 keeps its bits."""
    tf = need("tensorflow")

    class Module(tf.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.half = tf.Variable([1.5, -2.0], dtype=tf.bfloat16, name="half")
            self.step = tf.Variable(7, dtype=tf.int64, name="step")

    module = Module()
    variables = to_variables(module)
    assert set(variables) == {"half:0", "step:0"} == set(to_variables([module.half, module.step]))
    save_checkpoint(tmp_path, 1, 2, variables=variables, tables={})
    module.half.assign([0, 0])
    module.step.assign(0)
    with open_checkpoint(tmp_path) as checkpoint:
        assign_variables(module, checkpoint)
        assign_variables(module.step, checkpoint)
    assert module.step.numpy() == 7
    assert module.half.numpy().tolist() == [1.5, -2.0]
    assert to_tensor(np.zeros(2, BFLOAT16)).dtype == tf.bfloat16


@pytest.mark.parametrize("source", [3, "w", {"w": 1}, None])
def test_tensorflow_sources_without_variables(source: Any) -> None:
    """Anything without variables is a UsageError; two of one name are too."""
    tf = need("tensorflow")
    with pytest.raises(UsageError, match="expected a model"):
        to_variables(source)
    with pytest.raises(UsageError, match="would be the variable 'w:0'"):
        to_variables([tf.Variable(1.0, name="w"), tf.Variable(2.0, name="w")])
