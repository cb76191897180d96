"""Parts of tensors in safetensors files: what torch's HuggingFaceStorageWriter saves, one file of each rank.

A file `shard-0000R-NAME-0000I-of-0000N.safetensors` has the boxes of rank R - 1. Its header says where each box begins
(`DCP_SHARDING_INFO`); nothing says the shape of the whole, so that is the hull of all boxes. Where torch has
consolidated the files too, whole tensors are in `NAME.safetensors` or a set NAME, in the same directory or above
`sharded/`: then these are read, as transformers reads them, and the parts are left alone.

Source: `torch/distributed/checkpoint/hf_storage.py` and `_hf_utils.py`, torch 2.13.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.sources.safetensors.sets import ENDING, set_of

INFO: Final = "DCP_SHARDING_INFO"
_NAMED: Final = LatePattern(r"((?:.+/)?)shard-(\d{5})-(.+)-(\d{5})-of-(\d{5})\.safetensors", re.DOTALL | re.ASCII)
_SHARDED: Final = "sharded/"
_MOST_NAMED: Final = 8
_MOST: Final = 1 << 62


class PartName(NamedTuple):
    """What the path of a file of parts says."""

    folder: str
    """The directory, with a slash at its end."""
    rank: int
    stem: str
    number: int
    total: int

    @property
    def wholes(self) -> tuple[str, ...]:
        """Return the paths, without what follows the stem, of the files that have the same tensors whole."""
        above = self.folder.removesuffix(_SHARDED)
        return tuple(dict.fromkeys((f"{self.folder}{self.stem}", f"{above}{self.stem}")))


class Part(NamedTuple):
    """A box of a tensor: its first element, and its size in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def part_named(path: str) -> PartName | None:
    """Return what a path says of parts; None for another one.

    >>> part_named("sharded/shard-00002-model-00001-of-00004.safetensors")
    PartName(folder='sharded/', rank=1, stem='model', number=1, total=4)
    >>> part_named("model-00001-of-00004.safetensors")
    """
    match = _NAMED.fullmatch(path)
    if match is None or not int(match[2]) or not 1 <= int(match[4]) <= int(match[5]):
        return None
    return PartName(match[1], int(match[2]) - 1, match[3], int(match[4]), int(match[5]))


def beside_wholes(paths: Iterable[str], parts: Mapping[str, PartName]) -> set[str]:
    """Return the files of parts whose tensors other files of some paths have whole."""
    wholes = {set_of(path) for path in paths if path not in parts}
    return {path for path, name in parts.items() if not wholes.isdisjoint(name.wholes)}


def offsets_in(metadata: Mapping[str, str], shapes: Mapping[str, Sequence[int]], path: str) -> dict[str, Part]:
    """Return the box of each tensor of a file by its header; {} where the header says nothing of boxes.

    Raises CorruptError for boxes that cannot be.
    """
    if INFO not in metadata:
        return {}
    try:
        document = json.loads(metadata[INFO])
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise CorruptError(f"{INFO} in the header is no JSON object", path=path, offset=8)
    found: dict[str, Part] = {}
    for name, shape in shapes.items():
        entry = document.get(name)
        offsets = entry.get("saved_offsets") if isinstance(entry, dict) else None
        if not isinstance(offsets, list) or any(type(n) is not int or not 0 <= n < _MOST for n in offsets):
            raise CorruptError(f"{INFO} in the header does not say where {name!r} begins", path=path, offset=8)
        if len(offsets) != len(shape):
            message = f"{INFO} in the header has {counted(len(offsets), 'dimension')} for {name!r}, not {len(shape)}"
            raise CorruptError(message, path=path, offset=8)
        found[name] = Part(tuple(offsets), tuple(shape))
    return found


def hull(parts: Iterable[Part]) -> tuple[int, ...]:
    """Return the shape that boxes span.

    >>> hull([Part((0, 0), (6, 6)), Part((6, 0), (5, 6))])
    (11, 6)
    """
    ends = [[offset + size for offset, size in zip(*part, strict=True)] for part in parts]
    return tuple(map(max, zip(*ends, strict=True)))


def lacking(names: Iterable[PartName], boxes: Mapping[str, Sequence[Part]]) -> list[str]:
    """Return what is missing of files of parts, in words: files that no rank has, and boxes of tensors.

    A rank that had nothing to save has left no file, so ranks are not counted.
    """
    numbers: dict[tuple[str, str, int], set[int]] = {}
    for name in names:
        numbers.setdefault((name.folder, name.stem, name.total), set()).add(name.number)
    lacks: list[str] = []
    for (folder, stem, count), there in sorted(numbers.items()):
        lost = [number for number in range(1, min(count, len(there) + _MOST_NAMED) + 1) if number not in there]
        lacks += [f"{folder}shard-*-{stem}-{number:05}-of-{count:05}{ENDING} is missing" for number in lost]
    torn = (f"{name}: {fault}" for name, parts in sorted(boxes.items()) if (fault := untiled(parts)))
    return lacks[:_MOST_NAMED] + list(islice(torn, _MOST_NAMED))


def lost_files(files: Mapping[PartName, Mapping[str, Part]]) -> list[str]:
    """Return the files of ranks that must have been there by the boxes in others, in words.

    A rank that had no part of the tensors of a file left none, so a file is missed only where other ranks have that
    number, the rank has others, and the boxes of the file end too early: torch cuts n rows for W ranks into parts of
    ceil(n / W). A tensor in one box may be a whole one: it counts where others are cut.

    All files of the last rank are never missed: with c = ceil(n / W), the first W - 1 parts have m = min(n, (W - 1) c)
    rows, and ceil(m / (W - 1)) is c again. So they are, byte for byte, what W - 1 ranks save of a tensor of m rows.
    """
    sets: dict[tuple[str, str, int], dict[PartName, Mapping[str, Part]]] = {}
    for name, parts in files.items():
        sets.setdefault((name.folder, name.stem, name.total), {})[name] = parts
    found: list[str] = []
    for (folder, stem, total), some in sorted(sets.items()):
        ranks = sorted({name.rank for name in some})
        there = {(name.rank, name.number) for name in some}
        boxes: dict[int, dict[str, list[Part]]] = {}
        for name, parts in some.items():
            of_number = boxes.setdefault(name.number, {})
            for tensor, part in parts.items():
                of_number.setdefault(tensor, []).append(part)
        if all(len(each) < 2 for tensors in boxes.values() for each in tensors.values()):
            continue  # nothing is cut: each rank saved whole tensors
        for number, tensors in sorted(boxes.items()):
            tensor = _ends_early(tensors, ranks[-1] + 1)
            lost = [rank for rank in ranks if tensor and (rank, number) not in there]
            paths = (f"{folder}shard-{rank + 1:05}-{stem}-{number:05}-of-{total:05}{ENDING}" for rank in lost)
            found += (f"{path} is missing: {tensor!r} ends early" for path in paths)
    return found[:_MOST_NAMED]


def _ends_early(tensors: Mapping[str, Sequence[Part]], ranks: int) -> str:
    """Return a tensor whose boxes are too few for so many ranks; '' where one explains that a rank has none.

    One whose last part is shorter than the others, or whose parts have one row, ends where it should. One that ends
    with a whole part may do so too, but not all tensors of a file.
    """
    alone = ""
    for name, parts in sorted(tensors.items()):
        shape = hull(parts)
        cut = [axis for axis, size in enumerate(shape) if any(part.sizes[axis] != size for part in parts)]
        if len(parts) > 1 and cut:
            rows, most = shape[cut[0]], max(part.sizes[cut[0]] for part in parts)
            if most > -(-rows // ranks):
                return name
            if most == 1 or rows % most:
                return ""
        if shape and shape[0] > 1:
            alone = alone or name
    return alone


def untiled(parts: Sequence[Part]) -> str:
    """Return why boxes cannot be those of one tensor, by their sizes; '' where they can."""
    if len({len(part.sizes) for part in parts}) > 1:
        return "its boxes have different numbers of dimensions"
    shape = hull(parts)
    if sum(math.prod(part.sizes) for part in parts) == math.prod(shape):
        return ""
    return f"{'its box does' if len(parts) == 1 else f'its {len(parts)} boxes do'} not tile {list(shape)}"
