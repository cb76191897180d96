"""The rows behind a finding: their ids are read again, because a check only counts rows, and names the lowest ids."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Final

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import misplaced
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex, TableEntry
from edl_ckpt.core.operations.verify.findings import NAMED, Report
from edl_ckpt.core.proof.duplicates import SORTED_AT_ONCE, Search, reads_of
from edl_ckpt.core.proof.values import HUGE_EXPONENT, odd_rows
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, id_blocks
from edl_ckpt.core.reading.pieces import row_batches
from edl_ckpt.core.reading.reader import Checkpoint

_WORDS: Final = {"nan": "NaN", "inf": "infinite", "huge-value": f"2**{HUGE_EXPONENT} or more"}
ODD: Final = tuple(_WORDS)
"""The codes of findings about values, in the order in which they are counted."""


def ids_of(
    checkpoint: Checkpoint, code: str, within: Sequence[tuple[ShardIndex, TableEntry]], extent: Extent | None = None
) -> Generator[bulk.I64]:
    """Yield the ids of all rows of a table with a fault, by the code of its findings, int64 [n], as they are read.

    Those that repeat come once for each time, in any order. With the `extent` of some values, only rows with bytes in
    it. Raises CorruptError for ids that cannot be read.
    """
    if code == "duplicate-id":
        pieces = [[IdPiece(shard, entry, run, run.start, run.end) for run in entry.ids] for shard, entry in within]
        groups = [reads_of(checkpoint, of_shard) for of_shard in pieces]
        yield from Search(SORTED_AT_ONCE).again(groups, sum(entry.rows for _, entry in within))
        return
    for shard, entry in within:
        part, file, width = extent or entry.values, shard.file, max(entry.row_bytes, 1)
        low, high = (part.start - entry.values.start) // width, -((entry.values.start - part.end) // width)
        for number, block in id_blocks(checkpoint, shard, entry):
            if code not in ODD:
                wrong = misplaced(checkpoint.placement(entry.name), block, file.ps_num, file.ps_id)
                yield block[block < 0 if code == "negative-id" else wrong]
                continue
            first, ids = max(number, low), block[max(low - number, 0) : max(high - number, 0)]
            piece = IdPiece(shard, entry, entry.ids[0], 0, 0, first, len(ids))
            for batch, rows in row_batches(checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
                yield ids[batch][odd_rows(rows, entry.dtype, ODD.index(code))]


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
                with closing(ids_of(checkpoint, code, [(shard, entry)], extent)) as blocks:
                    ids = tuple(islice(chain.from_iterable(block.tolist() for block in blocks), NAMED))
                message += f"; first {'ids' if len(ids) > 1 else 'id'}: {', '.join(map(str, ids))}"
            report.add(code, message, shard=shard.file, subject=entry.name, offset=extent.start, ids=ids, count=count)
