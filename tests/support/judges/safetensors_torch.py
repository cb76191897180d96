"""Checkpoints that Hugging Face's libraries save from torch, and their values: safetensors_torch.py OUT.

It runs under a Python that has torch, safetensors and huggingface_hub, as a program. Each directory of steps has the
truth beside it, `STEP.npz`; a bfloat16 is there as the uint16 of the same bits.
"""

import os
import sys

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file

OUT = sys.argv[1]
torch.manual_seed(0)
WEIGHTS = {
    "model.embed.weight": torch.randn(50, 8),
    "model.layers.0.weight": torch.randn(6, 7, dtype=torch.float64),
    "model.layers.0.bias": torch.randn(5).half(),
    "model.layers.1.weight": torch.randn(4, 3).bfloat16(),
    "model.steps": torch.tensor(7),
    "model.mask": torch.tensor([True, False, True]),
    "model.bytes": torch.arange(9, dtype=torch.uint8),
    "model.empty": torch.zeros(0, 4),
}
OTHERS = {
    "model.scale": torch.randn(4, 4).to(torch.float8_e4m3fn),
    "model.phase": torch.randn(3, dtype=torch.complex64),
}
TABLE = {"user.ids": torch.tensor([7, -3, 2**40, 0]), "user.vectors": torch.randn(4, 3)}


def truth(step: int, tensors: dict[str, torch.Tensor]) -> None:
    """Write the values of tensors, those of dtypes that numpy has or that can be seen as such."""
    as_numpy = {n: t.view(torch.uint16) if t.dtype == torch.bfloat16 else t for n, t in tensors.items()}
    np.savez(f"{OUT}/{step}.npz", **{name: tensor.numpy() for name, tensor in as_numpy.items()})


def split(step: int, tensors: dict[str, torch.Tensor]) -> None:
    """Save a set of files with an index."""
    save_torch_state_dict(tensors, f"{OUT}/checkpoint-{step}", max_shard_size=400, metadata={"format": "pt"})


for number in (100, 200, 300):
    os.makedirs(f"{OUT}/checkpoint-{number}")
save_file({**WEIGHTS, **OTHERS}, f"{OUT}/checkpoint-100/model.safetensors", {"format": "pt"})
truth(100, WEIGHTS)
split(200, {**WEIGHTS, **TABLE})
truth(200, {**WEIGHTS, **TABLE})
for name in ("unet", "vae"):
    os.makedirs(f"{OUT}/checkpoint-300/{name}")
    save_file({"weight": WEIGHTS["model.embed.weight"]}, f"{OUT}/checkpoint-300/{name}/model.safetensors")
truth(300, {f"{name}/model/weight": WEIGHTS["model.embed.weight"] for name in ("unet", "vae")})
