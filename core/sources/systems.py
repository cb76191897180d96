"""The checkpoint systems that can be read, each as it describes itself, with the words for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edl_ckpt.core.model.systems import System
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources import registry

ELASTICDL: Final = registry.ALONE.systems[0]
_KNOWN: Final = {about.name: about for about in registry.ABOUT}


def systems() -> tuple[System, ...]:
    """Return the systems of all sources, those of other packages last."""
    names = (name for source in (*registry.BUILT_IN, *registry.others()) for name in source.systems)
    return tuple(system_named(name) for name in dict.fromkeys(names))


def system_named(name: str) -> System:
    """Return what a system says of itself; of one of another package only the name is known."""
    return _KNOWN.get(name) or System(name, name)


def title_of(system: str) -> str:
    """Return what people call a system.

    >>> title_of("dcp"), title_of("another")
    ('torch DCP', 'another')
    """
    return system_named(system).title


def shards_of(system: str, count: int) -> str:
    """Return a number of shards, as the users of a system say it.

    >>> shards_of("elasticdl", 3), shards_of("dcp", 8), shards_of("safetensors", 1)
    ('3 PS', '8 ranks', '1 shard')
    """
    return system_named(system).shards(count)


def kinds_of(versions: Iterable[Version]) -> str:
    """Return how versions were saved: their systems, and the layout where a system has several; '' without any."""
    layouts = dict.fromkeys(version.layout for version in versions)
    named = {layout.name for layout in layouts if system_named(layout.system).names_layouts}
    words = [f"{'mixed' if len(named) > 1 else name} layout" for name in sorted(named)[:1]]
    others = {title_of(layout.system) for layout in layouts if not system_named(layout.system).names_layouts}
    return ", ".join([*words, *sorted(others)])
