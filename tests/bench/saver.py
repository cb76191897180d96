"""Measure the saver of a training job: `python tests/bench/saver.py --work DIR` (minutes; 4 GB of memory and disk).

One shard of about 1 GiB, against `ndarray.tofile` and `fsync` of the same bytes, in turn in one process; the memory
that a save takes beyond the arrays, in a process of its own; and how long `save_async` keeps the loop waiting, against
one `memcpy` of the same arrays. Printed are medians with their spread. The first turn does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edl_ckpt.core import CheckpointSaver, Table, TableBatches
from edl_ckpt.core.base.memory import peak_memory_bytes

MOST_RATIO, MOST_MIB, MOST_COPIES = 1.2, 64, 1.0
Model = tuple[dict[str, Any], dict[str, Any]]


def dense(size: int) -> Model:
    """Return one variable."""
    return {"w": np.random.default_rng(1).random(size // 4, np.float32)}, {}


def table(size: int, dim: int, *, shuffled: bool) -> Model:
    """Return one table with ids of 40 bits, ascending or in the order of a hash map."""
    random = np.random.default_rng(1)
    ids = np.unique(random.integers(0, 1 << 40, size // (4 * dim)))
    if shuffled:
        random.shuffle(ids)
    return {}, {"t": Table(ids, random.random((len(ids), dim), np.float32))}


def many(size: int) -> Model:
    """Return forty tables and five hundred variables."""
    random = np.random.default_rng(1)
    variables = {f"w{i}": random.random(1 << 14, np.float32) for i in range(500)}
    rows = size // 40 // 4 // 16
    return variables, {
        f"t{i}": Table(random.permutation(rows).astype(np.int64), random.random((rows, 16), np.float32))
        for i in range(40)
    }


def batches(size: int) -> Model:
    """Return a table that comes in batches, each made when it is taken."""
    rows = size // 64
    values = np.random.default_rng(1).random((1 << 14, 16), np.float32)

    def made() -> Any:
        for start in range(0, rows, len(values)):
            count = min(len(values), rows - start)
            yield np.arange(start, start + count), values[:count]

    return {}, {"t": TableBatches(made, 16)}


MODELS: Mapping[str, Callable[[int], Model]] = {
    "one variable": dense,
    "dim 64, ids ascending": lambda size: table(size, 64, shuffled=False),
    "dim 16, ids ascending": lambda size: table(size, 16, shuffled=False),
    "dim 16, ids in no order": lambda size: table(size, 16, shuffled=True),
    "40 tables, 500 variables": many,
    "dim 16, in batches": batches,
}


def arrays_of(model: Model) -> list[np.ndarray[Any, Any]]:
    """Return all arrays of a model."""
    variables, tables = model
    return [*variables.values(), *(array for each in tables.values() for array in (each.ids, each.vectors))]


def reference(arrays: list[np.ndarray[Any, Any]], path: Path) -> float:
    """Write arrays with `tofile`, flush the file, and return the seconds."""
    begin = time.perf_counter()
    with path.open("wb") as file:
        for array in arrays:
            array.tofile(file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def spread(values: list[float]) -> str:
    """Return the median and the extremes."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def speed(name: str, size: int, runs: int, work: Path) -> dict[str, Any]:
    """Compare a save with the reference, in turn."""
    model = MODELS[name](size)
    arrays = [np.ones(size // 4, np.float32)] if name.endswith("batches") else arrays_of(model)
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(runs + 1):
        os.sync()
        theirs.append(reference(arrays, work / "reference"))
        (work / "reference").unlink()
        os.sync()
        with CheckpointSaver(work / "run") as saver:
            ours.append(saver.save(turn, *model).seconds)
        shutil.rmtree(work / "run")
    ratios = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    return {"ratio": spread(ratios), "ours": statistics.median(ours[1:]), "reference": statistics.median(theirs[1:])}


def memory(name: str, size: int, work: Path) -> dict[str, Any]:
    """Return the MiB that a save takes beyond its arrays, in a process that has done nothing else."""
    model = MODELS[name](size)
    with CheckpointSaver(work / "warm") as saver:  # what is imported for a first save
        saver.save(0, {"w": np.zeros(1)}, {"t": (np.arange(2), np.zeros((2, 2)))})
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory_bytes()
    with CheckpointSaver(work / "run") as saver:
        saver.save(0, *model)
    return {"mib": (peak_memory_bytes() - before) / (1 << 20)}


def blocked(name: str, size: int, runs: int, work: Path) -> dict[str, Any]:
    """Compare how long `save_async` keeps the loop waiting with one copy of all arrays, into memory that is there."""
    model = MODELS[name](size)
    arrays = arrays_of(model)
    copies = [np.ones_like(array) for array in arrays]
    ratios: list[float] = []
    with CheckpointSaver(work / "run") as saver:
        for turn in range(runs + 1):
            begin = time.perf_counter()
            for copy, array in zip(copies, arrays, strict=True):
                np.copyto(copy, array)
            once = time.perf_counter() - begin
            pending = saver.save_async(turn, *model)
            pending.result()  # or the next one would wait for it
            if turn:
                ratios.append(pending.blocked_seconds / once)
    return {"copies": spread(ratios)}


def main() -> None:
    """Measure each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench-work"), help="a directory on the disk to measure")
    parser.add_argument("--runs", type=int, default=5, help="turns that count")
    parser.add_argument("--size", type=int, default=1 << 30, help="bytes of a shard")
    parser.add_argument("--only", help="models whose name contains this")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    if chosen.case:
        what, name = chosen.case
        if what == "memory":
            print(json.dumps(memory(name, chosen.size, chosen.work)))
        else:
            measure = speed if what == "speed" else blocked
            print(json.dumps(measure(name, chosen.size, chosen.runs, chosen.work)))
        return
    print("| shard | save / tofile + fsync | seconds | MiB beyond the arrays | save_async / memcpy |")
    print("|---|---|---|---|---|")
    print(f"| at most | {MOST_RATIO} | | {MOST_MIB} | {MOST_COPIES} |")
    for name in MODELS:
        if chosen.only is None or chosen.only in name:
            print(row(name, chosen), flush=True)
    shutil.rmtree(chosen.work)


def row(name: str, chosen: argparse.Namespace) -> str:
    """Return the row of a model."""
    found: dict[str, Any] = {}
    for what in ("speed", "memory", *(() if name.endswith("batches") else ("blocked",))):
        shutil.rmtree(chosen.work / "run", ignore_errors=True)
        command = [sys.executable, __file__, "--work", str(chosen.work), "--runs", str(chosen.runs)]
        command += ["--size", str(chosen.size), "--case", what, name]
        found |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds = f"{found['ours']:.2f} against {found['reference']:.2f}"
    return f"| {name} | {found['ratio']} | {seconds} | {found['mib']:.0f} | {found.get('copies', '')} |"


if __name__ == "__main__":
    main()
