"""Samples of the rows of a table, chosen by a seed: the same rows of every version that has them, and bounded reads.

Rows are chosen by a hash of their ids, so two versions give nearly the same sample, wherever each of them keeps a row.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.kernel.placement import owners
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import ShardIndex, TableEntry
from edl_ckpt.core.reading.blocks import as_dtype, id_blocks, read_runs
from edl_ckpt.core.reading.reader import Checkpoint, openings
from edl_ckpt.core.reading.table import no_vectors

U64 = npt.NDArray[np.uint64]
_GOLDEN, _MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The constants of splitmix64."""
_Entry = tuple[ShardIndex, TableEntry]
_FOUND: Final = np.dtype([("id", np.int64), ("hash", np.uint64), ("entry", np.int64), ("row", np.int64)])


def hash_ids(ids: I64, seed: int) -> U64:
    """Return uint64 [n]: what splitmix64 returns at the `seed`-th step (from 0) from each id as its state.

    >>> hex(hash_ids(np.array([0]), 0)[0])
    '0xe220a8397b1dcdaf'
    """
    mixed = ids.astype(np.uint64) + np.uint64((seed + 1) * _GOLDEN % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX[0])
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX[1])
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True, eq=False)
class RowSample:
    """The rows of a table whose ids have the least hashes: int64 [n] ids, ascending, and their vectors [n, dim].

    Only ids that belong to the first `looked` of `ps_num` shards were looked at, and of those all whose hash is at most
    `reach`; so what is in one sample and not in another is known to be absent there, within the reach of both.
    """

    ids: I64
    hashes: U64
    vectors: npt.NDArray[np.generic]
    ps_num: int
    looked: int
    reach: int
    placement: Placement = Placement.MOD

    def within(self, other: RowSample) -> npt.NDArray[np.bool_]:
        """Return, for each row, whether another sample must have it if its version has it."""
        owner = owners(other.placement, self.ids, other.ps_num)
        is_looked_at = other.looked == other.ps_num if owner is None else owner < other.looked
        mine: npt.NDArray[np.bool_] = (self.hashes <= np.uint64(other.reach)) & is_looked_at
        return mine


def sample_table(
    checkpoint: Checkpoint, table: str, count: int, *, seed: int, id_bytes: int = sys.maxsize, most_bytes: int = 1 << 20
) -> RowSample | None:
    """Return at most `count` rows of a table, the same of every version as far as it has their ids.

    Of wide rows there are as many as `most_bytes`, but one at least. At most `id_bytes` of ids are read, shard by shard
    from the first; None when those of one shard are more. Raises the errors of reading.
    """
    entries = checkpoint.entries(table)
    ps_num = checkpoint.version.ps_num or 1
    sizes = dict.fromkeys(range(ps_num), 0)
    for shard, entry in entries:
        sizes[shard.file.ps_id] += sum(run.end - run.start for run in entry.ids)
    looked = int(np.searchsorted(np.cumsum([sizes[ps_id] for ps_id in range(ps_num)]), id_bytes, "right"))
    if not looked:
        return None
    row_bytes = max((entry.row_bytes for _, entry in entries), default=0)
    some = [(shard, entry) for shard, entry in entries if shard.file.ps_id < looked]
    chosen, reach = _choose(checkpoint, some, min(count, max(most_bytes // max(row_bytes, 1), 1)), seed)
    stored = np.sort(chosen, order=["entry", "row"])[::-1]
    found = stored[np.unique(stored["id"], return_index=True)[1]]  # a damaged table may have an id twice: the last row
    vectors = _vectors(checkpoint, table, some, found)
    return RowSample(found["id"], found["hash"], vectors, ps_num, looked, reach, checkpoint.placement(table))


def _choose(
    checkpoint: Checkpoint, entries: Sequence[_Entry], count: int, seed: int
) -> tuple[npt.NDArray[np.void], int]:
    """Return the rows with the least hashes of ids, and the hash up to which all are there."""
    found, reach = np.empty(0, _FOUND), (1 << 64) - 1
    for number, (shard, entry) in enumerate(entries):
        for first, ids in id_blocks(checkpoint, shard, entry):
            hashes = hash_ids(ids, seed)
            near = np.flatnonzero(hashes <= np.uint64(reach))
            more = np.empty(len(near), _FOUND)
            more["id"], more["hash"], more["entry"], more["row"] = ids[near], hashes[near], number, near + first
            found = np.concatenate([found, more])
            if len(found) > count:
                found = found[np.argpartition(found["hash"], count - 1)[:count]]
                reach = int(found["hash"].max())
    return found, reach


def _vectors(
    checkpoint: Checkpoint, table: str, entries: Sequence[_Entry], found: npt.NDArray[np.void]
) -> npt.NDArray[np.generic]:
    """Return the vectors of chosen rows [n, dim]."""
    vectors = no_vectors(checkpoint, table, len(found))
    workers = openings(checkpoint.store)
    for number, (shard, entry) in enumerate(entries):
        mine = np.flatnonzero(found["entry"] == number)
        if len(mine) and entry.row_bytes:
            starts = entry.values.start + found["row"][mine] * entry.row_bytes
            data = read_runs(checkpoint.reader(shard, entry.values), starts, entry.row_bytes, workers=workers)
            vectors[mine] = as_dtype(data.reshape(-1), entry.dtype).reshape(len(mine), entry.dim)
    return vectors
