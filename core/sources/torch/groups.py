"""Which files of torch.save belong together, by their names: sets, files of ranks, and files by themselves.

`NAME-0000I-of-0000N.bin` are a set, with `NAME.bin.index.json`. `NAME_world_size_W_rank_R.pt` are the files of ranks
that verl, SkyRL and others save with FSDP. Next to a model of Hugging Face's, or of DeepSpeed's, other files go along:
they are state of the same job, and each is a checkpoint by itself when it is named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edl_ckpt.core.base.patterns import LatePattern

ENDINGS: Final = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
INDEX: Final = ".bin.index.json"
_FLAGS: Final = re.DOTALL | re.ASCII
_SET: Final = LatePattern(r"((?:.+/)?(?:.*model|.*weights))-(\d{5})-of-(\d{5})\.bin", _FLAGS)
_OF_RANK: Final = LatePattern(r"((?:.+/)?)(.+)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt", _FLAGS)
_WHOLE: Final = LatePattern(r"(?:.+/)?(?:pytorch_model|diffusion_pytorch_model|adapter_model|model)\.bin", _FLAGS)
_DEEPSPEED: Final = LatePattern(r"(?:.+/)?mp_rank_(\d{1,6})_model_states\.pt", _FLAGS)
_ZERO: Final = LatePattern(r"(?:.+/)?(?:bf16_)?zero_pp_rank_\d+_mp_rank_\d+_(?:optim|model)_states\.pt", _FLAGS)
_GOES_ALONG: Final = LatePattern(
    r"(?:.+/)?(?:training_args|optimizer(?:_\d+)?|scheduler(?:_\d+)?|sampler(?:_\d+)?|dl_state_dict(?:_\d+)?)\.bin"
    r"|(?:.+/)?(?:scheduler|scaler|rng_state(?:_.+)?|common|meta|data|recipe_state|train_state)\.pth?",
    _FLAGS,
)
"""Files that jobs save next to a model; none of them is a model."""
ZERO: Final = (
    "a DeepSpeed ZeRO directory: edl-ckpt reads mp_rank_*_model_states.pt, and no partitions of an optimizer or of"
    " ZeRO-3; DeepSpeed's zero_to_fp32.py makes one file of them"
)

_MOST_NAMED: Final = 8
"""So many missing files are named one by one."""
_OF_ELASTICDL: Final = LatePattern(r".+-\d+-of-\d+\.ckpt", _FLAGS)
"""A shard of ElasticDL, whatever it contains."""


class RankName(NamedTuple):
    """What the path of a file of a rank says."""

    folder: str
    """The directory, with a slash at its end."""
    item: str
    ranks: int
    rank: int


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


def is_named_so(path: str) -> bool:
    """Say whether a path ends as files of torch.save do; nothing more is known of it.

    >>> is_named_so("epoch=3-step=40.ckpt"), is_named_so("a/pytorch_model.bin"), is_named_so("variables-0-of-2.ckpt")
    (True, True, False)
    """
    return path.endswith(ENDINGS) and not (path.endswith(".ckpt") and _OF_ELASTICDL.fullmatch(path))


def stem_of(name: str) -> str:
    """Return a name without its ending.

    >>> stem_of("step_1000.pt"), stem_of("best.pth.tar")
    ('step_1000', 'best')
    """
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def rank_named(path: str) -> RankName | None:
    """Return what a path says of a rank; None for another one.

    >>> rank_named("actor/model_world_size_3_rank_2.pt")
    RankName(folder='actor/', item='model', ranks=3, rank=2)
    """
    match = _OF_RANK.fullmatch(path) if "_world_size_" in path else None
    if match is None or int(match[4]) >= int(match[3]):
        return None
    return RankName(match[1], match[2], int(match[3]), int(match[4]))


def set_named(path: str) -> tuple[str, int, int] | None:
    """Return (what the files of a set share, number, total) of a file of one; None for another one."""
    match = _SET.fullmatch(path) if "-of-" in path else None
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return None
    return match[1], int(match[2]), int(match[3])


def is_part(name: str) -> bool:
    """Say whether a name shows that a file belongs to others beside it, or goes along: it is no version by itself.

    >>> is_part("pytorch_model.bin"), is_part("optimizer.bin"), is_part("step_1000.pt")
    (True, True, False)
    """
    patterns = (_WHOLE, _GOES_ALONG, _DEEPSPEED, _ZERO)
    return rank_named(name) is not None or set_named(name) is not None or any(p.fullmatch(name) for p in patterns)


def grouped(paths: Collection[str], listed: Mapping[str, Collection[str] | None]) -> Groups:
    """Return the files that are read of a step whose paths end as files of torch.save.

    `listed` has the files of each index of a set, None for one that cannot be read.
    """
    ranked = {path: name for path in paths if (name := rank_named(path))}
    if ranked:
        return _of_ranks(ranked)
    wholes, lacks = _sets(paths, listed)
    for path in paths:
        if _WHOLE.fullmatch(path):
            wholes.setdefault(stem_of(path), (path,))
    if wholes:
        return Groups(wholes=wholes, lacks=tuple(lacks))
    states = {stem_of(path): (path,) for path in sorted(paths) if _DEEPSPEED.fullmatch(path)}
    if states:
        return Groups(wholes=states)
    if any(_ZERO.fullmatch(path) for path in paths):
        return Groups(unsupported=ZERO)
    alone = [path for path in sorted(paths) if not _GOES_ALONG.fullmatch(path)] or sorted(paths)
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
