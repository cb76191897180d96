"""A job of torch on gloo that takes the fingerprint of random states, and saves them with DCP.

Usage: torch_fingerprints.py OUT RANKS MODELS SEED. Each OUT/NUMBER is a checkpoint, and OUT/NUMBER.json has what every
rank said of it. Placements are Shard, Replicate, strided shards as FSDP with tensor parallelism makes them, on meshes
of one and two dimensions, with parts of different sizes and empty ones; ShardedTensors, plain tensors and values too.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._shard.sharded_tensor import Shard as OwnShard
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

sys.path.insert(0, str(Path(__file__).parents[3] / ".src"))

import edl_ckpt.torch
from edl_ckpt.core.proof.digests import digests_document, save_digests

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16,
)  # fmt: skip


def tensor(chance: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of random bytes, the same on every rank; of a bool of zeros and ones."""
    count = 1
    for size in shape:
        count *= size
    if dtype is torch.bool:
        return torch.tensor([chance.random() < 0.5 for _ in range(count)], dtype=dtype).reshape(shape)
    width = torch.tensor([], dtype=dtype).element_size()
    data = torch.frombuffer(bytearray(chance.randbytes(count * width) or b"\0"), dtype=torch.uint8)
    return data[: count * width].view(dtype).reshape(shape)


def placed(chance: random.Random, mesh: Any, whole: torch.Tensor) -> torch.Tensor:
    """A DTensor of a tensor with random placements."""
    where = [*range(whole.dim())]
    placements = [chance.choice([Replicate(), *map(Shard, where)]) for _ in range(mesh.ndim)]
    if mesh.ndim == 2 and where and chance.random() < 0.4:  # tensor parallelism first, then FSDP, in one dimension
        dim, ranks = chance.choice(where), mesh.size(0) * mesh.size(1)
        if whole.shape[dim] >= ranks and whole.shape[dim] % ranks == 0:
            placements = [_StridedShard(dim, split_factor=mesh.size(1)), Shard(dim)]
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)  # each rank has all of it


def sharded(chance: random.Random, whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A ShardedTensor of a matrix, as TorchRec's row-wise and column-wise sharding make them; some ranks have none."""
    dim = chance.randrange(2)
    cuts = sorted(chance.randrange(whole.shape[dim] + 1) for _ in range(ranks - 1))
    own = []
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, whole.shape[dim]], strict=True)):
        if number == rank and end > begin:
            offsets = [begin, 0] if dim == 0 else [0, begin]
            part = whole.narrow(dim, begin, end - begin).contiguous()
            own.append(OwnShard.from_tensor_and_offsets(part, shard_offsets=offsets, rank=rank))
    return ShardedTensor._init_from_local_shards(own, tuple(whole.shape))


def state(chance: random.Random, meshes: list[Any], rank: int, ranks: int) -> dict[str, Any]:
    """A random state."""
    model: dict[str, Any] = {}
    for number in range(chance.randint(1, 6)):
        dims = chance.choice([0, 1, 1, 2, 2, 2, 3])
        shape = tuple(chance.choice([0, 1, 2, 5, 8, 24, 33, 64, 129]) for _ in range(dims))
        if dims == 1 and chance.random() < 0.3:
            shape = (chance.choice([4096, 5000, 12345]),)
        whole = tensor(chance, shape, chance.choice(DTYPES))
        kind = chance.random()
        is_wide = whole.dtype not in {torch.float8_e4m3fn, torch.uint16}
        if kind < 0.6 and is_wide:
            whole = placed(chance, chance.choice(meshes), whole)
        elif kind < 0.75 and dims == 2 and 0 not in shape and is_wide:
            whole = sharded(chance, whole, rank, ranks)
        model[f"layer.{number}"] = whole
    if chance.random() < 0.5:
        rows, dim = chance.choice([ranks, 40, 101]), chance.choice([1, 4, 7])
        name = "emb.embedding_bags.user.weight"
        table = tensor(chance, (rows, dim), torch.float32)
        model[name] = (
            placed(chance, chance.choice(meshes), table)
            if chance.random() < 0.5
            else sharded(chance, table, rank, ranks)
        )
    found: dict[str, Any] = {"model": model, "step": chance.randrange(1000)}
    if chance.random() < 0.5:
        found["optim"] = {"lr": 0.5, "names": ["a", "b"], "slots": [tensor(chance, (3,), torch.float32), None]}
    return found


def main(rank: int, ranks: int, out: str, models: int, seed: int) -> None:
    """Take part in the job."""
    warnings.simplefilter("ignore")
    os.environ["OUT"] = out
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=ranks)
    shapes = [(ranks,), *((n, ranks // n) for n in range(1, ranks + 1) if ranks % n == 0)]
    meshes = [init_device_mesh("cpu", shape) for shape in shapes]
    for number in range(models):
        saved = state(random.Random(seed + number), meshes, rank, ranks)  # the same on every rank
        found = edl_ckpt.torch.fingerprint(saved)
        said: list[Any] = [None] * ranks
        dist.all_gather_object(said, (digests_document(found), found.unequal))
        dcp.save(saved, checkpoint_id=f"{out}/{number}")
        if not rank:
            Path(f"{out}/{number}.json").write_text(json.dumps(said))
    heard: list[Any] = [None] * ranks
    dist.all_gather_object(heard, faults(rank, ranks, meshes[0]))
    if not rank:
        Path(f"{out}/faults.json").write_text(json.dumps(heard))
    dist.destroy_process_group()


def faults(rank: int, ranks: int, mesh: Any) -> dict[str, Any]:
    """What one rank hears of states that are not one state."""
    found: dict[str, Any] = {}
    states = {
        "replicas": {"same": torch.ones(3), "own": torch.full((2,), float(rank)), "half": torch.ones(2, 2)},
        "shapes": {"w": torch.ones(2 + rank)},
        "sparse": {"w": torch.ones(2).to_sparse() if rank == ranks - 1 else torch.ones(2)},
        "partial": {"w": DTensor.from_local(torch.ones(2), mesh, [Partial()])},
        "raw ids": {
            "m.embeddings.user.weight": torch.ones(4, 2),
            "m._mch_managed_collision_module._mch_.user": torch.ones(1),
            "mc._managed_collision_modules.user._mch_sorted_raw_ids": torch.arange(4),
        },
    }
    whole = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
    for name, one in states.items():
        try:
            result = edl_ckpt.torch.fingerprint(one)
            found[name] = list(result.unequal)
            if name == "replicas":
                save_digests(f"{os.environ['OUT']}/replicas.{rank}.json", result)
        except edl_ckpt.EdlCkptError as error:
            found[name] = f"{type(error).__name__}: {error.message}"
    alone = [dist.new_group([number]) for number in range(ranks)][rank]
    try:
        found["a part"] = edl_ckpt.torch.fingerprint({"w": whole}, alone).text
    except edl_ckpt.EdlCkptError as error:
        found["a part"] = f"{type(error).__name__}: {error.message}"
    return found


if __name__ == "__main__":
    out, ranks, models, seed = sys.argv[1], *map(int, sys.argv[2:5])
    mp.spawn(main, args=(ranks, os.path.abspath(out), models, seed), nprocs=ranks)
