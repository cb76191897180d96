"""Which rows of a part count, where several have the same id: the last ones, as in ElasticDL's restore."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.kernel import bulk

UNIQUE_AT_ONCE: Final = 1 << 20
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
    bits = (max(-(-len(ids) // UNIQUE_AT_ONCE), 1) - 1).bit_length()
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


def repeated_ids(ids: bulk.I64) -> bulk.I64:
    """Return the ids that occur again, ascending, once for each time; `ids` is sorted in place.

    >>> import numpy as np
    >>> repeated_ids(np.array([7, 1, 7, 7])).tolist()
    [7, 7]
    """
    bulk.sort_ids(ids)
    again: bulk.I64 = ids[1:][ids[1:] == ids[:-1]]
    return again


def duplicate_id(table: str, first: int, count: int, *, path: str | None, hint: str | None = None) -> CorruptError:
    """Return the error for ids that several rows of a table have: ElasticDL restores only one row per id.

    `count` rows repeat an id of another row; `first` is the lowest such id.
    """
    more = f" (and {count - 1} more)" if count > 1 else ""
    return CorruptError(
        f"table {table!r}: id {first} occurs twice{more}", code="duplicate-id", path=path or None, hint=hint
    )
