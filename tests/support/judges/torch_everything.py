"""Save a checkpoint with a tensor of each dtype that torch saves, and values of Python, to the directory named."""

import sys

import torch
import torch.distributed.checkpoint as dcp

torch.manual_seed(0)
STATE = {"w": torch.randn(6, 4), "flags": torch.tensor([True, False])}
for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    STATE[f"odd.{name}"] = torch.randint(1, 100, (5, 3), dtype=torch.uint8).view(getattr(torch, name))
STATE["odd.float4"] = torch.randint(0, 255, (5, 3), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
for name in ("complex32", "complex64", "complex128"):
    STATE[f"odd.{name}"] = torch.randn(4, 2, dtype=torch.complex64).to(getattr(torch, name))
STATE["odd.qint8"] = torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 3, torch.qint8)
STATE |= {"lr": 0.1, "step": 7, "text": "hello", "nested": {"a": [1, {"b": "c"}]}}
dcp.save(STATE, checkpoint_id=sys.argv[1], no_dist=True)
