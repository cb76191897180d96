"""Files that torch saves, and what torch.load reads of them: torch_files.py random|ranksW|shardedW OUT SEED COUNT.

It runs under a Python that has torch, as a program. Next to each `N.pt`, or directory `N` of ranks, is `N.json`: for
each tensor of `torch.load(weights_only=True)` its dtype, its shape and the SHA-256 of its bytes, by path.
"""

import hashlib
import json
import os
import random
import sys
import warnings
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn

warnings.filterwarnings("ignore")
WHAT, OUT, SEED, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PLAIN = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32),
]


def tensor(rng: random.Random) -> torch.Tensor:
    """Return a tensor of any dtype and layout."""
    shape = [rng.choice([0, 1, 1, 2, 3, 5, 7]) for _ in range(rng.randint(0, 4))]
    dtype = rng.choice(PLAIN)
    raw = torch.randint(0, 256, (max(torch.Size(shape).numel(), 0) * dtype.itemsize,), dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    made = raw.view(dtype).reshape(shape) if raw.numel() else torch.zeros(shape, dtype=dtype)
    match rng.randrange(7):
        case 0 if made.dim() > 1:
            made = made.transpose(0, rng.randrange(made.dim()))
        case 1 if made.dim() > 0 and made.shape[0] > 1:
            made = made[1:]
        case 2 if made.dim() > 0:
            made = made[..., ::2]
        case 3:
            made = made.unsqueeze(0).expand(3, *made.shape)
        case 4 if made.dtype.is_floating_point and made.dtype.itemsize > 1:
            made = nn.Parameter(made)
    return made


def value(rng: random.Random, known: list[torch.Tensor], depth: int) -> object:
    """Return anything that a checkpoint has."""
    match rng.randrange(12):
        case 0 if depth < 4:
            return {rng.choice([f"k{n}", n, f"a.b{n}"]): value(rng, known, depth + 1) for n in range(rng.randint(0, 4))}
        case 1 if depth < 4:
            return OrderedDict((f"o{n}", value(rng, known, depth + 1)) for n in range(rng.randint(0, 4)))
        case 2 if depth < 4:
            return [value(rng, known, depth + 1) for _ in range(rng.randint(0, 3))]
        case 3:
            return rng.choice(
                [1, -5, 2**40, -(2**70), 0.25, None, True, "text", "ü\n", (1, 2.5), list(range(30)), torch.Size([2])]
            )
        case 4 if known:
            return rng.choice(known)  # tied
        case 5 if known and rng.choice(known).dim():
            one = rng.choice(known)
            return one.view(-1) if one.is_contiguous() and not isinstance(one, nn.Parameter) else one
    known.append(tensor(rng))
    return known[-1]


def parts(path: tuple[str, ...], found: object, out: dict[str, object]) -> None:
    """Add the tensors in a value, by their paths."""
    if isinstance(found, torch.Tensor):
        whole = found.detach()
        raw = (
            whole.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
            if whole.numel()
            else torch.zeros(0, dtype=torch.uint8)
        )
        digest = hashlib.sha256(raw.numpy().tobytes()).hexdigest()
        out[".".join(path)] = [str(found.dtype).removeprefix("torch."), list(found.shape), digest]
    elif isinstance(found, dict):
        for key, one in found.items():
            parts((*path, str(key)), one, out)
    elif isinstance(found, list | tuple):
        for number, one in enumerate(found):
            parts((*path, str(number)), one, out)


def save_random() -> None:
    """Save so many random files; those that torch itself cannot load again are no truth, and others are made."""
    saved, n = 0, -1
    while saved < COUNT:
        n += 1
        rng = random.Random(SEED * 10_000 + n)
        torch.manual_seed(SEED * 10_000 + n)
        known: list[torch.Tensor] = []
        made = {f"x{k}": value(rng, known, 0) for k in range(rng.randint(1, 8))}
        path = f"{OUT}/{n}.pt"
        new = rng.random() < 0.85
        protocol = rng.choice([2, 2, 2, 3, 4, 5])
        torch.save(made, path, _use_new_zipfile_serialization=new, pickle_protocol=protocol)
        truth: dict[str, object] = {}
        try:
            loaded = torch.load(path, weights_only=new and protocol == 2)  # it refuses the other protocols
        except AttributeError:  # an old file with a dtype that such files cannot have
            os.remove(path)
            continue
        parts((), loaded, truth)
        with open(f"{OUT}/{n}.json", "w", encoding="utf-8") as file:
            json.dump(truth, file)
        saved += 1


def save_ranks(rank: int, world: int) -> None:
    """Save random models of DTensors from one rank of several."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29000 + SEED % 999),
    }
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    meshes = [init_device_mesh("cpu", (world,))]
    meshes += [init_device_mesh("cpu", (k, world // k)) for k in range(2, world) if world % k == 0]
    if world == 8:
        meshes.append(init_device_mesh("cpu", (2, 2, 2)))
    for n in range(COUNT):
        rng = random.Random(SEED * 10_000 + n)
        torch.manual_seed(SEED * 10_000 + n)
        state: dict[str, object] = {"plain": torch.arange(5.0), "lr": 0.5}
        wholes: dict[str, object] = dict(state)
        for k in range(rng.randint(1, 6)):
            shape = [rng.choice([0, 1, 2, 3, 5, 8, 11, 16]) for _ in range(rng.randint(1, 3))]
            mesh = rng.choice(meshes)
            placed = [rng.choice([Replicate(), *(Shard(d) for d in range(len(shape)))]) for _ in range(mesh.ndim)]
            if mesh.ndim == 2 and rng.random() < 0.4:
                dim = rng.randrange(len(shape))
                placed = [_StridedShard(dim, split_factor=mesh.size(1)), Shard(dim)]
            whole = torch.randn(shape)
            local = whole
            for dim, one in enumerate(placed):
                if not isinstance(one, Replicate):
                    cut = one._split_tensor(local, mesh.size(dim), with_padding=False)[0]
                    local = cut[mesh.get_coordinate()[dim]]
            made = DTensor.from_local(
                local.clone(), mesh, placed, run_check=False, shape=whole.shape, stride=whole.stride()
            )
            state[f"layer{k}.weight"] = made
            wholes[f"layer{k}.weight"] = whole
        folder = f"{OUT}/{n}"
        os.makedirs(folder, exist_ok=True)
        dist.barrier()
        torch.save(OrderedDict(state), f"{folder}/model_world_size_{world}_rank_{rank}.pt")
        truth: dict[str, object] = {}
        parts((), wholes, truth)
        if rank == 0:
            with open(f"{OUT}/{n}.json", "w", encoding="utf-8") as file:
                json.dump(truth, file)
        dist.barrier()
    os._exit(0)


def save_sharded(rank: int, world: int) -> None:
    """Save a ShardedTensor from one rank of several."""
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29000 + SEED % 999)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    whole = torch.arange(28.0).reshape(7, 4)
    cut = -(-7 // world)
    rows = whole[rank * cut : (rank + 1) * cut].clone()
    described = ShardMetadata([rank * cut, 0], list(rows.shape), f"rank:{rank}/cpu")
    made = init_from_local_shards([Shard(rows, described)], [7, 4])
    os.makedirs(f"{OUT}/0", exist_ok=True)
    torch.save({"w": made, "p": torch.ones(3)}, f"{OUT}/0/model_world_size_{world}_rank_{rank}.pt")
    if rank == 0:
        truth: dict[str, object] = {}
        parts((), {"w": whole, "p": torch.ones(3)}, truth)
        with open(f"{OUT}/0.json", "w", encoding="utf-8") as file:
            json.dump(truth, file)
    dist.barrier()
    os._exit(0)


if WHAT == "random":
    save_random()
if __name__ == "__main__" and WHAT.startswith("ranks"):
    world_size = int(WHAT.removeprefix("ranks"))
    torch.multiprocessing.spawn(save_ranks, args=(world_size,), nprocs=world_size)
if __name__ == "__main__" and WHAT.startswith("sharded"):
    world_size = int(WHAT.removeprefix("sharded"))
    torch.multiprocessing.spawn(save_sharded, args=(world_size,), nprocs=world_size)
