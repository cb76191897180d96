"""Parts of a table, of any size, as batches of one number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from edl_ckpt.core.operations.export.interface import Batch
from edl_ckpt.core.sorting.partition import TablePart


def in_batches(parts: Iterable[TablePart], rows: int) -> Iterator[Batch]:
    """Yield the rows of parts in batches of so many rows; the last one may have fewer."""
    held: list[Batch] = []
    for part in parts:
        start, count = 0, len(part.ids)
        while start < count:
            stop = min(start + rows - sum(len(ids) for ids, _ in held), count)
            held.append((part.ids[start:stop], part.rows(slice(start, stop))))
            start = stop
            if sum(len(ids) for ids, _ in held) == rows:
                yield _joined(held)
                held = []
    if held:
        yield _joined(held)


def _joined(some: Sequence[Batch]) -> Batch:
    if len(some) == 1:
        return some[0]
    return np.concatenate([ids for ids, _ in some]), np.concatenate([rows for _, rows in some])
