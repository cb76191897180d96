"""Sets of safetensors files: `NAME-0000I-of-0000N.safetensors`, and the index that says which file has which tensor."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.patterns import LatePattern

ENDING: Final = ".safetensors"
INDEX: Final = ".safetensors.index.json"
_NUMBERED: Final = LatePattern(r"(.+)-(\d{5})-of-(\d{5})\.safetensors", re.DOTALL | re.ASCII)


def weight_map(document: Mapping[str, object], path: str) -> Mapping[str, str]:
    """Return the path of the file of each tensor in a set, from the directory of its index on.

    Raises CorruptError for a path that leads out of that directory.
    """
    weights = document.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise CorruptError("there is no weight_map in it", path=path)
    for name in sorted(set(weights.values())):
        if {"", ".", ".."} & {*name.split("/")} or "\\" in name or "\0" in name or not name.endswith(ENDING):
            raise CorruptError(f"weight_map names a file that is none of its set: {name!r:.80}", path=path)
    return weights


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


def torn_beside_file(present: Collection[str], listed: Mapping[str, set[str] | None]) -> dict[str, str]:
    """Return the indexes of sets that are not whole while a file of the set's name is there: the file by each index.

    transformers takes that file, and does not look at the set (modeling_utils.py, `_get_resolved_checkpoint_files`).
    `listed` has the files of each index, None for one that cannot be read.

    >>> torn_beside_file({"model.safetensors"}, {"model.safetensors.index.json": {"model-00001-of-00001.safetensors"}})
    {'model.safetensors.index.json': 'model.safetensors'}
    """
    found = {}
    for index, files in listed.items():
        single = index.removesuffix(INDEX) + ENDING
        if single in present and (files is None or (single not in files and not files.issubset(present))):
            found[index] = single
    return found


def without_torn_sets(
    paths: set[str], listed: Mapping[str, set[str] | None]
) -> tuple[set[str], dict[str, set[str]], dict[str, str]]:
    """Return files and indexes without those of torn sets next to a file that loaders take, and these as above.

    `listed` is as in `torn_beside_file`; of the indexes that are left, those that cannot be read are left out.
    """
    torn = torn_beside_file(paths, listed)
    gone = {path for index in torn for path in listed[index] or ()}
    singles = set(torn.values())
    kept = {path for path in paths if path in singles or not (path in gone or set_of(path) + INDEX in torn)}
    return kept, {path: files for path, files in listed.items() if files is not None and path not in torn}, torn


def set_of(path: str) -> str:
    """Return the path of a file without what tells it from others of its set.

    >>> set_of("unet/model-00002-of-00003.safetensors"), set_of("model.safetensors")
    ('unet/model', 'model')
    """
    numbered = number_of(path)
    return numbered[0] if numbered else path.removesuffix(ENDING)


def number_of(path: str) -> tuple[str, int, int] | None:
    """Return (path without it, number, total) of a numbered file; None for another one."""
    match = _NUMBERED.fullmatch(path)
    if not match or not 1 <= int(match[2]) <= int(match[3]):
        return None
    return match[1], int(match[2]), int(match[3])
