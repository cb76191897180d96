"""The names of files of torch.save: endings, sets, ranks, and files that go along with a model.

`NAME-0000I-of-0000N.bin` are a set, with `NAME.bin.index.json`. `NAME_world_size_W_rank_R.pt` are the files of ranks
that verl, SkyRL and others save with FSDP.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from edl_ckpt.core.base.patterns import LatePattern

ENDINGS: Final = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
INDEX: Final = ".bin.index.json"
_FLAGS: Final = re.DOTALL | re.ASCII
_SET: Final = LatePattern(r"((?:.+/)?(?:.*model|.*weights))-(\d{5})-of-(\d{5})\.bin", _FLAGS)
_OF_RANK: Final = LatePattern(r"((?:.+/)?)(.+)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt", _FLAGS)
WHOLE: Final = LatePattern(r"(?:.+/)?(?:pytorch_model|diffusion_pytorch_model|adapter_model|model)\.bin", _FLAGS)
DEEPSPEED: Final = LatePattern(r"(?:.+/)?mp_rank_(\d{1,6})_model_states\.pt", _FLAGS)
OF_ZERO: Final = LatePattern(r"(?:.+/)?(?:bf16_)?zero_pp_rank_\d+_mp_rank_\d+_(?:optim|model)_states\.pt", _FLAGS)
GOES_ALONG: Final = LatePattern(
    r"(?:.+/)?(?:training_args|optimizer(?:_\d+)?|scheduler(?:_\d+)?|sampler(?:_\d+)?|dl_state_dict(?:_\d+)?)\.bin"
    r"|(?:.+/)?(?:scheduler|scaler|rng_state(?:_.+)?|common|meta|data|recipe_state|train_state)\.pth?",
    _FLAGS,
)
"""Files that jobs save next to a model; none of them is a model."""
_OF_ELASTICDL: Final = LatePattern(r".+-\d+-of-\d+\.ckpt", _FLAGS)
"""A shard of ElasticDL, whatever it contains."""


class RankName(NamedTuple):
    """What the path of a file of a rank says."""

    folder: str
    """The directory, with a slash at its end."""
    item: str
    ranks: int
    rank: int


def is_named_so(path: str) -> bool:
    """Say whether a path ends as files of torch.save do; nothing more is known of it.

    >>> is_named_so("epoch=3-step=40.ckpt"), is_named_so("a/pytorch_model.bin"), is_named_so("variables-0-of-2.ckpt")
    (True, True, False)
    """
    return path.endswith(ENDINGS) and not is_of_elasticdl(path)


def is_of_elasticdl(path: str) -> bool:
    """Say whether a path ends as shards of ElasticDL do, whose ending files of torch.save have, too.

    >>> is_of_elasticdl("variables-0-of-2.ckpt"), is_of_elasticdl("last.ckpt")
    (True, False)
    """
    return path.endswith(".ckpt") and _OF_ELASTICDL.fullmatch(path) is not None


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
    patterns = (WHOLE, GOES_ALONG, DEEPSPEED, OF_ZERO)
    return rank_named(name) is not None or set_named(name) is not None or any(p.fullmatch(name) for p in patterns)
