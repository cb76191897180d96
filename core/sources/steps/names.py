"""The names of other systems' steps: directories, and files with one prefix side by side; and the parts of a step.

`spellings.py` says which number a name has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.model.layouts import Layout, VersionName
from edl_ckpt.core.sources.steps.shown import are_plain, is_shown
from edl_ckpt.core.sources.steps.spellings import number_of_directory, number_of_prefix
from edl_ckpt.core.sources.torch.names import is_named_so, rank_named, stem_of
from edl_ckpt.core.sources.torch.names import is_part as is_part_of_torch
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA, files_by_item

_PREFIX: Final = re.compile(r"(.+)\.(?:index|meta|data-[0-9]{5}-of-[0-9]{5})", re.ASCII | re.DOTALL)
_DEEPEST: Final = 6
"""No system has more directories in one another; so a listing does not go through other trees."""
_FORMAT: Final = LatePattern(
    r"^(?:.+\.(?:safetensors|safetensors\.index\.json|distcp|index|metadata)|\.metadata|.+\.data-[0-9]{5}-of-[0-9]{5}"
    r"|.+\.rank_[0-9].*|.+_mht_.+-(?:keys|values)|TFRADynamicEmbedding|dynamicemb|variables"
    r"|.+\.(?:pt|pth|ckpt|pth\.tar|bin\.index\.json)|(?:.+[-_])?model.*\.bin|metadata\.pkl)$",
    re.ASCII | re.MULTILINE,
)
_PART: Final = LatePattern(
    r"(?:pytorch_)?model(?:_fsdp)?(?:_[0-9]+)?|model_weights|weights|optim(?:izer)?(?:_[0-9]+)?|(?:dense_)?ema"
    r"|unet|vae|transformer(?:_[0-9]+)?|text_encoder(?:_[0-9]+)?|image_encoder|safety_checker|lora|adapter"
    r"|variables|TFRADynamicEmbedding|dynamicemb",
    re.ASCII,
)
_OWN: Final = LatePattern(
    r"(?:.*\.safetensors(?:\.index\.json)?|.*\.distcp|\.metadata|model_index\.json|modules\.json"
    r"|pytorch_model.*\.bin|.*\.bin\.index\.json|.*_world_size_[0-9]+_rank_[0-9]+\.pt|mp_rank_[0-9]+_model_states\.pt)",
    re.ASCII,
)
STEPS: Final = Layout("steps", "steps", "", "", needs_shards=True)
"""The layout of a name alone, before anything is known of the files."""
PREFIX: Final = Layout("steps", "prefix", "", "", needs_shards=True, loose=True)
"""Of files side by side in a location, which share what is before their endings."""
FILE: Final = Layout("steps", "file", "", "", needs_shards=True, loose=True)
"""Of one file in a location, which is a version by itself."""
_MOST_FILES: Final = 256
"""More files of torch.save without a number are samples of a data set, or the like."""


def is_part(name: str) -> bool:
    """Say whether a directory has the name that a system gives to a part of a step: such a directory is no step.

    >>> is_part("model"), is_part("pytorch_model_fsdp_0"), is_part("run_1")
    (True, True, False)
    """
    return _PART.fullmatch(name) is not None


def has_format(names: Iterable[str]) -> bool:
    """Say whether one of the names in a directory is that of a file, or a directory, of a format; none of a host is.

    >>> has_format(["notes.txt", "model.safetensors"]), has_format(["notes.txt"]), has_format(["._a.safetensors"])
    (True, False, False)
    """
    every = "\n".join(names)
    shown = every if are_plain(every) else "\n".join(filter(is_shown, every.split("\n")))
    return _FORMAT.search(shown) is not None


def is_whole(names: Iterable[str]) -> bool:
    """Say whether names right in a directory show that all below it is one checkpoint.

    >>> is_whole(["model_index.json", "unet"]), is_whole(["README.md", "run_1"])
    (True, False)
    """
    return any(_OWN.fullmatch(name) and is_shown(name) for name in names)


def version_named(name: str) -> VersionName | None:
    """Return what the name of a directory, or of the index of a bundle, says of a step; None for another name."""
    if name.endswith(".index"):
        number = number_of_prefix(name.removesuffix(".index"))
        return None if number is None else VersionName(number, PREFIX, is_file=True)
    if is_named_so(name) and (number := number_of_file(name)) is not None:
        return VersionName(number, FILE, is_file=True)
    number = number_of_directory(name)
    return None if number is None else VersionName(number, STEPS)


def prefix_of(name: str) -> str | None:
    """Return what files of one bundle begin with, for the name of one of them; None for a name of another kind.

    >>> prefix_of("model.ckpt-7.index"), prefix_of("model.ckpt-7.data-00000-of-00002"), prefix_of("checkpoint")
    ('model.ckpt-7', 'model.ckpt-7', None)
    """
    match = _PREFIX.fullmatch(name)
    return match and match[1]


def number_of_file(name: str) -> int | None:
    """Return the number of the version that one file of torch.save is, by its name; None without one.

    >>> [number_of_file(name) for name in ("step_1000.pt", "epoch=3-step=40.ckpt", "best.pt", "0001.pt")]
    [1000, 40, None, None]
    """
    stem = stem_of(name)
    return None if stem.isdigit() or is_part_of_torch(name) else number_of_directory(stem)


def single_files(names: Iterable[str], folders: Iterable[str] = ()) -> list[str]:
    """Return the names of the files of torch.save in a location that are versions by themselves.

    Those without a number are so next to one with a number, or where there are several and no directory is a step.

    >>> single_files(["step_10.pt", "last.ckpt", "optimizer.bin"]), single_files(["model.pt"])
    (['step_10.pt', 'last.ckpt'], [])
    >>> single_files(["model_0.pt", "model_1.pt", "step_0.pt", "step_1.pt"]), single_files(["a.pth", "b.pth"])
    ([], ['a.pth', 'b.pth'])
    """
    every = [*names]
    ours = [name for name in every if is_named_so(name) and not is_part_of_torch(name)]
    if not ours or METADATA in every or files_by_item(every):
        return []
    numbered = [name for name in ours if number_of_file(name) is not None]
    others = [name for name in ours if number_of_file(name) is None and not name.endswith(".bin")]
    if len(others) > _MOST_FILES or is_whole(every):
        others = []
    if not numbered and (len(others) < 2 or any(number_of_directory(folder) is not None for folder in folders)):
        others = []
    return [*numbered, *others]


def is_sign(name: str) -> bool:
    """Say whether a name in a location is a sign of versions there: not that of any file of torch.save.

    >>> is_sign("model.safetensors"), is_sign("sample_7.pt"), is_sign("step_7.pt")
    (True, False, True)
    """
    if not is_named_so(name):
        return has_format([name])
    return is_part_of_torch(name) or number_of_file(name) is not None


def completes(name: str) -> bool:
    """Say whether a file is an index, which its system writes last: without it no step is whole.

    >>> completes("model/.metadata"), completes("w.index"), completes("__0_0.distcp")
    (True, True, False)
    """
    ends = (".index", ".safetensors.index.json", ".bin.index.json")
    return name.rpartition("/")[2] == ".metadata" or name.endswith(ends)


def looks_into(directory: str) -> bool:
    """Say whether a directory of a location may be that of a step, or lie in one; hidden ones do not.

    >>> looks_into("step_3/model"), looks_into("step_3/.cache"), looks_into("src/step_3")
    (True, False, False)
    """
    return number_of_directory(directory.partition("/")[0]) is not None and is_within_step(directory)


def is_within_step(directory: str) -> bool:
    """Say whether a directory may lie in a step, if the first part of its path is one.

    >>> is_within_step("final/model"), is_within_step("final/.cache")
    (True, False)
    """
    _, *inner = directory.split("/")
    return len(inner) < _DEEPEST and not any(name.startswith(".") for name in inner)


def steps_within(number: int | None, paths: Collection[str]) -> set[str]:
    """Return the directories in a directory that are steps by themselves: of another number, with a file of their own.

    A directory with steps in it is no step, whatever its name: it is one of runs, or of sweeps.

    >>> steps_within(0, ["checkpoints/step_100/model.safetensors", "config.yaml"])
    {'checkpoints/step_100'}
    >>> steps_within(500, ["global_step500/model.safetensors", "prefix/epoch_1/__0_0.distcp"])
    set()
    """
    return set(_steps_within(number, (path for path in paths if "/" in path and may_be_file(path))))


def _steps_within(number: int | None, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        *directories, _ = path.split("/")
        for depth, name in enumerate(directories, 1):
            found = None if name.isdigit() else number_of_directory(name)
            if found is not None and found != number:
                yield "/".join(directories[:depth])
                break


def may_be_file(name: str) -> bool:
    """Say whether a name is that of a file which can be a checkpoint by itself, or stands for one."""
    ends = (".safetensors", ".safetensors.index.json", ".bin.index.json", ".index", ".metadata")
    return name.endswith(ends) or is_named_so(name)


def is_with(file: str, name: str) -> bool:
    """Say whether a file belongs to the checkpoint that one file, or a prefix, in its directory names.

    >>> is_with("w.data-00000-of-00001", "w.index"), is_with("m-1.safetensors", "m.safetensors.index.json")
    (True, True)
    >>> is_with("n.safetensors", "m.safetensors"), is_with("__0_0.distcp", ".metadata")
    (False, True)
    """
    if name == ".metadata":
        return True
    if is_named_so(name):
        rank, other = rank_named(name), rank_named(file)
        return file == name or (rank is not None and other is not None and rank[:3] == other[:3])
    if name.endswith(".bin.index.json"):
        return file == name or file.startswith(name.removesuffix(".bin.index.json"))
    if name.endswith(".safetensors.index.json"):
        return file == name or file.startswith(name.removesuffix(".safetensors.index.json"))
    return file == name or prefix_of(file) == (prefix_of(name) or name)
