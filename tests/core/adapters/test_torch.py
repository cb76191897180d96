"""The state of a PyTorch model and of its optimizer goes through a checkpoint and comes back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint, save_checkpoint
from edl_ckpt.core.adapters.torch import to_state_dict, to_tensor, to_variables
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from frameworks import need

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]


def through(variables: dict[str, Any], location: Path, prefix: str) -> dict[Any, Any]:
    """Save variables for three servers, and return the state_dict that is read."""
    save_checkpoint(location, 1, 3, variables=variables, tables={})
    with open_checkpoint(location) as checkpoint:
        return to_state_dict(checkpoint, prefix=prefix)


@pytest.mark.parametrize("kind", ["Adam", "SGD", "Adagrad", "LBFGS"])
def test_model_and_optimizer_of_torch(kind: str, tmp_path: Path) -> None:
    """Restored objects have equal tensors, and the next steps of both runs are equal bit for bit."""
    torch = need("torch")

    def objects() -> tuple[Any, Any]:
        torch.manual_seed(1)
        layers = (torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        model = torch.nn.Sequential(*layers)
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        rate = 1e-3 if kind == "LBFGS" else 0.05  # LBFGS diverges
        return model, getattr(torch.optim, kind)(model.parameters(), lr=rate, **settings)

    def steps(model: Any, optimizer: Any, numbers: range) -> list[float]:
        losses = []
        for number in numbers:
            inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))

            def closure(inputs: Any = inputs) -> Any:
                optimizer.zero_grad()
                loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        return losses

    model, optimizer = objects()
    steps(model, optimizer, range(5))
    variables = to_variables(model.state_dict(), prefix="m/") | to_variables(optimizer.state_dict(), prefix="o/")
    save_checkpoint(tmp_path, 5, 2, variables=variables, tables={})
    expected = steps(model, optimizer, range(5, 8))
    assert np.isfinite(expected).all()
    model, optimizer = objects()
    with open_checkpoint(tmp_path) as checkpoint:
        model.load_state_dict(to_state_dict(checkpoint, prefix="m/"))
        optimizer.load_state_dict(to_state_dict(checkpoint, prefix="o/"))
    assert steps(model, optimizer, range(5, 8)) == expected


def test_torch_equals_what_torch_loads(tmp_path: Path) -> None:
    """Every dtype, shape and stride: what comes back is `torch.equal` to what `torch.load` gives of the same state."""
    torch = need("torch")
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "bfloat16": torch.tensor([1.0, -0.0, float("nan"), float("inf")], dtype=torch.bfloat16),
        "bfloat16 scalar": torch.tensor(3.0, dtype=torch.bfloat16),
        "half": base.half(),
        "columns": base[:, ::2],
        "transposed": base.t(),
        "gradient": torch.nn.Parameter(base),
        "scalar": torch.tensor(7),
        "empty": torch.zeros((0, 3)),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }
    torch.save(state, tmp_path / "state.pt")
    expected = torch.load(tmp_path / "state.pt", weights_only=True)
    got = through(to_variables(state, prefix="s/"), tmp_path / "run", "s/")
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got[name].nan_to_num(5), tensor.nan_to_num(5))


def test_torch_shares_memory() -> None:
    """A tensor in memory is not copied on the way out, and an array not on the way in."""
    torch = need("torch")
    tensor = torch.zeros(3)
    shared = to_variables({"w": tensor})["w"]
    tensor += 1
    assert shared.tolist() == [1, 1, 1]
    array = np.zeros(3)
    to_tensor(array)[0] = 5
    assert array[0] == 5
    array.flags.writeable = False
    assert to_tensor(array).tolist() == [5, 0, 0]


def test_torch_states_that_cannot_be_saved() -> None:
    """Tensors without values here, and objects, are errors of ours that name them."""
    torch = need("torch")
    with pytest.raises(UsageError, match=r"variable 'm/w': .*meta"):
        to_variables({"w": torch.zeros(2, device="meta")}, prefix="m/")
    with pytest.raises(UsageError, match="cannot contain a device"):
        to_variables({"w": torch.device("cpu")})


def test_torch_dtypes_that_no_checkpoint_has(tmp_path: Path) -> None:
    """A complex tensor is unsupported, and nothing is written."""
    torch = need("torch")
    with pytest.raises(UnsupportedError, match="complex64"):
        save_checkpoint(tmp_path / "run", 1, 1, variables=to_variables({"w": torch.zeros(2) * 1j}), tables={})
    assert not (tmp_path / "run").exists()
