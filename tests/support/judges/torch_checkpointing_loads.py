"""torch_checkpointing's own load: torch_checkpointing_loads.py CHECKPOINT RANKS TRUTH.npz.

TRUTH has the tensors of the item `model` by their names in it. They are loaded into DTensors that are cut by rows, by
columns or replicated, and compared. The exit code is 1 for a difference.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import numpy as np
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


def main(rank: int, ranks: int, path: str, truth: str, store: str) -> None:
    """Load, and compare."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    from torch_checkpointing import CheckpointManager, ItemSpec
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.metadata_manager import DefaultMetadataManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    DefaultMetadataManager._all_gather_pickled_data = gathered
    items = {"model": ItemSpec(resharder=DefaultResharder())}
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    config = CheckpointManager.Config(items=items, save=SyncCheckpointSaverConfig(), storage_config=storage)
    manager = CheckpointManager(config)
    mesh = init_device_mesh("cpu", (ranks,))
    with np.load(truth) as stored:
        wanted = {name: torch.from_numpy(stored[name]) for name in stored.files}
    into: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(sorted(wanted.items())):
        empty = torch.zeros_like(tensor)
        placements = [[Replicate()], [Shard(0)], [Shard(tensor.dim() - 1)], None]
        placement = placements[number % 4] if tensor.dim() else None
        into[name] = empty if placement is None else distribute_tensor(empty, mesh, placement, src_data_rank=None)
    found = manager.load(path, into={"model": into})["model"]
    for name, tensor in wanted.items():
        loaded = found[name]
        loaded = loaded.full_tensor() if hasattr(loaded, "full_tensor") else loaded
        assert torch.equal(loaded, tensor), name
    dist.barrier()
    manager.close()
    os._exit(0)


if __name__ == "__main__":
    path, ranks, truth = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(ranks, path, truth, f"{folder}/store"), nprocs=ranks)
