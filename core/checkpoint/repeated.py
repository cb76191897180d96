"""Which rows of a part count, where several have the same id: the last ones, as in ElasticDL's restore."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.format import bulk

_UNIQUE_AT_ONCE: Final = 1 << 20
"""Ids that are sorted at a time to find those that occur twice: 8 MiB, and as much again to collect them."""
_BLOCK_IDS: Final = 1 << 16


def last_of_each(ids: bulk.I64) -> npt.NDArray[np.bool_] | None:
    """Return which rows are the last ones of their ids, bool [n]; None when no id of int64 [n] occurs twice.

    >>> last_of_each(np.array([7, 8, 7])).tolist(), last_of_each(np.array([7, 8]))
    ([False, True, True], None)
    """
    if not _has_repeated(ids):
        return None
    _, place = np.unique(ids[::-1], return_index=True)
    last = np.zeros(len(ids), np.bool_)
    last[len(ids) - 1 - place] = True
    return last


def _has_repeated(ids: bulk.I64) -> bool:
    """Say whether an id occurs twice; a few million ids are sorted at a time."""
    if bool((ids[1:] > ids[:-1]).all()):
        return False
    bits = (max(-(-len(ids) // _UNIQUE_AT_ONCE), 1) - 1).bit_length()
    for turn in range(1 << bits):
        some = _of_turn(ids, turn, bits) if bits else ids.copy()
        some.sort()
        if bool((some[1:] == some[:-1]).any()):
            return True
    return False


def _of_turn(ids: bulk.I64, turn: int, bits: int) -> bulk.I64:
    """Return the ids with one value of the first bits of their hash, looked at in blocks."""
    found = []
    for start in range(0, len(ids), _BLOCK_IDS):
        some = ids[start : start + _BLOCK_IDS]
        mixed: bulk.U64 = some.view(np.uint64) * np.uint64(bulk.CHUNK_STEP)
        mixed >>= np.uint64(64 - bits)
        found.append(some[np.flatnonzero(mixed == turn)])
    return np.concatenate(found)
