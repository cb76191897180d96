"""The figures of other systems' checkpoints, read in place: single rows, and exports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from disk_figures import CP, Bench
from measure import EDL, Figure, Target, copying, nothing, pairs, remove

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import torch_items

TABLE = "model.ebc.embedding_bags.user.weight"


def system_figures(bench: Bench) -> Iterator[Figure]:
    """Steps of PyTorch's distributed checkpoints, looked up, exported, resharded and converted."""
    yield from _single_rows(bench)
    yield from _exports(bench)
    yield from _managed_collision(bench)


def _single_rows(bench: Bench) -> Iterator[Figure]:
    for name, rows in (("large", bench.rows(84_000_000)), ("small", 100)):
        torch_items.write_step(bench.work / name / "step_1", [torch_items.Saved(TABLE, (rows, 64), (0, 0), (rows, 64))])
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
    source, copy = bench.work / "source", bench.work / "copy"
    cuts = [[rows * rank // 8 for rank in range(1, 8)], []]
    torch_items.write_step(source / "step_1", torch_items.boxes(TABLE, values, cuts, 8))
    del values
    size = f"{sum(path.stat().st_size for path in source.rglob('*.distcp')) / 1e9:.2f} GB"
    ways: dict[str, tuple[Target, list[str]]] = {
        f"export of a step of 8 ranks, {size}": (Target(2.0), ["export", "out.safetensors"]),
        f"a step of 8 ranks for 3, {size}": (Target(1.5, mib=200), ["reshard", "--ranks", "3", "--output"]),
        f"a step of 8 ranks as TFRA's, {size}": (Target(2.0), ["export", "--format", "tfra", "--ranks", "2"]),
        f"a step of 8 ranks in int8, {size}": (Target(2.0), ["export", "--quantize", "int8-fbgemm", "out.npy"]),
    }
    for name, (target, (verb, *words)) in ways.items():
        out = bench.work / (words.pop() if "." in words[-1] else "out")
        ours = [*EDL, verb, str(source), *words, str(out), "--quiet"]
        yield pairs(Figure(name, CP, target), bench.runs, bench.work, ours, copying(source, copy), remove(out, copy))
    remove(source)()


def _managed_collision(bench: Bench) -> Iterator[Figure]:
    """Raw ids of TorchRec's managed collision, in random order of their rows, become keys of dynamicemb."""
    rows, random = bench.rows(100_000_000), np.random.default_rng(0)
    module = "model.mc._managed_collision_collection._managed_collision_modules.user."
    table = "model.mc._embedding_module.embedding_bags.user.weight"
    columns = {
        "_mch_sorted_raw_ids": np.arange(rows, dtype=np.int64) * 7919,
        "_mch_remapped_ids_mapping": random.permutation(rows),
        "_mch_counts": random.integers(1, 1000, rows),
    }
    parts = [part for name, column in columns.items() for part in torch_items.boxes(module + name, column, [[]])]
    parts += torch_items.boxes(table, random.standard_normal((rows, 4), np.float32), [[rows // 2], []], 2)
    source, out, copy = bench.work / "source", bench.work / "out", bench.work / "copy"
    torch_items.write_step(source / "step_1", parts)
    del parts, columns
    figure = Figure(f"managed collision, {rows / 1e6:g} M rows of dim 4, as dynamicemb's", CP, Target(mib=400))
    ours = [*EDL, "export", str(source), str(out), "--format", "dynamicemb", "--ranks", "2", "--quiet"]
    yield pairs(figure, bench.few, bench.work, ours, copying(source, copy), remove(out, copy))
    remove(source)()
