"""TorchRec's tables among tensors, and the tensors kept for the rows of one, by their names and shapes.

A tensor `...embedding_bags.T.weight` or `...embeddings.T.weight` is a table. What managed collision (MCH) and tables of
virtual size keep row by row are companions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # names need no table
    from edl_ckpt.core.model.tables import TableInfo

_TABLE: Final = re.compile(r"(?:.+\.)?(?:embedding_bags|embeddings)\.[^.]+\.weight")
KEPT: Final = re.compile(r"(.+)\.(_mch_|_hash_zch_)([^.]+)")
"""What a module of managed collision has for each row; the module's name ends with that of the table."""
_BESIDE: Final = frozenset({"weight_id", "metadata"})
"""What tables of virtual size (KV ZCH) have beside their weight, row by row."""


def is_table_name(name: str) -> bool:
    """Say whether a tensor of two dimensions with this name is a table of TorchRec."""
    return _TABLE.fullmatch(name) is not None


def has_raw_ids(name: str, dtype: str) -> bool:
    """Say whether a companion of a table has the ids of its rows, so that these are no row numbers."""
    kept = KEPT.fullmatch(name)
    slot = kept[3] if kept else name.rpartition(".")[2]
    return dtype == "int64" and slot in {"sorted_raw_ids", "weight_id"}


def collisions(infos: Mapping[str, TableInfo]) -> dict[str, str]:
    """Return the tables that have managed collision, by the names of the modules that keep it."""
    return {match[1]: info.companion_of for name, info in infos.items() if (match := KEPT.fullmatch(name))}


def collided(infos: Mapping[str, TableInfo]) -> tuple[set[str], tuple[str, ...]]:
    """Return the tables with managed collision and their companions, and how the names of what is kept for them begin.

    The part of each rank refers to its own rows only, so such tensors are not cut anew.
    """
    kept = collisions(infos)
    tables = set(kept.values())
    return tables | {n for n, info in infos.items() if info.companion_of in tables}, tuple(f"{one}." for one in kept)


def owners_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return the tables among tensors, and what may be companions: each name with the tables that it may belong to.

    A table is its own owner. With two owners, a tensor is a companion of neither.
    """
    tables = {name: shape[0] for name, shape in shapes.items() if is_table_name(name) and len(shape) == 2}
    by_end: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for parts in (table.split(".") for table in tables):
        by_end[tuple(parts[-3:])].append(".".join(parts))
        by_end[tuple(parts[-2:-1])].append(".".join(parts))
    found = {table: [table] for table in tables}
    for name, shape in shapes.items():
        if name not in tables and 0 < len(shape) < 3:
            owners = [table for table in _alike(name, by_end) if tables[table] == shape[0]]
            found |= {name: owners} if owners else {}
    return found


def _alike(name: str, by_end: Mapping[tuple[str, ...], Sequence[str]]) -> list[str]:
    """Return the tables that have the longest run of names in common with a name; [] for no companion.

    Tables are known by the last three names of theirs, and by their short name.
    """
    parts = tuple(name.split("."))
    ends = [parts[n : n + 3] for n in range(len(parts) - 3)]
    if KEPT.fullmatch(name):
        ends = [parts[-2:-1]]
    elif parts[-1] in _BESIDE:
        ends = [(*parts[-3:-1], "weight")]
    close = list(dict.fromkeys(table for end in ends for table in by_end.get(end, ())))
    if len(close) < 2:
        return close
    from difflib import SequenceMatcher  # most names are like one table

    runs = [SequenceMatcher(None, table.split("."), parts, autojunk=False).find_longest_match() for table in close]
    longest = max(run.size for run in runs)
    return [table for table, run in zip(close, runs, strict=True) if run.size == longest]
