"""A shard as it is planned: its index, made by the reader of files from what will stand besides values and ids.

So one reader decides what a layout says, and a file that was written needs no second look at its headers: its bytes are
compared with those of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.sources.elasticdl.generations import draft_shard
from edl_ckpt.core.sources.elasticdl.indexing import index_shards
from edl_ckpt.core.sources.elasticdl.literals import Literals
from edl_ckpt.core.sources.elasticdl.wire import Cursor
from edl_ckpt.core.storage.interface import RangeReader


class PlannedReader(RangeReader):
    """A shard of which there is only what is neither values nor ids, to be read as the finished file is."""

    def __init__(self, file: ShardFile, literals: Literals) -> None:
        self.path = file.path
        self.size_bytes = file.size_bytes
        self.bytes_read = 0
        self._literals = literals

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes; zeros stand for values and ids, which no index looks at."""
        data = np.zeros(size, np.uint8)
        self._literals.fill(offset, data)
        return data.tobytes()


def planned_shards(files: Sequence[ShardFile], literals: Sequence[Literals], number: int) -> list[ShardIndex]:
    """Return the indexes of shards of version `number` with these literals; raises as `index_shards` does."""
    readers = (PlannedReader(*each) for each in zip(files, literals, strict=True))
    drafts = [draft_shard(file, Cursor(reader)) for file, reader in zip(files, readers, strict=True)]
    return index_shards(drafts, number)
