"""The checkpoint systems that can be read, with the words for them: what people call a system and its shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources import registry

ELASTICDL: Final = registry.ALONE.systems[0]


@dataclass(frozen=True, slots=True)
class System:
    """A checkpoint system: its name for `--system`, its title, and the programs that judge what is read of it."""

    name: str
    title: str
    shard: str = "shard"
    """What its users call a shard."""
    reads: bool = True
    writes: bool = False
    judged_with: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return describe("System", self.name, self.title, "reads" * self.reads, "writes" * self.writes)


_KNOWN: Final = {
    system.name: system
    for system in (
        System(ELASTICDL, "ElasticDL", "PS", writes=True, judged_with=("ElasticDL",)),
        System("dcp", "torch DCP", "rank", writes=True, judged_with=("torch 2.13", "torchrec 1.8")),
        System("tensorflow", "TensorFlow", writes=True, judged_with=("tensorflow 2.16",)),
        System("safetensors", "safetensors", writes=True, judged_with=("safetensors", "transformers")),
        System("tfra", "TFRA", writes=True, judged_with=("tensorflow-recommenders-addons 0.8.1",)),
        System("torch", "torch.save", "file", judged_with=("torch 2.13",)),
        System("dynamicemb", "dynamicemb", "rank", writes=True, judged_with=("recsys-examples",)),
    )
}


def systems() -> tuple[System, ...]:
    """Return the systems of all sources, those of other packages last."""
    names = (name for source in (*registry.BUILT_IN, *registry.others()) for name in source.systems)
    return tuple(_known(name) for name in dict.fromkeys(names))


def _known(name: str) -> System:
    return _KNOWN.get(name) or System(name, name)


def title_of(system: str) -> str:
    """Return what people call a system.

    >>> title_of("dcp"), title_of("another")
    ('torch DCP', 'another')
    """
    return _known(system).title


def shards_of(system: str, count: int) -> str:
    """Return a number of shards, as the users of a system say it.

    >>> shards_of("elasticdl", 3), shards_of("dcp", 8), shards_of("safetensors", 1)
    ('3 PS', '8 ranks', '1 shard')
    """
    return f"{count} PS" if system == ELASTICDL else counted(count, _known(system).shard)


def kinds_of(versions: Iterable[Version]) -> str:
    """Return how versions were saved: the systems, of ElasticDL's own the layout; '' without any."""
    layouts = dict.fromkeys(version.layout for version in versions)
    names = {layout.name for layout in layouts if layout.system == ELASTICDL}
    words = [f"{'mixed' if len(names) > 1 else name} layout" for name in sorted(names)[:1]]
    others = {title_of(layout.system) for layout in layouts if layout.system != ELASTICDL}
    return ", ".join([*words, *sorted(others)])
