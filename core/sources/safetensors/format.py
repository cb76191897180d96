"""safetensors files among the files of a step, alone or in a set with `NAME.safetensors.index.json`.

A shard is a file: `NAME-0000I-of-0000N` is shard I - 1 of N, and files with other names are in the order of their
paths. A listing reads no more than the index of a set, so the sizes in a header are compared when it is indexed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.sources.safetensors.sets import ENDING, INDEX, listing, number_of, read_by_loaders, weight_map
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files, read_head
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

system: Final = "safetensors"
marks: Final = (".safetensors",)
_MOST_NAMED: Final = 8
"""So many missing files are named one by one."""


def heads(files: Files) -> Sequence[str]:
    """Return the indexes of sets."""
    return [path for path in files if path.endswith(INDEX)]


def digest(file: RangeReader) -> Digest:
    """Return the names of the files that an index of a set lists, in order."""
    return sorted(set(weight_map(parse_object(read_head(file), ""), "").values()))


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of tensors and the indexes of their sets."""
    paths = {path for path in files if path.endswith(ENDING)}
    indexes = [path for path in heads(files) if path in digests]
    if not paths and not indexes:
        return None
    listed = {path: listing(path, names) for path in indexes if not isinstance(names := digests[path], Exception)}
    paths, wanted = read_by_loaders(paths, listed), set[str]().union(*listed.values())
    shards, ps_num = _numbered(paths | wanted)
    faults = {path: fault for path in indexes if isinstance(fault := digests[path], Exception)}
    torn = [f"{path}: {fault}" for path, fault in faults.items() if not isinstance(fault, UnsupportedError)]
    return Claim(
        {number: [path] for path, number in shards.items() if path in files},
        ps_num,
        indexes,
        [*torn, *_missing(paths, wanted)],
        "; ".join(str(fault) for fault in faults.values() if isinstance(fault, UnsupportedError)),
    )


def _numbered(paths: Iterable[str]) -> tuple[dict[str, int], int]:
    """Return the number of each file among all of a step, and how many there should be."""
    names = sorted(paths)
    numbers = [number for number in map(number_of, names) if number]
    if len(numbers) == len(names) and len({(name, total) for name, _, total in numbers}) == 1:
        return {path: number[1] - 1 for path, number in zip(names, numbers, strict=True)}, numbers[0][2]
    return {path: number for number, path in enumerate(names)}, len(names)


def _missing(paths: set[str], wanted: set[str]) -> list[str]:
    """Return the files that an index lists, or that the numbers of others announce, and that are missing, in words."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name, number, total in filter(None, map(number_of, paths - wanted)):
        sets.setdefault((name, total), set()).add(number)
    missing = sorted(wanted - paths)
    for (name, total), numbers in sorted(sets.items()):
        others = (number for number in range(1, total + 1) if number not in numbers)
        missing += (f"{name}-{number:05}-of-{total:05}{ENDING}" for number in islice(others, _MOST_NAMED))
    return [f"{path} is missing" for path in missing]


def index(content: Content) -> None:
    """Add the tensors of all files that are open, and the tables that they make."""
    from edl_ckpt.core.sources.safetensors.indexing import index_files

    index_files(content)
