"""A file of torch.save, and files of ranks, that edl-ckpt has written anew, as torch loads them.

`torch_rewritten.py save DIR` saves a state with all kinds of values. `compare OLD NEW` loads both with
`weights_only=True`: all must be the same, bit for bit. `ranks DIR W FULL` joins the DTensors of W files, and compares
them with a whole state_dict.
"""

from __future__ import annotations

import collections
import sys
from typing import Any

import torch
import torch.distributed.tensor  # allows DTensors


def save(folder: str) -> None:
    """Save a state with values of all kinds."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    values = torch.arange(6.0)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "transposed": values.reshape(2, 3).t(),
        "view": values[1:3],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "dtypes": [
            torch.ones(3).to(dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool)
        ],
        "rng": torch.get_rng_state(),
        "scalars": [None, True, 0, 255, 256, -1, 2**31, -(2**70), 1.5, float("inf"), "text", ""],
        "numbers": list(range(1500)),
        "nested": {"a": (1, (2, [3, {"b": {}}])), 5: "five"},
        "counter": collections.Counter(a=2),
        "device": torch.device("cpu"),
        "empty": torch.ones(0, 3),
    }
    torch.save(state, f"{folder}/full.pt")


def equal(one: Any, other: Any) -> bool:
    """Say whether two values are of the same class, and the same bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        same = (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        left, right = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other))
        return same and torch.equal(left, right)
    if isinstance(one, dict):
        states = getattr(one, "_metadata", None) == getattr(other, "_metadata", None)
        return states and list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def ranks(folder: str, world: int, full: str) -> None:
    """Compare the joined DTensors of files of ranks with a whole state_dict."""
    states = [
        torch.load(f"{folder}/model_world_size_{world}_rank_{rank}.pt", weights_only=True) for rank in range(world)
    ]
    whole = torch.load(full, weights_only=True)
    assert [list(state) for state in states] == [list(whole)] * world
    for name, tensor in whole.items():
        parts = [state[name] for state in states]
        chunks = torch.chunk(tensor, world)
        for rank, part in enumerate(parts):
            assert part.shape == tensor.shape
            assert part.device_mesh.mesh.tolist() == list(range(world))
            assert [str(placement) for placement in part.placements] == ["S(0)"]
            wanted = chunks[rank] if rank < len(chunks) else tensor[:0]
            assert torch.equal(part.to_local(), wanted), (name, rank)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "save":
        save(arguments[0])
    elif what == "compare":
        old, new = (torch.load(path, weights_only=True) for path in arguments)
        assert equal(old, new)
    else:
        ranks(arguments[0], int(arguments[1]), arguments[2])
