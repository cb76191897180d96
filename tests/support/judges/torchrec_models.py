"""What torch itself reads from checkpoints, and random models of TorchRec: run by a Python that has both installed.

    python torchrec_models.py truth CHECKPOINT OUT.npz           all tensors, as `dcp.load` reads them
    python torchrec_models.py models OUT WORLD COUNT SEED        OUT/step_N and OUT/step_N.npz: sharded tables, DTensors
    python torchrec_models.py collisions OUT WORLD COUNT SEED    the same with managed collision, and looked-up rows
    python torchrec_models.py uneven OUT WORLD COUNT SEED        any numbers of rows: managed collision, and none
    python torchrec_models.py loads OUT WORLD COUNT SEED         OUT/loads_WORLD.json: which of them this world loads
    python torchrec_models.py same OUT WORLD COUNT 0             OUT/step_N and OUT/to_WORLD/step_N are loaded alike

One set of processes writes all models of a world size. It imports nothing of the project.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torchrec
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.mc_modules import ManagedCollisionCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan, ShardingType
from torchrec.modules import mc_modules
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

_ODD = ("float64", "int8", "float16", "bfloat16", "bool", "int32", "uint8", "int16")


def read(path: str) -> dict[str, Any]:
    """Return the tensors of a checkpoint as `dcp.load` reads them, into new ones of the saved shapes and dtypes."""
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


def write_truth(tensors: dict[str, Any], path: str, **more: Any) -> None:
    """Write tensors as their bytes in C order, with their dtypes and shapes as JSON in `__meta__`, and other arrays."""
    kinds = {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()}
    data = {name: tensor.contiguous().flatten().view(torch.uint8).numpy() for name, tensor in tensors.items()}
    np.savez(path, __meta__=np.frombuffer(json.dumps(kinds).encode(), np.uint8), **data, **more)


def _tables(rng: random.Random, config: Any, prefix: str, dim: int | None = None) -> list[Any]:
    return [
        config(
            name=f"{prefix}{n}",
            embedding_dim=dim or 4 * rng.choice((1, 2, 3, 4, 6, 8, 16, 31, 64, 128)),
            num_embeddings=rng.randrange(1, 300),
            feature_names=[f"{prefix}{n}_f"],
            data_type=rng.choice((DataType.FP32, DataType.FP32, DataType.FP16)),
        )
        for n in range(rng.randrange(1, 4))
    ]


def _shardings(rng: random.Random, tables: list[Any], world: int, *, pooled: bool) -> dict[str, Any]:
    """Return a random way to shard each table. Of tables that are not pooled, only a single one may have columns."""
    ways: dict[str, Any] = {}
    for table in tables:
        parts = [n for n in range(1, world + 1) if table.embedding_dim % (4 * n) == 0 and (pooled or len(tables) == 1)]
        some = [rng.randrange(world) for _ in range(rng.choice(parts or [1]))]
        ways[table.name] = rng.choice(
            (row_wise(), table_wise(rank=rng.randrange(world)), column_wise(ranks=some), data_parallel())
        )
    return ways


def _model(rng: random.Random, world: int) -> dict[str, Any]:
    """Return the state of a random model after a step of training."""
    bags = _tables(rng, torchrec.EmbeddingBagConfig, "bag")
    plain = _tables(rng, torchrec.EmbeddingConfig, "row", dim=4 * rng.randrange(1, 9)) if rng.random() < 0.5 else []
    for table in plain:
        table.data_type = plain[0].data_type

    model = torch.nn.Module()
    model.ebc = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=bags)
    if plain:
        model.ec = torchrec.EmbeddingCollection(device=torch.device("meta"), tables=plain)
    model.over = torch.nn.Linear(3, 2)
    optimizer = rng.choice((torch.optim.Adagrad, torch.optim.SGD, RowWiseAdagrad))  # all that fbgemm has on a CPU
    apply_optimizer_in_backward(optimizer, model.ebc.parameters(), {"lr": 0.1})
    modules = {"ebc": (model.ebc, bags, EmbeddingBagCollectionSharder())}
    if plain:
        apply_optimizer_in_backward(optimizer, model.ec.parameters(), {"lr": 0.1})
        modules["ec"] = (model.ec, plain, EmbeddingCollectionSharder())
    settings = {"local_size": world, "world_size": world, "device_type": "cpu"}
    plan = ShardingPlan(
        {
            name: construct_module_sharding_plan(
                module, _shardings(rng, tables, world, pooled=tables is bags), sharder=sharder, **settings
            )
            for name, (module, tables, sharder) in modules.items()
        }
    )
    sharders = [sharder for _, _, sharder in modules.values()]
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    if rng.random() < 0.7:
        _train(model.module.ebc, bags, world)
    return {"model": model.state_dict(), "optim": model.fused_optimizer.state_dict()}


def _train(module: Any, tables: list[Any], world: int) -> None:
    """Look some rows up, and let the fused optimizer change them."""
    features = [table.feature_names[0] for table in tables]
    values = [torch.randint(0, table.num_embeddings, (6,)) for table in tables]
    lengths = torch.tensor([3, 3] * len(tables))
    looked_up = module(KeyedJaggedTensor.from_lengths_sync(keys=features, values=torch.cat(values), lengths=lengths))
    looked_up.values().float().sum().backward()


def _tensors(rng: random.Random, world: int) -> dict[str, Any]:
    """Return tensors of odd shapes and dtypes: in boxes of both dimensions, transposed, with three dimensions."""
    columns = rng.choice([n for n in range(1, world + 1) if world % n == 0])
    mesh = init_device_mesh("cpu", (world // columns, columns))
    state: dict[str, Any] = {}
    for n, dtype in enumerate(rng.sample(_ODD, 5)):
        shape = [rng.randrange(1, 40) for _ in range(rng.choice((1, 2, 2, 3)))]
        tensor = torch.randint(-100, 100, shape).to(getattr(torch, dtype))
        ways = [rng.choice((Replicate(), *map(Shard, range(len(shape))))) for _ in range(2)]
        state[f"odd{n}_{dtype}"] = distribute_tensor(tensor, mesh, ways, src_data_rank=None)
    pair = distribute_tensor(
        torch.randn(rng.randrange(1, 40), rng.randrange(1, 40)), mesh, [Shard(0), Shard(1)], src_data_rank=None
    )
    state |= {
        "both": pair,
        "turned": pair.t(),
        "transposed": torch.randn(rng.randrange(2, 30), rng.randrange(2, 30)).t(),
    }
    state |= {"permuted": torch.randn(3, 4, 5).permute(2, 0, 1), "scalar": torch.tensor(rng.random()), "step": 7}
    return state | {"view": torch.randn(10, 6)[2:7, 1:4], "empty": torch.empty(0, 4)}


def _save(rank: int, state: dict[str, Any], path: str, **more: Any) -> None:
    dcp.save(state, checkpoint_id=path)
    if rank == 0:
        write_truth(read(path), f"{path}.npz", **more)
    dist.barrier()


def models(rank: int, world: int, out: str, count: int, seed: int) -> None:
    """Save random models of this world size."""
    for number in range(count):
        rng = random.Random(seed * 1000 + number)  # the same in each rank
        torch.manual_seed(seed * 1000 + number)
        _save(rank, _model(rng, world) | {"plain": _tensors(rng, world)}, f"{out}/step_{number}")


def _collision_model(rng: random.Random, world: int, rows: int | None = None) -> tuple[Any, list[Any]]:
    """Return a random model of tables with managed collision, sharded by rows, and the configurations of the tables."""
    policies = (
        mc_modules.DistanceLFU_EvictionPolicy,
        mc_modules.LFU_EvictionPolicy,
        mc_modules.LRU_EvictionPolicy,
    )
    tables = [
        EmbeddingBagConfig(
            name=f"table{n}",
            embedding_dim=4 * rng.randrange(1, 20),
            num_embeddings=rows or world * rng.randrange(2, 60),
            feature_names=[f"f{n}"],
        )
        for n in range(rng.randrange(1, 4))
    ]
    kept = {
        table.name: mc_modules.MCHManagedCollisionModule(
            zch_size=table.num_embeddings,
            device=torch.device("cpu"),
            eviction_interval=rng.choice((1, 2)),
            eviction_policy=rng.choice(policies)(),
            input_hash_size=1 << 40,
        )
        for table in tables
    }
    bags = EmbeddingBagCollection(device=torch.device("meta"), tables=tables)
    apply_optimizer_in_backward(rng.choice((torch.optim.Adagrad, RowWiseAdagrad)), bags.parameters(), {"lr": 0.1})
    collisions = mc_modules.ManagedCollisionCollection(managed_collision_modules=kept, embedding_configs=tables)
    model = torch.nn.Module()
    model.mc = ManagedCollisionEmbeddingBagCollection(bags, collisions)
    by_rows = EmbeddingBagCollectionSharder()
    by_rows.sharding_types = lambda _: [ShardingType.ROW_WISE.value]
    sharder = ManagedCollisionEmbeddingBagCollectionSharder(by_rows, ManagedCollisionCollectionSharder())
    ways = {table.name: row_wise() for table in tables}
    settings = {"local_size": world, "world_size": world, "device_type": "cpu", "sharder": sharder}
    plan = ShardingPlan({"mc": construct_module_sharding_plan(model.mc, ways, **settings)})
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[sharder]), tables


def _look_up(model: Any, tables: list[Any], ids: list[Any]) -> list[Any]:
    """Return the rows of some ids of each table, one id at a time, as a forward pass looks them up."""
    longest = max(map(len, ids))
    lengths = [torch.tensor([1] * len(some) + [0] * (longest - len(some))) for some in ids]
    features = KeyedJaggedTensor.from_lengths_sync(
        keys=[table.feature_names[0] for table in tables], values=torch.cat(ids), lengths=torch.cat(lengths)
    )
    rows = model.module.mc(features)[0].to_dict()
    return [rows[table.feature_names[0]][: len(some)] for table, some in zip(tables, ids, strict=True)]


def collisions(rank: int, world: int, out: str, count: int, seed: int) -> None:
    """Save random models with managed collision, and the rows that a forward pass looks up for each live raw id."""
    # Rows of evicted ids keep their values: fbgemm resets them on a GPU only.
    SplitTableBatchedEmbeddingBagsCodegen.reset_embedding_weight_momentum = lambda *_, **__: None
    for number in range(count):
        rng = random.Random(seed * 1000 + number)
        model, tables = _collision_model(rng, world)
        batches = torch.Generator().manual_seed(seed * 1000 + number * world + rank)
        for _ in range(rng.randrange(1, 6)):
            ids = [torch.randint(0, rng.choice((50, 1 << 40)), (12,), generator=batches) for _ in tables]
            torch.cat([rows.flatten() for rows in _look_up(model, tables, ids)]).sum().backward()
        model.eval()
        state = model.state_dict()
        live = []
        for table in tables:
            name = f"mc._managed_collision_collection._managed_collision_modules.{table.name}._mch_sorted_raw_ids"
            local = torch.cat([shard.tensor for shard in state[name].local_shards()])
            parts: list[Any] = [None] * world
            dist.all_gather_object(parts, local[local < torch.iinfo(torch.int64).max])
            live.append(torch.cat(parts))
        found = _look_up(model, tables, live) if sum(map(len, live)) else live
        more = {f"ids:{table.name}": ids.numpy() for table, ids in zip(tables, live, strict=True)}
        more |= {f"rows:{table.name}": rows.detach().numpy() for table, rows in zip(tables, found, strict=True)}
        _save(rank, {"model": state, "optim": model.fused_optimizer.state_dict()}, f"{out}/step_{number}", **more)


def _uneven(number: int, world: int, seed: int) -> dict[str, Any]:
    """Return models whose tables do not depend on the world size: the first has managed collision, the second has none.

    From 50 rows on, each of 8 ranks has some. A negative number is a model of so many rows.
    """
    rng = random.Random(seed * 1000 + number)
    model, _ = _collision_model(
        rng, world, -number if number < 0 else rng.choice((64, 96, 120, 168, rng.randrange(50, 200)))
    )
    tables = _tables(rng, EmbeddingBagConfig, "plain")
    tables[0].num_embeddings += 49  # a rank without any table has an optimizer without state, which `dcp.load` refuses
    bags = EmbeddingBagCollection(device=torch.device("meta"), tables=tables)
    apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": 0.1})
    ways = {table.name: rng.choice((row_wise(), table_wise(rank=rng.randrange(8) % world))) for table in tables}
    ways[tables[0].name] = row_wise()
    sharder = EmbeddingBagCollectionSharder()
    settings = {"local_size": world, "world_size": world, "device_type": "cpu", "sharder": sharder}
    plan = ShardingPlan({"": construct_module_sharding_plan(bags, ways, **settings)})
    return {
        "kept": model,
        "plain": DistributedModelParallel(bags, device=torch.device("cpu"), plan=plan, sharders=[sharder]),
    }


def uneven(rank: int, world: int, out: str, count: int, seed: int) -> None:
    """Save models whose numbers of rows need not be multiples of the world size: OUT/NAME/step_N."""
    del rank
    for number in range(count) if count >= 0 else (count,):
        torch.manual_seed(number)
        for name, model in _uneven(number, world, seed).items():
            state = {"model": model.state_dict(), "optim": model.fused_optimizer.state_dict()}
            dcp.save(state, checkpoint_id=f"{out}/{name}/step_{abs(number)}")


def loads(rank: int, world: int, out: str, count: int, seed: int) -> None:
    """Load each of them into a model of this world size, and write the numbers of those that every rank has."""
    done: dict[str, list[int]] = {"kept": [], "plain": []}
    for number in range(count) if count >= 0 else (count,):
        for name, model in _uneven(number, world, seed).items():
            state = {"model": model.state_dict(), "optim": model.fused_optimizer.state_dict()}
            dcp.load(state, checkpoint_id=f"{out}/{name}/step_{abs(number)}")
            fault = ""
            try:
                model.load_state_dict(state["model"])
                model.fused_optimizer.load_state_dict(state["optim"])
            except (AssertionError, RuntimeError, ValueError) as error:
                fault = f"{type(error).__name__}: {error}"
            faults: list[Any] = [None] * world
            dist.all_gather_object(faults, fault)
            if not any(faults):
                done[name].append(abs(number))
    if rank == 0:
        with open(f"{out}/loads_{world}.json", "w") as file:
            json.dump(done, file)


def same(rank: int, world: int, out: str, count: int, seed: int) -> None:
    """Load each step and its copy for this world size with `dcp.load` in all processes, and compare every part."""
    del seed
    mesh = init_device_mesh("cpu", (world,))
    for number in range(count):
        one, other = (_loaded(path, mesh) for path in (f"{out}/step_{number}", f"{out}/to_{world}/step_{number}"))
        assert one.keys() == other.keys(), number
        for name, value in one.items():
            alike = value == other[name] if isinstance(value, list) else torch.equal(value, other[name])
            assert alike, (number, rank, name)
        dist.barrier()


def _loaded(path: str, mesh: Any) -> dict[str, Any]:
    """Return this rank's part of each tensor, as bytes, and all other values as lists."""
    reader = dcp.FileSystemReader(path)
    stored = reader.read_metadata().state_dict_metadata
    state: dict[str, Any] = {}
    for name, tensor in stored.items():
        if not isinstance(tensor, TensorStorageMetadata):
            state[name] = 0
            continue
        empty = torch.empty(tensor.size, dtype=tensor.properties.dtype)
        state[name] = distribute_tensor(empty, mesh, [Shard(0)], src_data_rank=None) if tensor.size else empty
    dcp.load(state, storage_reader=reader, planner=DefaultLoadPlanner(flatten_state_dict=False))
    parts = {name: getattr(value, "to_local", lambda value=value: value)() for name, value in state.items()}
    return {
        name: part.contiguous().flatten().view(torch.uint8) if isinstance(part, torch.Tensor) else [str(part)]
        for name, part in parts.items()
    }


def _start(rank: int, world: int, port: int, job: str, out: str, count: int, seed: int) -> None:
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo")
    globals()[job](rank, world, out, count, seed)
    dist.barrier()
    os._exit(0)  # one end in five of a process with gloo aborts in C++ ("terminate called"), its work done


def _spawn(job: str, out: str, world: int, count: int, seed: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_start, args=(world, port, job, out, count, seed), nprocs=world)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["truth", checkpoint, target]:
            write_truth(read(checkpoint), target)
        case ["models" | "collisions" | "uneven" | "loads" | "same" as job, target, *numbers] if len(numbers) == 3:
            _spawn(job, target, *map(int, numbers))
        case _:
            sys.exit(__doc__)
