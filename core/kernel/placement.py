"""The shards that ids belong to, by the rule of a layout."""

from __future__ import annotations

import numpy as np

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.layouts import Placement


def mod_owners(ids: bulk.I64, count: int) -> bulk.I64 | bulk.U16:
    """Return each id modulo a number of shards, never negative; uint16 where the number allows it."""
    return bulk.owners(ids, count) if count <= bulk.MAX_OWNERS else np.mod(ids, count)


def owners(rule: Placement, ids: bulk.I64, count: int) -> bulk.I64 | bulk.U16 | None:
    """Return the number of the shard of each id, int64 [n], among `count`; None for a rule that does not say it.

    >>> [owners(rule, np.array([-1, 7]), 5).tolist() for rule in (Placement.MOD, Placement.UNSIGNED_MOD)]
    [[4, 2], [0, 2]]
    """
    if rule is Placement.MOD:
        return mod_owners(ids, count)
    return (ids.view(np.uint64) % np.uint64(count)).astype(np.int64) if rule is Placement.UNSIGNED_MOD else None


def misplaced(rule: Placement, ids: bulk.I64, count: int, shard: int) -> bulk.I64:
    """Return which of the ids in a shard belong to another one: their numbers, int64 [n]."""
    if rule is Placement.MOD and count <= bulk.MAX_OWNERS and bulk.have_owner(ids, count, shard):
        return np.empty(0, np.int64)
    owner = owners(rule, ids, count)
    return np.empty(0, np.int64) if owner is None else np.flatnonzero(owner != shard)
