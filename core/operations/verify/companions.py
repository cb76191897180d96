"""Companions must have the ids of their table: a slot that lacks one starts from zero, and no error says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel.placement import fmix64
from edl_ckpt.core.model.tables import IdRun
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.reading.blocks import id_blocks
from edl_ckpt.core.reading.reader import Checkpoint

_BITS: Final = (1 << 64) - 1


def check_companions(checkpoint: Checkpoint, report: Report, pairs: Iterable[tuple[str, str]] | None = None) -> None:
    """Report each companion whose ids are not those of its table; equal extents are equal ids.

    Companions and their tables are those that the version names, or other `pairs`.
    """
    digests: dict[str, tuple[int, int]] = {}
    of_version = ((name, info.companion_of) for name, info in sorted(checkpoint.infos.items()))
    for name, table in of_version if pairs is None else pairs:
        if not table or not checkpoint.has_table(table) or _runs(checkpoint, name) == _runs(checkpoint, table):
            continue
        try:
            mine = _digest(checkpoint, name)
            wanted = digests[table] = digests[table] if table in digests else _digest(checkpoint, table)
        except CorruptError:
            continue  # the check of ids says so
        if mine != wanted:
            report.add(
                "companion-ids",
                f"covers {mine[0]:,} of the {wanted[0]:,} rows of table {table!r}"
                if mine[0] < wanted[0]
                else f"its {counted(mine[0], 'row')} have other ids than the {wanted[0]:,} of table {table!r}",
                path=checkpoint.version.path,
                subject=name,
            )


def _runs(checkpoint: Checkpoint, table: str) -> list[tuple[str, tuple[IdRun, ...]]]:
    """Return where the ids of a table are; row numbers are the same wherever they are counted."""
    found = []
    for shard, entry in checkpoint.entries(table):
        runs = (run if run.is_stored else IdRun(0, run.size_bytes, run.encoding, run.first) for run in entry.ids)
        found.append((shard.file.path, tuple(runs)))
    return found


def _digest(checkpoint: Checkpoint, table: str) -> tuple[int, int]:
    """Return the number of ids, and a sum over them that their order does not change."""
    rows, total = 0, 0
    for shard, entry in checkpoint.entries(table):
        for _, ids in id_blocks(checkpoint, shard, entry):
            rows, total = rows + len(ids), total + int(np.sum(fmix64(ids), dtype=np.uint64))
    return rows, total & _BITS
