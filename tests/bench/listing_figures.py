"""The figures of listings: 1,000 steps of 8 ranks with 100 tensors of each of three systems, at first and later."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from disk_figures import Bench
from measure import EDL, Figure, Target, nothing, pairs, remove
from shapes import Shape, make

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import torch_items

RANKS, TENSORS, ROWS = 8, 100, 1000


def listing_figures(bench: Bench) -> Iterator[Figure]:
    """List the steps of each system without what earlier listings remember, and with it."""
    os.environ["XDG_CACHE_HOME"] = str(bench.work / "cache")  # what listings remember: ours alone
    steps = max(int(1000 * bench.scale), 1)
    nowhere = bench.work / "none"
    nowhere.mkdir()
    for system, write in MAKERS.items():
        source = bench.work / "steps"
        write(bench.work / "model", source, steps)
        ours, reference = ([*EDL, "list", str(place)] for place in (source, nowhere))
        what = f"list of {steps:,} steps of {system} x {RANKS} ranks with {TENSORS} tensors"
        first = Figure(f"{what}, the first time", "an empty directory", Target(seconds=5))
        yield pairs(first, bench.few, bench.work, ours, reference, remove(bench.work / "cache"))
        later = Figure(f"{what}, later", "an empty directory", Target(seconds=0.4))
        yield pairs(later, bench.runs, bench.work, ours, reference, nothing)
        remove(bench.work / "model", source)()
    remove(nowhere, bench.work / "cache")()


def _dcp(model: Path, steps: Path, count: int) -> None:
    names = [f"model.ebc.embedding_bags.table_{number}.weight" for number in range(TENSORS)]
    shape, box = (RANKS * ROWS, 16), (ROWS, 16)
    parts = [
        torch_items.Saved(name, shape, (rank * ROWS, 0), box, rank=rank) for name in names for rank in range(RANKS)
    ]
    made = torch_items.write_step(model, parts)
    for number in range(count):
        _repeat(made, steps / f"step_{number}", lambda name: name == ".metadata")


def _elasticdl(model: Path, steps: Path, count: int) -> None:
    make(model, Shape(RANKS, ((RANKS * 10, 16),) * TENSORS, 40))
    for number in range(count):
        _repeat(model / "version-1", steps / f"version-{number}", lambda _: True)


def _safetensors(model: Path, steps: Path, count: int) -> None:
    model.mkdir(parents=True)
    places: dict[str, str] = {}
    for rank in range(RANKS):
        name = f"model-{rank + 1:05}-of-{RANKS:05}.safetensors"
        size = 4 * 16 * ROWS
        tensors = range(rank, TENSORS, RANKS)
        header = {
            f"tensor_{t}": {"dtype": "F32", "shape": [ROWS, 16], "data_offsets": [i * size, (i + 1) * size]}
            for i, t in enumerate(tensors)
        }
        text = json.dumps(header).encode()
        with (model / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + size * len(header))
        places |= dict.fromkeys(header, name)
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for number in range(count):
        _repeat(model, steps / f"checkpoint-{number}", lambda name: name.endswith(".json"))
        for path in (steps / f"checkpoint-{number}").glob("*.safetensors"):
            with path.open("r+b") as file, (model / path.name).open("rb") as whole:
                file.write(whole.read(8 + 8192))
            os.utime(path, (0, 0))


def _repeat(model: Path, folder: Path, is_copied: Callable[[str], bool]) -> None:
    """Write a step with the files of another one: with the bytes of those that a listing reads, and as holes."""
    folder.mkdir(parents=True)
    for path in model.iterdir():
        target = folder / path.name
        if is_copied(path.name):
            shutil.copy(path, target)
        else:
            target.touch()
            os.truncate(target, path.stat().st_size)
        os.utime(target, (0, 0))  # a file that was written just now is not remembered


MAKERS: Mapping[str, Callable[[Path, Path, int], None]] = {
    "ElasticDL": _elasticdl,
    "DCP": _dcp,
    "safetensors": _safetensors,
}
