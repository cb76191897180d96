"""Toy's files: `TABLE.toy-RANK-of-N.ids`, int64 [rows], and `TABLE.toy-RANK-of-N.rows`, float32 [rows, dim]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps import raw_tables
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.sources.steps.raw_tables import IDS, VALUES, RawName, add_tables, claim_tables, rule_of

if TYPE_CHECKING:
    from edl_ckpt.core.sources.steps.content import Content

heads, digest = raw_tables.no_heads, raw_tables.no_digest
_FILE: Final = LatePattern(rf"(?:.*/)?([^/]+)\.toy-{raw_tables.NUMBER}-of-{raw_tables.NUMBER}\.(ids|rows)", re.DOTALL)


def file_named(path: str) -> RawName | None:
    """Return what a path says; None for other files."""
    match = _FILE.fullmatch(path)
    if match is None:
        return None
    return RawName(match[1], IDS if match[4] == "ids" else VALUES, int(match[2]), int(match[3]))


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of ids and rows."""
    del digests
    return claim_tables(files, file_named)


def index(content: Content) -> None:
    """Add the tables of all files that are open."""
    add_tables(content, file_named, lambda table: rule_of(content, table, [Placement.MOD]))
