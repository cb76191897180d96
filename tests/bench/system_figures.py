"""The figures of other systems' checkpoints, read in place: listings of steps, single rows, and exports."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from disk_figures import CP, Bench
from measure import EDL, Figure, Target, copying, nothing, pairs, remove

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import dcp_steps

TABLE = "model.ebc.embedding_bags.user.weight"


def system_figures(bench: Bench) -> Iterator[Figure]:
    """Steps of PyTorch's distributed checkpoints, listed, looked up and exported."""
    os.environ["XDG_CACHE_HOME"] = str(bench.work / "cache")  # what listings remember: ours alone
    yield from _listings(bench)
    yield from _single_rows(bench)
    yield from _exports(bench)
    shutil.rmtree(bench.work / "cache", ignore_errors=True)


def _listings(bench: Bench) -> Iterator[Figure]:
    steps, ranks, tensors, rows = max(int(1000 * bench.scale), 1), 8, 100, 1000
    length = 4 * 16 * rows + 1200
    names = [f"model.ebc.embedding_bags.table_{number}.weight" for number in range(tensors)]
    items = [
        dcp_steps.Item(name, rank, (rank * rows, 0), (rows, 16), number * length, length)
        for number, name in enumerate(names)
        for rank in range(ranks)
    ]
    index = dcp_steps.metadata(dict.fromkeys(names, (ranks * rows, 16)), items)
    for step in range(steps):
        folder = bench.work / "steps" / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / ".metadata").write_bytes(index)
        for rank in range(ranks):
            with (folder / f"__{rank}_0.distcp").open("wb") as file:
                file.truncate(length * tensors)
        for path in folder.iterdir():  # a file that was written just now is not remembered
            os.utime(path, (0, 0))
    (bench.work / "none").mkdir()
    ours, reference = ([*EDL, "list", str(bench.work / name)] for name in ("steps", "none"))
    what = f"{steps:,} steps x {ranks} ranks with {tensors} tensors"
    first = Figure(f"list of {what}, the first time", "an empty directory", Target(seconds=5))
    yield pairs(first, bench.few, bench.work, ours, reference, remove(bench.work / "cache"))
    later = Figure(f"list of {what}, later", "an empty directory", Target(seconds=0.3))
    yield pairs(later, bench.runs, bench.work, ours, reference, nothing)
    remove(bench.work / "steps", bench.work / "none")()


def _single_rows(bench: Bench) -> Iterator[Figure]:
    for name, rows in (("large", bench.rows(84_000_000)), ("small", 100)):
        dcp_steps.write_holes(bench.work / name / "step_1", TABLE, rows, 64)
    size = (bench.work / "large/step_1/__0_0.distcp").stat().st_size / 2**30
    figure = Figure(f"get of 5 ids from a step of {size:.1f} GiB", "the same of 100 rows", Target(seconds=0.5, mib=150))
    ids = [word for row in (0, 7, 31, 77, 99) for word in ("--id", str(row))]
    ours, reference = (
        [*EDL, "get", str(bench.work / name), "--table", TABLE, *ids, "-v"] for name in ("large", "small")
    )
    done = pairs(figure, bench.runs, bench.work, ours, reference, nothing)
    done.note = done.ours[-1].stderr.strip()
    print(f"  {done.note}")
    yield done
    remove(bench.work / "large", bench.work / "small")()


def _exports(bench: Bench) -> Iterator[Figure]:
    rows = bench.rows(17_000_000)
    values = np.random.default_rng(0).standard_normal((rows, 16), np.float32)
    source, out, copy = bench.work / "source", bench.work / "out.safetensors", bench.work / "copy"
    dcp_steps.write_step(source / "step_1", {TABLE: values}, 8)
    del values
    size = sum(path.stat().st_size for path in source.rglob("*.distcp")) / 1e9
    figure = Figure(f"export of a step of 8 ranks, {size:.2f} GB", CP, Target(2.0))
    ours = [*EDL, "export", str(source), str(out), "--quiet"]
    yield pairs(figure, bench.runs, bench.work, ours, copying(source, copy), remove(out, copy))
    remove(source)()
