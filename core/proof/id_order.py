"""The order of ids: what a piece of them shows by itself, and two pieces one after the other.

Ids that ascend are unique. So the order of a table says whether its ids must be searched for repetitions at all, and
how close together they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.versions import ShardFile


@dataclass(frozen=True, slots=True)
class IdOrder:
    """What a piece of ids shows by itself: where it begins, ends and lies, whether it ascends and is in its shard."""

    rows: int
    first: int
    last: int
    lowest: int
    highest: int
    ascending: bool
    placed: bool

    def followed_by(self, other: IdOrder) -> IdOrder:
        """Return the order of both pieces, one after the other."""
        if not self.rows or not other.rows:
            return other if other.rows else self
        return IdOrder(
            self.rows + other.rows,
            self.first,
            other.last,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.ascending and other.ascending and self.last < other.first,
            self.placed and other.placed,
        )


NO_IDS: Final = IdOrder(0, 0, 0, 0, 0, ascending=True, placed=True)


def order_of(ids: bulk.I64, shard: ShardFile | None = None) -> IdOrder:
    """Return the order of the ids of a piece, in a shard if they are in one."""
    if not len(ids):
        return NO_IDS
    ascending = bool((ids[1:] > ids[:-1]).all())
    placed = shard is None or shard.ps_num == 1 or bulk.have_owner(ids, shard.ps_num, shard.ps_id)
    first, last = int(ids[0]), int(ids[-1])
    lowest, highest = (first, last) if ascending else (int(ids.min()), int(ids.max()))
    return IdOrder(len(ids), first, last, lowest, highest, ascending, placed)
