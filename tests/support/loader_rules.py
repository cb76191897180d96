"""What the loaders of other systems take from a directory, restated: each rule names the function that it is of.

A rule asks nothing of the product. It returns the path that a job would load when it starts again, None where the
loader finds nothing or fails. `is_whole` says whether the load of a path would then end well.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import elasticdl_rules

Rule = Callable[[Path], Path | None]
_CHECKPOINT: Final = re.compile(r"^checkpoint-(\d+)$")
_STEP: Final = re.compile(r"step-(\d+)")
_LAST: Final = re.compile(r"^last(-(\d+))?")
_NEWEST: Final = re.compile(r'^\s*model_checkpoint_path\s*:\s*"([^"\\]*)"\s*$', re.MULTILINE)


def tensorflow(place: Path) -> Path | None:
    """tensorflow/python/checkpoint/checkpoint_management.py, `latest_checkpoint` and `get_checkpoint_state`.

    A relative path is one below the directory; the index must be there. The data files are not looked at.
    """
    file = place / "checkpoint"
    found = _NEWEST.search(file.read_text("utf-8", "replace")) if file.is_file() else None
    if found is None or not found[1]:
        return None
    prefix = place / found[1]
    return prefix if prefix.with_name(f"{prefix.name}.index").is_file() else None


def transformers(place: Path) -> Path | None:
    """transformers/trainer_utils.py, `get_last_checkpoint`: the directory with the highest number."""
    names = [path.name for path in place.iterdir() if _CHECKPOINT.search(path.name) and path.is_dir()]
    return place / max(names, key=_number_of) if names else None


def best_model(place: Path) -> Path | None:
    """transformers/trainer.py, `_load_best_model`: what the state of the last checkpoint names as the best.

    `_rotate_checkpoints` (trainer.py; `rotate_checkpoints` in trainer_utils.py) never deletes that one.
    """
    last = transformers(place)
    state = last / "trainer_state.json" if last is not None else None
    if state is None or not state.is_file():
        return None
    best = json.loads(state.read_text()).get("best_model_checkpoint")
    path = place / Path(best).name if isinstance(best, str) else None
    return path if path is not None and path.is_dir() else None


def torchtitan(place: Path) -> Path | None:
    """torchtitan/components/checkpoint.py, `_find_load_step` and `_create_checkpoint_id`.

    The highest number behind `step-` anywhere in a name, if the directory has `.metadata` or the index of a set; the
    path is then made from the number.
    """
    steps = [
        int(found[1])
        for path in place.iterdir()
        if (found := _STEP.search(path.name))
        and ((path / ".metadata").is_file() or (path / "model.safetensors.index.json").is_file())
    ]
    path = place / f"step-{max(steps)}" if steps else None
    return path if path is not None and path.is_dir() else None


def deepspeed(place: Path) -> Path | None:
    """deepspeed/runtime/engine.py, `load_checkpoint`: the directory with the tag in the file `latest`."""
    file = place / "latest"
    tag = file.read_text("utf-8", "replace").strip() if file.is_file() else ""
    path = place / tag if tag and "/" not in tag and "\0" not in tag else None
    return path if path is not None and path.is_dir() else None


def megatron(place: Path) -> Path | None:
    """megatron/training/checkpointing.py, `read_metadata` and `get_checkpoint_name`; verl's and Bridge's are alike."""
    file = place / "latest_checkpointed_iteration.txt"
    text = file.read_text("utf-8", "replace").strip() if file.is_file() else ""
    name = f"iter_{int(text):07d}" if text.isascii() and text.isdigit() and int(text) > 0 else ""
    name = "release" if text == "release" else name
    return place / name if name and (place / name).is_dir() else None


def lightning(place: Path) -> Path | None:
    """lightning/pytorch/trainer/connectors/checkpoint_connector.py: `_hpc_resume_path`, then `ckpt_path="last"`.

    That is the one of `_find_last_checkpoints` (callbacks/model_checkpoint.py) that was written last.
    """
    tails = [path.name.split("hpc_ckpt_")[-1] for path in place.iterdir() if "hpc_ckpt_" in path.name]
    numbers = [int(re.sub("[^0-9]", "", tail)) for tail in tails if re.sub("[^0-9]", "", tail)]
    if numbers:
        path = place / f"hpc_ckpt_{max(numbers)}.ckpt"
        return path if path.exists() else None
    last = [path for path in place.iterdir() if path.suffix == ".ckpt" and _LAST.match(path.stem) and path.exists()]
    return max(last, key=lambda path: path.stat().st_mtime) if last else None


def elasticdl(place: Path) -> Path | None:
    """elasticdl/python/common/save_utils.py, `CheckpointSaver.get_valid_lastest_version_dir`, by `elasticdl_rules`."""
    try:
        name = elasticdl_rules.latest_valid(place)
    except (ValueError, OSError, IndexError):
        return None  # its scan fails
    return None if name is None else place / name


RULES: Final[Mapping[str, Rule]] = {
    "tensorflow": tensorflow,
    "transformers": transformers,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "megatron": megatron,
    "lightning": lightning,
    "elasticdl": elasticdl,
}


def _number_of(name: str) -> int:
    found = _CHECKPOINT.search(name)
    assert found is not None
    return int(found[1])


def is_whole(path: Path, sizes: Mapping[str, int]) -> bool:
    """Say whether all files that a load of a path reads are there to their ends; `sizes` are those of sound files.

    torch's FileSystemReader reads what `.metadata` names; transformers' `_get_resolved_checkpoint_files`
    (modeling_utils.py) takes `model.safetensors` first, then the files of the index; TensorFlow's BundleReader
    (tensor_bundle.cc) opens the data files that the index counts; ElasticDL reads every file of a valid directory. Of
    files without a known size nothing can be said: False.
    """
    if not sizes:
        return False
    if (path / ".metadata").is_file():
        return all(_has(path / name, size) for name, size in sizes.items() if name.endswith((".distcp", ".metadata")))
    if (path / "model.safetensors").is_file():
        return _has_exactly(path / "model.safetensors", sizes["model.safetensors"])
    if (path / "model.safetensors.index.json").is_file():
        try:
            names = set(json.loads((path / "model.safetensors.index.json").read_text())["weight_map"].values())
        except (ValueError, KeyError):
            return False
        return all(_has_exactly(path / name, sizes[name]) for name in names)
    if path.is_dir():
        try:
            is_valid = elasticdl_rules.is_valid(path)
        except ValueError:
            return False
        return is_valid and all(name in sizes and _has(path / name, sizes[name]) for name in os.listdir(path))
    ends = [name for name in sizes if name.startswith((".index", ".data-"))]
    return bool(ends) and all(_has(path.with_name(path.name + end), sizes[end]) for end in ends)


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size >= size


def _has_exactly(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
