"""A state of several items, by torch_checkpointing: torch_checkpointing_states.py save|load DIR RANKS [plain|other].

`save` writes a model and an optimizer that are cut by rows, or that each rank has whole, and a number; `load` reads
them for so many ranks, and compares all of it. With `plain` no item has a resharder, so no metadata are written;
with `other` ranks than saved it, values that are no tensors are not compared. The exit code is 1 for a difference.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")


def gathered(self: Any, data: Any, process_group: Any = None) -> dict[int, Any]:
    """What the library gathers on GPUs only."""
    del self
    out: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(out, data, group=process_group)
    return dict(enumerate(out))


def state(ranks: int, *, zero: bool) -> dict[str, Any]:
    """Return the state of a job, or one of the same form to load into."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))

    def numbers(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return torch.zeros(shape) if zero else torch.arange(count, dtype=torch.float32).reshape(shape) + 0.5

    rows = {f"w{n}": distribute_tensor(numbers(n, 4), mesh, [Shard(0)]) for n in (2, 7, 64)}
    model = {
        **rows,
        "whole": distribute_tensor(numbers(2, 2), mesh, [Replicate()]),
        "plain": numbers(5),
        "half": numbers(3, 2).bfloat16(),
        "scalar": numbers().clone(),
    }
    moments = {"exp_avg": distribute_tensor(numbers(7, 4) * 2, mesh, [Shard(0)]), "step": numbers().clone()}
    groups = [{"lr": 0.0 if zero else 0.1, "betas": (0.9, 0.999), "params": [0]}]
    return {"model": model, "optim": {"state": {0: moments}, "param_groups": groups}, "step": 0 if zero else 1000}


def equal(one: Any, other: Any) -> bool:
    """Say whether two values are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        left, right = (x.full_tensor() if hasattr(x, "full_tensor") else x for x in (one, other))
        return left.dtype == right.dtype and bool(torch.equal(left, right))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def main(rank: int, what: str, path: str, ranks: int, has_resharder: bool, is_other: bool, store: str) -> None:
    """Save, or load and compare."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    from torch_checkpointing import CheckpointManager, ItemSpec
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.metadata_manager import DefaultMetadataManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    DefaultMetadataManager._all_gather_pickled_data = gathered
    items = {name: ItemSpec(resharder=DefaultResharder()) for name in ("model", "optim")} if has_resharder else {}
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    config = CheckpointManager.Config(items=items, save=SyncCheckpointSaverConfig(), storage_config=storage)
    manager = CheckpointManager(config)
    if what == "save":
        manager.save(path, state(ranks, zero=False))
    else:
        found, wanted = manager.load(path, into=state(ranks, zero=True)), state(ranks, zero=False)
        if is_other:  # the library takes such values from what it loads into
            del wanted["optim"]["param_groups"], found["optim"]["param_groups"]
        assert equal(wanted, {name: found[name] for name in wanted}), found
    dist.barrier()
    manager.close()
    os._exit(0)


if __name__ == "__main__":
    what, path, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            main,
            args=(what, path, ranks, "plain" not in sys.argv, "other" in sys.argv, f"{folder}/store"),
            nprocs=ranks,
        )
