"""What torch itself reads from a checkpoint, and random models of TorchRec: run by a Python that has both installed.

python torchrec_models.py truth CHECKPOINT OUT.npz     all tensors, as `dcp.load` reads them
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")  # of torch


def read(path: str) -> dict[str, Any]:
    """Return the tensors of a checkpoint as `dcp.load` reads them, into new ones of the saved shapes and dtypes."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = dcp.FileSystemReader(path)
    stored = reader.read_metadata().state_dict_metadata.items()
    tensors = {
        name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
        for name, tensor in stored
        if isinstance(tensor, TensorStorageMetadata)
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    dcp.load(tensors, storage_reader=reader, planner=planner, no_dist=True)
    return tensors


def write_truth(tensors: dict[str, Any], path: str) -> None:
    """Write tensors as their bytes in C order, with their dtypes and shapes as JSON in `__meta__`."""
    import torch

    kinds = {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()}
    data = {name: tensor.contiguous().flatten().view(torch.uint8).numpy() for name, tensor in tensors.items()}
    np.savez_compressed(path, __meta__=np.frombuffer(json.dumps(kinds).encode(), np.uint8), **data)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["truth", checkpoint, out]:
            write_truth(read(checkpoint), out)
        case _:
            sys.exit(__doc__)
