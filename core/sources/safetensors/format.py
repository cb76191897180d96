"""safetensors files among the files of a step, alone or in a set with `NAME.safetensors.index.json`.

A shard is a file: `NAME-0000I-of-0000N` is shard I - 1 of N, and files with other names are in the order of their
paths. A listing reads no more than the index of a set and the headers of parts of tensors, so the sizes in a header
are compared when it is indexed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.safetensors.parts import Part, PartName, beside_wholes, lacking, lost_files, part_named
from edl_ckpt.core.sources.safetensors.sets import (
    ENDING,
    INDEX,
    listing,
    number_of,
    read_by_loaders,
    weight_map,
    without_torn_sets,
)
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files, read_head
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

_SMALL_BYTES: Final = 64 << 10
"""A listing looks how a file begins that is no larger: it may be a pointer, or the page of a server."""
_MOST_NAMED: Final = 8
"""So many missing files are named one by one."""


def heads(files: Files) -> Sequence[str]:
    """Return the indexes of sets, files of parts, and files that are so small that they may be no tensors at all."""
    return [path for path, file in files.items() if path.endswith(INDEX) or _is_head(path, file.size_bytes)]


def _is_head(path: str, size_bytes: int) -> bool:
    return path.endswith(ENDING) and (size_bytes <= _SMALL_BYTES or part_named(path) is not None)


def digest(file: RangeReader) -> Digest:
    """Return of an index the paths that it lists, in order; of a file with parts of tensors the box of each; else None.

    Raises UnsupportedError for a file that is recognised as one of another format.
    """
    if file.path.endswith(INDEX):
        try:
            return sorted(set(weight_map(parse_object(read_head(file), ""), "").values()))
        except CorruptError as error:
            if words := recognised_file(file):
                raise UnsupportedError(words, path=file.path) from error
            raise
    if part_named(file.path) is None:
        if words := recognised_file(file):
            raise UnsupportedError(words, path=file.path)
        return None
    from edl_ckpt.core.sources.safetensors.indexing import boxes_in  # few listings have parts

    return {name: list(map(list, part)) for name, part in boxes_in(file).items()} or None


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of tensors and the indexes of their sets; without parts of tensors that are there whole too."""
    paths = {path for path in files if path.endswith(ENDING)}
    indexes = [path for path in files if path.endswith(INDEX) and path in digests]
    if not paths and not indexes:
        return None
    paths, listed, torn_sets = without_torn_sets(paths, _listings(indexes, digests))
    indexes = [path for path in indexes if path not in torn_sets]
    paths = read_by_loaders(paths, listed)
    wanted = set[str]().union(*listed.values())
    parts = _parts_among(paths, digests)
    paths -= beside_wholes(paths, parts)
    parts = {path: name for path, name in parts.items() if path in paths}
    torn, unsupported = _faults({*paths, *indexes}, digests)
    torn += lacking(parts.values(), _boxes(parts, digests))
    torn += lost_files({name: _parts_of(digests[path]) for path, name in parts.items()})
    torn += _missing(paths - parts.keys(), wanted)
    numbers, ps_num = _numbered(paths | wanted, parts)
    shards: dict[int, list[str]] = {}
    for path, number in numbers.items():
        if path in files:
            shards.setdefault(number, []).append(path)
    return Claim(shards, ps_num, indexes, torn, "; ".join(unsupported))


def _listings(indexes: Iterable[str], digests: Mapping[str, Digest | Exception]) -> dict[str, set[str] | None]:
    """Return the files that each index lists, by the index; None for one that cannot be read."""
    listed: dict[str, set[str] | None] = {}
    for path in indexes:
        names = digests[path]
        listed[path] = None if isinstance(names, Exception) else listing(path, names)
    return listed


def _parts_among(paths: Iterable[str], digests: Mapping[str, Digest | Exception]) -> dict[str, PartName]:
    """Return what the names of files with parts of tensors say, by their paths."""
    parts: dict[str, PartName] = {}
    for path in paths:
        name = part_named(path)
        if name and digests.get(path):
            parts[path] = name
    return parts


def _faults(paths: Container[str], digests: Mapping[str, Digest | Exception]) -> tuple[list[str], list[str]]:
    """Return in words which files are torn, and why others are not read."""
    torn: list[str] = []
    unsupported: list[str] = []
    for path, fault in digests.items():
        if path not in paths or not isinstance(fault, Exception):
            continue
        if isinstance(fault, UnsupportedError):
            unsupported.append(str(fault))
        else:
            torn.append(f"{path}: {fault}")
    return torn, unsupported


def _boxes(parts: Mapping[str, PartName], digests: Mapping[str, Digest | Exception]) -> dict[str, list[Part]]:
    """Return the boxes of each tensor in parts of it, by its directory and its name."""
    boxes: dict[str, list[Part]] = {}
    for path, part in parts.items():
        for name, box in _parts_of(digests[path]).items():
            boxes.setdefault(f"{part.folder}{name}", []).append(box)
    return boxes


def _parts_of(known: Digest | Exception) -> dict[str, Part]:
    """Return the box of each tensor of a file by its digest."""
    found = known.items() if isinstance(known, dict) else ()
    return {name: Part(tuple(offsets), tuple(sizes)) for name, (offsets, sizes) in found}


def _numbered(paths: Iterable[str], parts: Mapping[str, PartName]) -> tuple[dict[str, int], int]:
    """Return the number of each file among all of a step, and how many there should be; files of parts have ranks."""
    names = sorted(paths)
    if names and len(parts) == len(names):
        return {path: part.rank for path, part in parts.items()}, max(part.rank for part in parts.values()) + 1
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
