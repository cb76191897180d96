"""Files of torch.save that belong together by their names: sets, files of ranks, and files by themselves.

Next to a model of Hugging Face's, or of DeepSpeed's, other files go along: they are state of the same job, and each is
a checkpoint by itself when it is named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.sources.torch.names import (
    DEEPSPEED,
    GOES_ALONG,
    INDEX,
    OF_ZERO,
    WHOLE,
    RankName,
    rank_named,
    set_named,
    stem_of,
)

ZERO: Final = (
    "a DeepSpeed ZeRO directory: edl-ckpt reads mp_rank_*_model_states.pt, and no partitions of an optimizer or of"
    " ZeRO-3; DeepSpeed's zero_to_fp32.py makes one file of them"
)

_MOST_NAMED: Final = 8
"""So many missing files are named one by one."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The files of a step that are read, by what they are: each group has one set of names."""

    of_ranks: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """The path of each rank's file, by the directory and the name that files of ranks share."""
    ranks: int = 0
    """How many ranks there were; 0 without files of ranks."""
    wholes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The paths of a file or of a set, by what they have in common."""
    lacks: tuple[str, ...] = ()
    unsupported: str = ""

    @property
    def paths(self) -> list[str]:
        """Return the paths of all of these files."""
        ranked = [path for files in self.of_ranks.values() for path in files.values()]
        return sorted([*ranked, *(path for paths in self.wholes.values() for path in paths)])


def grouped(paths: Collection[str], listed: Mapping[str, Collection[str] | None]) -> Groups:
    """Return the files that are read of a step whose paths end as files of torch.save.

    `listed` has the files of each index of a set, None for one that cannot be read.
    """
    ranked = {path: name for path in paths if (name := rank_named(path))}
    if ranked:
        return _of_ranks(ranked)
    wholes, lacks = _sets(paths, listed)
    for path in paths:
        if WHOLE.fullmatch(path):
            wholes.setdefault(stem_of(path), (path,))
    if wholes:
        return Groups(wholes=wholes, lacks=tuple(lacks))
    states = {stem_of(path): (path,) for path in sorted(paths) if DEEPSPEED.fullmatch(path)}
    if states:
        return Groups(wholes=states)
    if any(OF_ZERO.fullmatch(path) for path in paths):
        return Groups(unsupported=ZERO)
    alone = [path for path in sorted(paths) if not GOES_ALONG.fullmatch(path)] or sorted(paths)
    return Groups(wholes={stem_of(path): (path,) for path in alone})


def _sets(
    paths: Collection[str], listed: Mapping[str, Collection[str] | None]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the files of each set by what they share, and what is missing; `listed` is as in `grouped`."""
    members: dict[str, dict[int, str]] = {}
    totals: dict[str, int] = {}
    for path in paths:
        numbered = set_named(path)
        if numbered is not None:
            stem, number, total = numbered
            members.setdefault(stem, {})[number] = path
            totals[stem] = max(total, totals.get(stem, 0))
    wholes: dict[str, tuple[str, ...]] = {}
    lacks: list[str] = []
    for index, names in listed.items():
        stem = index.removesuffix(INDEX)
        by_number = members.pop(stem, {})
        in_set = sorted(by_number.values() if names is None else names)
        lacks += [f"{name} is missing" for name in in_set if name not in paths]
        wholes[stem] = tuple(name for name in in_set if name in paths)
    for stem, by_number in members.items():
        total = totals[stem]
        last_shown = min(total, len(by_number) + _MOST_NAMED)
        for number in range(1, last_shown + 1):
            if number not in by_number:
                lacks.append(f"{stem}-{number:05}-of-{total:05}.bin is missing")
        wholes[stem] = tuple(path for _, path in sorted(by_number.items()))
    return wholes, lacks


def _of_ranks(ranked: Mapping[str, RankName]) -> Groups:
    """Return the files of ranks of one save; of several sizes of the world only the largest, the others are torn."""
    of_ranks: dict[str, dict[int, str]] = {}
    worlds = {name.ranks for name in ranked.values()}
    world = max(worlds)
    for path, name in sorted(ranked.items()):
        of_ranks.setdefault(name.folder + name.item, {})[name.rank] = path
    lacks: list[str] = []
    if len(worlds) > 1:
        lacks.append(f"files of {len(worlds)} numbers of ranks: {', '.join(map(str, sorted(worlds)))}")
    for item, files in of_ranks.items():
        lacks += [f"rank {rank} of {world} of {item}" for rank in _absent(files, world)]
    return Groups(of_ranks, world, lacks=tuple(lacks))


def _absent(files: Mapping[int, str], ranks: int) -> list[int]:
    return [rank for rank in range(min(ranks, len(files) + _MOST_NAMED)) if rank not in files]
