"""Models and optimizers of PyTorch and Keras as tracked objects, and objects that hand out a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import verify_version
from edl_ckpt.core.base.errors import MismatchError, UsageError
from edl_ckpt.core.training.objects import ObjectCheckpoint, list_variables
from frameworks import need


class Counter:
    """An object with a state of its own, as optimizers and data loaders have it: numbers, texts, arrays, other keys."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}

    def state_dict(self) -> dict[Any, Any]:
        """Return the state."""
        return self.state

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        """Take a state."""
        self.state = state


def test_an_object_with_a_state(tmp_path: Path) -> None:
    """What `state_dict` returns is saved as a whole, plain values too, and handed to `load_state_dict`, also late."""
    saved = Counter()
    saved.state = {"rate": 0.5, "slots": {0: np.ones(2), 1: None}, "seen": [True, ("a", 3)]}
    ref = ObjectCheckpoint(a=np.ones(1), deep={"counter": saved}).save(tmp_path / "run")
    fresh = ObjectCheckpoint(deep={})
    status = fresh.restore(ref)
    fresh.deep["counter"] = late = Counter()
    assert late.state["slots"][0].tolist() == [1, 1]
    assert {key: late.state[key] for key in ("rate", "seen")} == {"rate": 0.5, "seen": [True, ("a", 3)]}
    with pytest.raises(MismatchError, match=r"differ in 1 value\n  a: "):
        status.assert_consumed()
    fresh.other = Counter()
    with pytest.raises(MismatchError, match="other: the state of an object in the program, not in the checkpoint"):
        status.assert_existing_objects_matched()
    status.expect_partial()


@pytest.mark.frameworks
def test_pytorch_goes_on_where_it_was(tmp_path: Path) -> None:
    """Module, optimizer and schedule, restored into new ones, train on to the same bits; parameters stay the same."""
    torch = need("torch")

    def make() -> dict[str, Any]:
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        net.register_parameter("scale", torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        return {"net": net, "optimizer": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2)}

    def train(parts: dict[str, Any], steps: int) -> None:
        for step in range(steps):
            parts["optimizer"].zero_grad()
            data = torch.arange(15.0).reshape(5, 3) + step
            ((parts["net"](data * parts["net"].scale.float())) ** 2).mean().backward()
            parts["optimizer"].step()
            parts["schedule"].step()

    first, second = make(), make()
    train(first, 3)
    ref = ObjectCheckpoint(**first).save(tmp_path / "run")
    weight = second["net"][0].weight
    ObjectCheckpoint(**second).restore(ref).assert_consumed()
    assert weight is second["net"][0].weight
    assert weight.requires_grad
    train(first, 3)
    train(second, 3)
    assert second["schedule"].last_epoch == 6
    states = [parts["net"].state_dict() for parts in (first, second)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.frameworks
def test_iterators_of_tensorflow_go_on(tmp_path: Path) -> None:
    """An iterator over a shuffled dataset goes on with the elements that `tf.train.Checkpoint` goes on with."""
    tf: Any = need("tensorflow")

    def make() -> Any:
        return iter(tf.data.Dataset.range(40).shuffle(7, seed=3).batch(3))

    first, ours, theirs = make(), make(), make()
    for _ in range(4):
        next(first)
    ref = ObjectCheckpoint(data=first, step=np.ones(1)).save(tmp_path / "run")
    path = tf.train.Checkpoint(data=first).save(str(tmp_path / "tf"))
    assert [name.partition("/")[0] for name, _ in list_variables(ref)] == ["data", "save_counter", "step"]
    ObjectCheckpoint(data=ours, step=np.zeros(1)).restore(ref).assert_consumed()
    tf.train.Checkpoint(data=theirs).restore(path)
    rest = [[batch.numpy().tolist() for batch in each] for each in (first, ours, theirs)]
    assert rest[0] == rest[1] == rest[2] != []
    late = ObjectCheckpoint(step=np.zeros(1))
    late.restore(ref)
    late.data = make()
    assert [batch.numpy().tolist() for batch in late.data] == rest[0]
    generated = iter(tf.data.Dataset.from_generator(lambda: iter([1, 2]), tf.int32))
    next(generated)
    with pytest.raises(UsageError, match="data: TensorFlow cannot save this iterator"):
        ObjectCheckpoint(data=generated).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert verify_version(ref, level="deep").ok


@pytest.mark.frameworks
def test_keras_has_the_names_of_tensorflow(tmp_path: Path) -> None:
    """A Keras model and its optimizer get exactly the keys that `tf.train.Checkpoint` gives them, and come back."""
    tf: Any = need("tensorflow")

    class Net(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.l1, self.norm = tf.keras.layers.Dense(5), tf.keras.layers.BatchNormalization()
            self.tail = [tf.keras.layers.Dense(2)]

        def call(self, x: Any) -> Any:
            return self.tail[0](self.norm(self.l1(x)))

    def make() -> dict[str, Any]:
        net, optimizer = Net(), tf.keras.optimizers.Adam(0.1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(tf.ones((2, 3))) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True)
        )
        return {"net": net, "optimizer": optimizer, "step": tf.Variable(3)}

    first, second = make(), make()
    ref = ObjectCheckpoint(**first).save(tmp_path / "run")
    theirs = tf.train.list_variables(tf.train.Checkpoint(**first).save(str(tmp_path / "tf")))
    keys = [(name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"), shape) for name, shape in theirs if name[0] != "_"]
    assert list_variables(ref) == keys
    ObjectCheckpoint(**second).restore(ref).assert_consumed()
    both = [parts["net"].weights + parts["optimizer"].variables for parts in (first, second)]
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(*both, strict=True))
