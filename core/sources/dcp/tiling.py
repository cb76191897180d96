"""Whether boxes tile a shape: each element of a tensor must be in exactly one of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.dcp.metadata import SavedBox

_MOST_SPLIT: Final = 8
"""In so many dimensions a tensor may be split."""


def untiled(shape: Sequence[int], pieces: Sequence[SavedBox]) -> str:
    """Return why some boxes do not tile a shape exactly; '' when they do.

    Count each corner of each box, with a sign that alternates from corner to corner: the sums over all boxes are those
    of the shape alone if and only if each element is in one box.

    >>> untiled([4], [SavedBox((0,), (3,)), SavedBox((3,), (1,))])
    ''
    >>> untiled([4], [SavedBox((0,), (3,)), SavedBox((2,), (2,))])
    'its 2 boxes overlap, or leave a gap'
    """
    split = [axis for axis, size in enumerate(shape) if not all(_spans(piece, axis, size) for piece in pieces)]
    if len(split) > _MOST_SPLIT:
        raise UnsupportedError(f"it is split in {len(split)} dimensions")
    corners: Counter[tuple[int, ...]] = Counter()
    for sign, boxes in ((1, pieces), (-1, [SavedBox((0,) * len(shape), tuple(shape))])):
        for box in boxes:
            edges = [((box.offsets[axis], 1), (box.offsets[axis] + box.sizes[axis], -1)) for axis in split]
            for corner in product(*edges):
                place = tuple(edge for edge, _ in corner)
                corners[place] += sign * math.prod(edge_sign for _, edge_sign in corner)
    return f"its {len(pieces)} boxes overlap, or leave a gap" if any(corners.values()) else ""


def _spans(piece: SavedBox, axis: int, size: int) -> bool:
    """Return True for a box that has all of a dimension of this size."""
    return piece.offsets[axis] == 0 and piece.sizes[axis] == size
