"""Rules that say the shard of an id give what Python's own whole numbers give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.kernel.placement import misplaced, owners
from edl_ckpt.core.model.layouts import Placement

_BITS = (1 << 64) - 1


def fmix64(id_: int) -> int:
    """Return the finalizer of MurmurHash3, as its source has it."""
    k = id_ & _BITS
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & _BITS
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & _BITS
    return k ^ k >> 33


RULES: dict[Placement, Callable[[int], int]] = {
    Placement.MOD: lambda id_: id_,
    Placement.UNSIGNED_MOD: lambda id_: id_ & _BITS,
    Placement.FMIX64_MOD: fmix64,
    Placement.MASK31_MOD: lambda id_: id_ & 0x7FFFFFFF,
    Placement.MOD_1000_MOD: lambda id_: id_ % 1000,
}


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.integers(1, 70_000),
)
def test_each_rule(rule: Placement, ids: list[int], count: int) -> None:
    """Each id has the shard of its rule, and those in other shards are misplaced."""
    expected = [RULES[rule](id_) % count for id_ in ids]
    array = np.array(ids, np.int64)
    found = owners(rule, array, count)
    assert found is not None
    assert found.tolist() == expected
    assert misplaced(rule, array, count, expected[0]).tolist() == [
        k for k, e in enumerate(expected) if e != expected[0]
    ]


@pytest.mark.parametrize("rule", sorted(set(Placement) - RULES.keys()))
def test_rules_that_need_more_than_the_id(rule: Placement) -> None:
    """By these no row is misplaced, for an id alone does not say its shard."""
    ids = np.arange(5)
    assert not rule.says_shard
    assert owners(rule, ids, 3) is None
    assert not len(misplaced(rule, ids, 3, 0))
