"""PyTorch's distributed checkpoint changes the number of shards: `peer_dcp.py DIRECTORY ROWS FROM TO`.

Each of FROM processes saves its rows of a table of dim 16 with their ids; this is the preparation. Then each of TO
processes loads its rows of that checkpoint and saves them. Printed as JSON are the seconds of the second part from the
moment when all are ready, its CPU seconds, and the sum of the memory that the processes had beyond that moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

dist, dcp, mp, mesh, tensor = (
    import_module(f"torch.{name}")
    for name in (
        "distributed",
        "distributed.checkpoint",
        "multiprocessing",
        "distributed.device_mesh",
        "distributed.tensor",
    )
)


def state(rows: int, ranks: int, rank: int, *, filled: bool) -> dict[str, Any]:
    """Return the table as tensors of which each rank has its part of the rows; `rows` is a multiple of `ranks`."""
    mine, split = rows // ranks, (mesh.init_device_mesh("cpu", (ranks,)), [tensor.Shard(0)])
    torch.manual_seed(rank)
    ids = torch.randperm(mine) * ranks + rank if filled else torch.empty(mine, dtype=torch.int64)
    vectors = torch.randn(mine, 16) if filled else torch.empty(mine, 16)
    return {name: tensor.DTensor.from_local(part, *split) for name, part in (("ids", ids), ("vectors", vectors))}


def work(rank: int, ranks: int, place: str, rows: int, first: bool) -> None:
    """Be one process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1"}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if first:
        dcp.save(state(rows, ranks, rank, filled=True), checkpoint_id=f"{place}/one")
    else:
        tiny = state(16 * ranks, ranks, rank, filled=True)
        dcp.save(tiny, checkpoint_id=f"{place}/tiny")  # it imports much at its first use
        dcp.load(tiny, checkpoint_id=f"{place}/tiny")
        del tiny
        dist.barrier()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, cpu, begin = peak_mib(), time.process_time(), time.perf_counter()
        loaded = state(rows, ranks, rank, filled=False)
        dcp.load(loaded, checkpoint_id=f"{place}/one")
        dcp.save(loaded, checkpoint_id=f"{place}/two")
        dist.barrier()
        wall, used = time.perf_counter() - begin, time.process_time() - cpu
        figures = torch.tensor([wall / ranks, used, peak_mib() - before], dtype=torch.float64)
        dist.all_reduce(figures)
        if rank == 0:
            print(json.dumps(figures.tolist()), flush=True)
    dist.destroy_process_group()


def peak_mib() -> float:
    """Return the most memory since the mark."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    directory, count, old, new = sys.argv[1], *map(int, sys.argv[2:])
    for ranks, first in ((old, True), (new, False)):
        mp.spawn(work, (ranks, directory, count, first), ranks)
        os.sync()
