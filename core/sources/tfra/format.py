"""TFRA's FileSystemSaver: `VAR_mht_IofN_rankR_sizeS-keys` and `-values`, raw, without a header.

Source: `SaveToFileSystem` in cuckoo_hashtable_op.cc and `save_to_file_system` in dynamic_embedding_variable.py, TFRA
0.8.1. A variable has a table on each of N devices of each of S processes: table I of rank R is shard I - 1 + N * R.
A table that is saved by itself has no rank in its name. Keys are int64. Nothing names the dtype of values: float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps import raw_tables
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.sources.steps.raw_tables import IDS, VALUES, RawName, RawTable, add_tables, claim_tables, rule_of

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

heads, digest = raw_tables.no_heads, raw_tables.no_digest
_NUMBER: Final = raw_tables.NUMBER
_FILE: Final = LatePattern(
    f"(.*/)?([^/]+)_mht_{_NUMBER}of{_NUMBER}(?:_rank{_NUMBER}_size{_NUMBER})?-(keys|values)", re.DOTALL | re.ASCII
)

_SLOTS: Final = "accum accumulator gradient_accumulator linear m mg momentum rms squared_linear v vhat velocity"
_SLOT: Final = LatePattern(f"_(?:.+_)?({'|'.join(_SLOTS.split())})", re.DOTALL)


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of keys and values."""
    del digests
    return claim_tables(files, file_named)


def file_named(path: str) -> RawName | None:
    """Return what a path says; None for other files.

    >>> name = file_named("TFRADynamicEmbedding/user_mht_2of3_rank1_size2-keys")
    >>> name.table, name.ps_id, name.ps_num
    ('user', 4, 6)
    """
    match = _FILE.fullmatch(path) if "_mht_" in path else None
    if match is None:
        return None
    folder = match[1] or ""
    variable = match[2]
    kind = match[7]
    number = int(match[3])
    count = int(match[4])
    rank = int(match[5] or 0)
    size = int(match[6] or 1)
    if not 1 <= number <= count or rank >= size:
        return None
    column = IDS if kind == "keys" else VALUES
    return RawName(variable, column, number - 1 + count * rank, count * size, f"{folder}{count}of{size}")


def index(content: Content) -> None:
    """Add the tables of all files that are open.

    A build for CPUs and one for GPUs place keys by other rules, which differ for negative keys and those of 2^31 on.
    """
    rules = (Placement.MOD, Placement.MASK31_MOD)
    add_tables(content, file_named, lambda table: rule_of(content, table, rules), _slot_of)


def _slot_of(table: RawTable, tables: Iterable[RawTable]) -> tuple[str, str]:
    """Return the variable and the slot that the name of a table says, if they have as many rows; else ('', '').

    An optimizer names its slots `VAR/OPTIMIZER/SLOT` or `VAR/SLOT`, and in the name of a file each '/' is '_'.
    """
    best = ("", "")
    for other in tables:
        slot = _SLOT.fullmatch(table.name.removeprefix(other.name)) if table.name.startswith(other.name) else None
        if slot and len(other.name) > len(best[0]):
            same = all(table.rows(ps_id) == other.rows(ps_id) for ps_id in table.parts | other.parts)
            best = (other.name, slot[1]) if same else best
    return best
