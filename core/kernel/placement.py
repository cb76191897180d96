"""The shards that ids belong to, by the rule of a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.layouts import Placement


def mod_owners(ids: bulk.I64, count: int) -> bulk.I64 | bulk.U16:
    """Return each id modulo a number of shards, never negative; uint16 where the number allows it."""
    return bulk.owners(ids, count) if count <= bulk.MAX_OWNERS else np.mod(ids, count)


def fmix64(ids: bulk.I64) -> bulk.U64:
    """Return the finalizer of MurmurHash3 for each id as an uint64.

    >>> fmix64(np.array([0, 1])).tolist()
    [0, 12994781566227106604]
    """
    mixed: bulk.U64 = ids.view(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(33))


_HASHES: Final[Mapping[Placement, Callable[[bulk.I64], bulk.I64 | bulk.U64]]] = {
    Placement.UNSIGNED_MOD: lambda ids: ids.view(np.uint64),
    Placement.FMIX64_MOD: fmix64,
    Placement.MASK31_MOD: lambda ids: ids & 0x7FFFFFFF,
    Placement.MOD_1000_MOD: lambda ids: np.mod(ids, 1000),
}
"""What a rule takes modulo the number of shards, where that is not the id."""


def owners(rule: Placement, ids: bulk.I64, count: int) -> bulk.I64 | bulk.U16 | None:
    """Return the number of the shard of each id, int64 [n], among `count`; None for a rule that does not say it.

    >>> [owners(rule, np.array([-1, 7]), 5).tolist() for rule in (Placement.MOD, Placement.UNSIGNED_MOD)]
    [[4, 2], [0, 2]]
    """
    if rule is Placement.MOD:
        return mod_owners(ids, count)
    if not rule.says_shard:
        return None
    hashes = _HASHES[rule](ids)
    return (hashes % hashes.dtype.type(count)).astype(np.int64)


def misplaced(rule: Placement, ids: bulk.I64, count: int, shard: int) -> bulk.I64:
    """Return which of the ids in a shard belong to another one: their numbers, int64 [n]."""
    if rule is Placement.MOD and count <= bulk.MAX_OWNERS and bulk.have_owner(ids, count, shard):
        return np.empty(0, np.int64)
    owner = owners(rule, ids, count)
    return np.empty(0, np.int64) if owner is None else np.flatnonzero(owner != shard)
