"""Saves of torch.distributed.checkpoint by two processes, killed on the way: run by a Python that has torch.

Each line of stdin is a JSON list: ["save", DIRECTORY, SEED, SECONDS] saves, and kills both processes after so many
seconds; ["load", DIRECTORY, SEED] says whether `dcp.load` gives the values of a seed. Each answer is a line: how many
seconds the save took, null where it was killed; true, or why not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

warnings.filterwarnings("ignore")
WORLD = 2
ROWS, DIM = 40_000, 16


def values(seed: int) -> torch.Tensor:
    """Return the table of a seed."""
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed))


def rank(number: int, directory: str, seed: int, meeting: str) -> None:
    """Save as one of the processes."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    table = distribute_tensor(values(seed), mesh, [Shard(0)])
    state = {"table": table, "seed": seed, "bias": torch.full((9,), float(seed))}
    writer = dcp.FileSystemWriter(directory, single_file_per_rank=False)
    dist.barrier()
    os.write(3, b"b")
    dcp.save(state, storage_writer=writer)


def save(directory: str, seed: int, seconds: float) -> float | None:
    """Save, and kill both processes so long after they have begun; return how long it took when they came to an end."""
    ready, begun = os.pipe()
    with tempfile.TemporaryDirectory() as meeting:
        children = []
        for number in range(WORLD):
            pid = os.fork()
            if pid == 0:
                os.dup2(begun, 3)
                os.dup2(2, 1)
                rank(number, directory, seed, f"{meeting}/store")
                os._exit(0)
            children.append(pid)
        os.close(begun)
        for _ in children:
            os.read(ready, 1)
        start = time.monotonic()
        left = set(children)
        while left and time.monotonic() - start < seconds:
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.0002)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
        os.close(ready)
        return None if left else time.monotonic() - start


def load(directory: str, seed: int) -> bool | str:
    """Say whether a checkpoint has the values of a seed, or why it does not load."""
    state: dict[str, Any] = {"table": torch.zeros(ROWS, DIM), "seed": -1, "bias": torch.zeros(9)}
    try:
        dcp.load(state, checkpoint_id=directory, no_dist=True)
    except BaseException as error:  # noqa: BLE001 - whatever torch says of a torn checkpoint
        return f"{type(error).__name__}: {error}"[:200]
    return bool(torch.equal(state["table"], values(seed)) and state["seed"] == seed) or "other values"


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as first:  # so that no child has to import what a save needs
        dist.init_process_group("gloo", init_method=f"file://{first}/store", rank=0, world_size=1)
        table = distribute_tensor(values(0), init_device_mesh("cpu", (1,)), [Shard(0)])
        dcp.save({"table": table}, checkpoint_id=f"{first}/step")
        dist.destroy_process_group()
    os.dup2(2, 3)  # the number that children say at which they begin
    for line in sys.stdin:
        what, *rest = json.loads(line)
        print(json.dumps(save(*rest) if what == "save" else load(*rest)), flush=True)
