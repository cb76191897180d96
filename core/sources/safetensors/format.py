"""safetensors files among the files of a step, alone or in a set with `NAME.safetensors.index.json`.

A shard is a file: `NAME-0000I-of-0000N` is shard I - 1 of N, and files with other names are in the order of their
paths. A listing reads no more than the index of a set, so the sizes in a header are compared when it is indexed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.sources.steps.content import Content
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files

system: Final = "safetensors"
ENDING: Final = ".safetensors"
INDEX: Final = ".safetensors.index.json"
_NUMBERED: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors", re.DOTALL | re.ASCII)
_MOST_NAMED: Final = 8
"""So many missing files are named one by one."""


def heads(files: Files) -> Sequence[str]:
    """Return the indexes of sets."""
    return [path for path in files if path.endswith(INDEX)]


def digest(data: bytes) -> Digest:
    """Return the names of the files that an index of a set lists, in order."""
    return sorted(set(weight_map(parse_object(data, ""), "").values()))


def weight_map(document: Mapping[str, object], path: str) -> Mapping[str, str]:
    """Return the name of the file of each tensor in a set; CorruptError for a name that leads out of its directory."""
    weights = document.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise CorruptError("there is no weight_map in it", path=path)
    for name in sorted(set(weights.values())):
        if "/" in name or "\\" in name or not name.endswith(ENDING):
            raise CorruptError(f"weight_map names a file that is none of its set: {name!r:.80}", path=path)
    return weights


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of tensors and the indexes of their sets."""
    paths = {path for path in files if path.endswith(ENDING)}
    indexes = [path for path in heads(files) if path in digests]
    if not paths and not indexes:
        return None
    listed = {path: listing(path, names) for path in indexes if not isinstance(names := digests[path], Exception)}
    paths, wanted = read_by_loaders(paths, listed), set[str]().union(*listed.values())
    shards, ps_num = _numbered(paths | wanted)
    faults = [error for error in digests.values() if isinstance(error, EdlCkptError)]
    return Claim(
        {number: [path] for path, number in shards.items() if path in files},
        ps_num,
        indexes,
        [*(str(error) for error in faults if not isinstance(error, UnsupportedError)), *_missing(paths, wanted)],
        next((str(error) for error in faults if isinstance(error, UnsupportedError)), ""),
    )


def listing(index: str, names: Iterable[str]) -> set[str]:
    """Return the paths of the files that an index lists.

    >>> listing("unet/model.safetensors.index.json", ["a.safetensors"])
    {'unet/a.safetensors'}
    """
    return {index[: index.rfind("/") + 1] + name for name in names}


def read_by_loaders(paths: Iterable[str], listed: Mapping[str, set[str]]) -> set[str]:
    """Return files without those that have the name of a set and are not in its index: another save left them.

    `listed` has the files of each index.
    """
    wanted = set[str]().union(*listed.values())
    return {path for path in paths if path in wanted or set_of(path) + INDEX not in listed}


def set_of(path: str) -> str:
    """Return the path of a file without what tells it from others of its set.

    >>> set_of("unet/model-00002-of-00003.safetensors"), set_of("model.safetensors")
    ('unet/model', 'model')
    """
    numbered = _number(path)
    return numbered[0] if numbered else path.removesuffix(ENDING)


def _number(path: str) -> tuple[str, int, int] | None:
    """Return (path without it, number, total) of a numbered file; None for another one."""
    found = _NUMBERED.fullmatch(path)
    if not found or not 1 <= int(found[2]) <= int(found[3]):
        return None
    return found[1], int(found[2]), int(found[3])


def _numbered(paths: Iterable[str]) -> tuple[dict[str, int], int]:
    """Return the number of each file among all of a step, and how many there should be."""
    names = sorted(paths)
    numbers = [number for number in map(_number, names) if number]
    if len(numbers) == len(names) and len({(name, total) for name, _, total in numbers}) == 1:
        return {path: number[1] - 1 for path, number in zip(names, numbers, strict=True)}, numbers[0][2]
    return {path: number for number, path in enumerate(names)}, len(names)


def _missing(paths: set[str], wanted: set[str]) -> list[str]:
    """Return the files that an index lists, or that the numbers of others announce, and that are missing, in words."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name, number, total in filter(None, map(_number, paths - wanted)):
        sets.setdefault((name, total), set()).add(number)
    missing = sorted(wanted - paths)
    for (name, total), numbers in sorted(sets.items()):
        others = (number for number in range(1, total + 1) if number not in numbers)
        missing += (f"{name}-{number:05}-of-{total:05}{ENDING}" for number in islice(others, _MOST_NAMED))
    return [f"{path} is missing" for path in missing]


def index(content: Content) -> None:
    """Add the tensors of all files that are open, and the tables that they make."""
    from edl_ckpt.core.sources.safetensors.indexing import index_files  # a listing needs no header

    index_files(content)
