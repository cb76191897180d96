"""The files of a checkpoint of torch_checkpointing: `ITEM_RANK.pt`, and other endings where an item asks for them.

Source: torch_checkpointing 0.1.1, `checkpoint_layout.py`. A save writes into `tmp_STEP`, and renames it to STEP when
all ranks have written. `metadata.pkl` is there where an item may be loaded by another number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern

METADATA: Final = "metadata.pkl"
RUNNING: Final = "tmp_"
"""What the name of a directory begins with as long as its save has not ended."""
_OF_OTHERS: Final = LatePattern(r".+_world_size_\d+_rank_\d+\.pt", re.DOTALL | re.ASCII)
"""What verl, SkyRL and others save: its last number is a rank, too."""
_FILE: Final = LatePattern(r"([^/]+)_(0|[1-9]\d{0,5})\.(pt|safetensors|json|bin)", re.DOTALL | re.ASCII)


def files_by_item(names: Collection[str]) -> dict[str, dict[int, str]]:
    """Return the files of each item by their ranks; {} unless all names are of such files.

    Several items that have a rank 0 show it: one alone may as well be numbered by its steps.

    >>> files_by_item(["model_0.pt", "model_1.pt", "step_0.pt"])
    {'model': {0: 'model_0.pt', 1: 'model_1.pt'}, 'step': {0: 'step_0.pt'}}
    >>> files_by_item(["model_0.pt", "notes.txt"]), files_by_item(["step_0.pt", "step_1.pt"])
    ({}, {})
    >>> files_by_item(["model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt"])
    {}
    """
    found: dict[str, dict[int, str]] = {}
    for name in sorted(names):
        match = _FILE.fullmatch(name)
        if (match is None and name != METADATA) or _OF_OTHERS.fullmatch(name):
            return {}
        if match is not None:
            found.setdefault(match[1], {})[int(match[2])] = name
    is_torch = any(name.endswith(".pt") for name in names)
    return found if is_torch and len(found) > 1 and all(0 in ranks for ranks in found.values()) else {}


def item_named(name: str) -> tuple[str, int] | None:
    """Return the item and the rank that the name of a file says; None for a file of somebody else.

    >>> item_named("step_0.pt"), item_named("notes_1.txt"), item_named("__9_1.distcp")
    (('step', 0), None, None)
    """
    match = _FILE.fullmatch(name)
    return None if match is None or _OF_OTHERS.fullmatch(name) else (match[1], int(match[2]))


def items_of(names: Collection[str], named: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    """Return the files of each item by rank: those that the metadata name, and others by their own names.

    >>> items_of(["model_0.pt", "extra_1.pt", "metadata.pkl"], {"model": {0: "model_0.pt"}})
    {'model': {0: 'model_0.pt'}, 'extra': {1: 'extra_1.pt'}}
    """
    items = {item: dict(ranked) for item, ranked in named.items()}
    taken: set[str] = set()
    for ranked in named.values():
        taken.update(ranked.values())
    for name in names:
        by_name = item_named(name)
        if name not in taken and by_name is not None:
            item, rank = by_name
            items.setdefault(item, {})[rank] = name
    return items


def ranks_in(items: Mapping[str, Mapping[int, str]]) -> int:
    """Return how many ranks the names of files show; 0 without files."""
    return max((max(ranked) for ranked in items.values()), default=-1) + 1


def lacking(items: Mapping[str, Mapping[int, str]], ranks: int, everywhere: Collection[str]) -> list[str]:
    """Return which ranks have no file of an item, in words; `everywhere` are the items that each rank must have."""
    lacks: list[str] = []
    for item, files in sorted(items.items()):
        if item in everywhere:
            lost = (rank for rank in range(min(ranks, len(files) + 8)) if rank not in files)
            lacks += [f"rank {rank} of {ranks} of {item}" for rank in lost]
    return lacks
