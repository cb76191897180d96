"""Random directories of jobs, each in the names of one loader: formats, damage, foreign files, links and pointers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from bundle_files import write_bundle
from checkpoints import save_small
from system_runs import SYSTEMS

HOUR: Final = 3600.0
START: Final = 1_000_000_000.0
SPELLINGS: Final[Mapping[str, str]] = {
    "tensorflow": "ckpt-{}",
    "transformers": "checkpoint-{}",
    "torchtitan": "step-{}",
    "deepspeed": "global_step{}",
    "megatron": "iter_{:07d}",
    "lightning": "epoch=0-step={}.ckpt",
    "elasticdl": "version-{}",
}
_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorflow": ("bundle",),
    "transformers": ("file", "set", "file", "both"),
    "torchtitan": ("dcp", "dcp", "set"),
    "deepspeed": ("dcp", "file"),
    "megatron": ("dcp",),
    "lightning": ("dcp",),
    "elasticdl": ("shards",),
}
_STRANGE: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorflow": ("weights.10-0.32", "2024-01-02", "best", "ckpt-900.tempstate123"),
    "transformers": ("checkpoint-900-best", "tmp-checkpoint-900", "checkpoint-0020", "checkpoint-best", "run-900"),
    "torchtitan": ("step-900-ema", "backup-step-900", "step-0020", "ema"),
    "deepspeed": ("global_step900_universal", "global_step20", "best", "mp_rank_00"),
    "megatron": ("release", "iter_900", "iter_0000020_old", "best"),
    "lightning": ("last.ckpt", "last-v1.ckpt", "hpc_ckpt_3.ckpt", "epoch=0-step=20-v1.ckpt", "best.ckpt"),
    "elasticdl": ("version-900-old", "old-900", "version_20", "tmp"),
}
_FOREIGN: Final = (
    "faiss.index", "events.out.tfevents.1", ".git/HEAD", "notes.txt", "._model.safetensors", ".DS_Store", ".nfs0001",
    "plots/loss.png", "config.json", "rng_state_0.pth", "model.ckpt", "__9_9.distcp.tmp", "old.index", ".metadata.bak",
    "variables.txt", "model-00009-of-00009.safetensors.tmp", "data.bin", "runs/step-5/x.bin",
)  # fmt: skip


@dataclass
class Template:
    """A sound step in one format: its files, by their names in a directory, or by what follows the prefix."""

    files: dict[str, bytes]

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each file."""
        return {name: len(data) for name, data in self.files.items()}


@dataclass
class Made:
    """A directory that was made: the loader, its steps by name with the sizes of their sound files."""

    loader: str
    root: Path
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """The numbers of the steps that are named as the loader names them."""


def templates(scratch: Path) -> dict[str, Template]:
    """Return a sound step of each format."""
    one, three = SYSTEMS / "safetensors/checkpoint-100", SYSTEMS / "safetensors/checkpoint-200"
    write_bundle(scratch / "p", {"w": np.arange(300, dtype="<f4")})
    bundle = {path.name.removeprefix("p"): path.read_bytes() for path in scratch.iterdir()}
    save_small(scratch / "run", 1, sealed=False)
    found = {
        "dcp": _files(SYSTEMS / "dcp/mch/step_6"),
        "file": _files(one),
        "set": _files(three),
        "both": {**_files(three), **_files(one)},
        "bundle": bundle,
        "shards": _files(scratch / "run/version-1"),
    }
    return {name: Template(files) for name, files in found.items()}


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def make(random: Random, root: Path, formats: Mapping[str, Template]) -> Made:
    """Make a random directory; what has a higher number is younger, but for some."""
    root.mkdir()
    made = Made(random.choice(sorted(SPELLINGS)), root)
    numbers = sorted(random.sample(range(1, 60), random.randint(1, 7)))
    names = {SPELLINGS[made.loader].format(number): number for number in numbers}
    made.numbers = dict(names)
    for name in random.sample(_STRANGE[made.loader], random.choice((0, 0, 1, 2))):
        names.setdefault(name, random.choice((5, 20, 61)))
    for name, number in names.items():
        _make_step(random, made, name, formats, [other for other in made.sizes if other in made.numbers])
        if made.loader != "tensorflow":
            _age(root / name, START + number * HOUR)
    for name in random.sample(_FOREIGN, random.choice((0, 0, 1, 2)) if made.loader != "elasticdl" else 0):
        _write(root / name, b"foreign")  # each of these stops ElasticDL's scan
    _point(random, made)
    for path in root.iterdir():
        if made.loader == "tensorflow" or path.name not in made.sizes:
            number = next((n for name, n in names.items() if path.name.startswith(f"{name}.")), 0)
            _age(path, START + number * HOUR)
    return made


def _make_step(random: Random, made: Made, name: str, formats: Mapping[str, Template], others: list[str]) -> None:
    """Make one step: its files, what is damaged, what is foreign in it, or a link in its place."""
    template = formats[random.choice(_FORMATS[made.loader])]
    if made.loader == "tensorflow":
        files = {made.root / f"{name}{end}": data for end, data in template.files.items()}
    elif random.random() < 0.08 and others and name != "last.ckpt":
        target = random.choice(others)
        (made.root / name).symlink_to(target)
        made.sizes[name] = made.sizes[target]
        return
    else:
        files = {made.root / name / file: data for file, data in template.files.items()}
    made.sizes[name] = template.sizes
    for path, data in files.items():
        _write(path, data)
    if random.random() < 0.3:
        path = random.choice(sorted(files))
        if random.random() < 0.5:
            path.unlink()
        else:
            os.truncate(path, random.choice((0, path.stat().st_size // 2, path.stat().st_size - 1)))
    if made.loader != "tensorflow":
        _add_guests(random, made, name, others)


def _add_guests(random: Random, made: Made, name: str, others: list[str]) -> None:
    """Add what a job saves next to the values of a step, and what is foreign in it."""
    step = made.root / name
    if made.loader == "megatron":
        _write(step / "metadata.json", b'{"sharded_backend": "torch_dist"}')
        _write(step / "common.pt", b"pickle")
    if made.loader == "transformers" and random.random() < 0.5:
        best = random.choice([*others, name])
        _write(step / "trainer_state.json", json.dumps({"best_model_checkpoint": f"out/{best}"}).encode())
    for guest in random.sample(_FOREIGN, random.choice((0, 0, 0, 1, 2))):
        _write(step / guest, b"foreign")
    if random.random() < 0.1:
        (step / "latest-run").symlink_to("../nowhere")


def _point(random: Random, made: Made) -> None:
    """Write what names a version: the loader's own file, mostly, and perhaps a link."""
    named = (
        random.choice(sorted(made.sizes)) if random.random() < 0.3 else max(made.numbers, key=made.numbers.__getitem__)
    )
    text = random.choice((named, named, named, named, "gone-7"))
    number = made.numbers.get(named, 7)
    if made.loader == "tensorflow" and random.random() < 0.8:
        every = "".join(f'all_model_checkpoint_paths: "{name}"\n' for name in (*made.numbers, text))
        _write(made.root / "checkpoint", f'model_checkpoint_path: "{text}"\n{every}'.encode())
    if made.loader == "deepspeed" or (made.loader not in {"tensorflow", "lightning"} and random.random() < 0.1):
        _write(made.root / "latest", f"{text}\n".encode())
    if made.loader == "megatron":
        said = "release" if named == "release" else str(number if text == named else 7)
        _write(made.root / "latest_checkpointed_iteration.txt", said.encode())
    if made.loader == "lightning" and random.random() < 0.5 and not os.path.lexists(made.root / "last.ckpt"):
        (made.root / "last.ckpt").symlink_to(named)
    if made.loader != "tensorflow" and random.random() < 0.15 and not os.path.lexists(made.root / "best"):
        (made.root / "best").symlink_to(named)


def _write(path: Path, data: bytes) -> None:
    if path.is_dir() or any(above.is_file() for above in path.parents):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _age(path: Path, moment: float) -> None:
    for each in (path, *(() if path.is_symlink() or not path.is_dir() else path.rglob("*"))):
        os.utime(each, (moment, moment), follow_symlinks=False)
