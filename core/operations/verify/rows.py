"""The rows behind a finding: their ids are read again, because a check only counts rows, and names the lowest ids."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Final

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import misplaced
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex, TableEntry
from edl_ckpt.core.operations.verify.findings import NAMED, Finding, Report
from edl_ckpt.core.proof.duplicates import SORTED_AT_ONCE, Search, reads_of
from edl_ckpt.core.proof.values import HUGE_EXPONENT, odd_rows
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, id_blocks
from edl_ckpt.core.reading.pieces import row_batches
from edl_ckpt.core.reading.reader import Checkpoint

_WORDS: Final = {"nan": "NaN", "inf": "infinite", "huge-value": f"2**{HUGE_EXPONENT} or more"}
ODD: Final = tuple(_WORDS)
"""The codes of findings about values, in the order in which they are counted."""


def ids_of(checkpoint: Checkpoint, finding: Finding) -> Iterator[bulk.I64]:
    """Yield the ids of all rows of a finding, int64 [n]; those that repeat, once for each time, in any order.

    Nothing for a finding that names no id. Raises CorruptError for ids that cannot be read.
    """
    within = checkpoint.entries(finding.subject) if finding.ids else []
    within = [(shard, entry) for shard, entry in within if finding.shard is None or shard.file.path == finding.path]
    if finding.code == "duplicate-id":
        pieces = [[IdPiece(shard, entry, run, run.start, run.end) for run in entry.ids] for shard, entry in within]
        groups = [reads_of(checkpoint, of_shard) for of_shard in pieces]
        yield from Search(SORTED_AT_ONCE).again(groups, sum(entry.rows for _, entry in within))
        return
    for shard, entry in within:
        if finding.code in ODD:
            yield from odd_ids(checkpoint, shard, entry, finding.code, entry.values)
            continue
        rule, file = checkpoint.placement(entry.name), shard.file
        for _, ids in id_blocks(checkpoint, shard, entry):
            yield ids[ids < 0 if finding.code == "negative-id" else misplaced(rule, ids, file.ps_num, file.ps_id)]


def odd_ids(
    checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, code: str, extent: Extent
) -> Generator[bulk.I64]:
    """Yield the ids of rows in an extent of a table's values that have such values, by one of ODD, as they are read."""
    kind, base, width = ODD.index(code), entry.values.start, max(entry.row_bytes, 1)
    low, high = (extent.start - base) // width, -(-(extent.end - base) // width)
    for number, block in id_blocks(checkpoint, shard, entry):
        first, ids = max(number, low), block[max(low - number, 0) : max(high - number, 0)]
        piece = IdPiece(shard, entry, entry.ids[0], 0, 0, first, len(ids))
        for batch, rows in row_batches(checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
            yield ids[batch][odd_rows(rows, entry.dtype, kind)]


def report_odd(
    report: Report, checkpoint: Checkpoint, shard: ShardIndex, entry: DenseEntry | TableEntry, counts: bulk.I64,
    extent: Extent, whose: str,
) -> None:  # fmt: skip
    """Report the odd values in an extent of a variable or of a table, of which the first few ids are read."""
    for code, count in zip(ODD, counts.tolist(), strict=True):
        if count:
            message = f"{count} of the {whose} {'is' if count == 1 else 'are'} {_WORDS[code]}"
            ids: tuple[int, ...] = ()
            if isinstance(entry, TableEntry):
                with closing(odd_ids(checkpoint, shard, entry, code, extent)) as blocks:
                    ids = tuple(islice(chain.from_iterable(block.tolist() for block in blocks), NAMED))
                message += f"; first {'ids' if len(ids) > 1 else 'id'}: {', '.join(map(str, ids))}"
            report.add(code, message, shard=shard.file, subject=entry.name, offset=extent.start, ids=ids, count=count)
