"""The result of every operation that writes a version: a reshard, an edit, an import, a strip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edl_ckpt.core.base.words import counted, describe, escaped, size
from edl_ckpt.core.converting.changes import LeftOut
from edl_ckpt.core.converting.items import NO_ITEMS, ItemCounts
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.reading.stored_sums import NO_SUMS, SumsCompared
from edl_ckpt.core.sources.systems import ELASTICDL

if TYPE_CHECKING:
    from edl_ckpt.core.proof.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True, repr=False)
class WriteResult:
    """The written version. Where nothing was changed, the source and what was read back both have its `fingerprint`."""

    ref: str
    """The reference of the written version."""
    output: str
    from_ps: int | None
    """The number of shards or ranks of a source that is a checkpoint, None for arrays."""
    to_ps: int
    version: int | None
    """Its number, None for a version that only its name tells from others."""
    size_bytes: int
    bytes_read: int
    bytes_written: int
    rows: int
    """The rows of all tables that went out, those of companions too."""
    seconds: float
    peak_memory_bytes: int
    fingerprint: str
    """'' where nothing was written, and for a version that was there already and has no seal."""
    shards: tuple[ShardSummary, ...]
    forced: str | None = None
    """Why a source that is a checkpoint did not match its seal or its checksums, where `force` went on, else None."""
    checksums: SumsCompared = NO_SUMS
    """How many checksums of the source's files were compared, and how many are of values that were not read."""
    items: ItemCounts = NO_ITEMS
    left_out: tuple[LeftOut, ...] = ()
    """What the source has and the version has not, and why: tables, variables, items, and rows of a table."""
    source: str = ""
    """What was read: the reference of a version, or a file; '' for arrays in memory."""
    system: str = ELASTICDL
    untouched: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The fingerprints of the tables and variables that are what they were, by name; nothing where all of them are."""
    overflowed: int = 0
    """Values that became infinite by a cast."""
    resumed_bytes: int = 0
    """The bytes of values that an interrupted run had moved."""
    needed: bool = True
    """False when the version was there already."""
    dry_run: bool = False
    content: Fingerprint | None = field(default=None, repr=False, compare=False)
    """The fingerprint of what was read back, with the digest of each name."""

    @property
    def dropped(self) -> tuple[LeftOut, ...]:
        """Return what was left out."""
        return self.left_out

    @property
    def left_out_bytes(self) -> int:
        """Return the bytes of all that was left out."""
        return sum(one.size_bytes for one in self.left_out)

    def __repr__(self) -> str:
        shards = f"{f'{self.from_ps} to ' if self.from_ps else ''}{counted(self.to_ps, 'shard')}"
        facts = (shards, counted(self.rows, "row"), size(self.size_bytes), f"in {escaped(self.output)}")
        return describe(type(self).__name__, escaped(self.ref), *facts)
