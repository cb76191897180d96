"""Samples of the elements of a variable, chosen by a seed: stretches at the same places of every version.

Elements are chosen by their places, which costs no look at ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.reading.blocks import read_elements, read_vectors
from edl_ckpt.core.reading.reader import Checkpoint, openings

_STRETCHES: Final = 16


def stretches(total: int, most: int, *, seed: int, name: str) -> list[range]:
    """Return places in [0, total): all of them when they are at most `most`, else some stretches of about as many.

    There is one stretch in each equal part of the whole, at a place that the seed and the name choose.

    >>> stretches(3, 10, seed=0, name="w")
    [range(0, 3)]
    """
    if total <= most:
        return [range(total)] if total else []
    number = min(_STRETCHES, most)
    length, part = most // number, total // number
    digest = hashlib.blake2b(name_bytes(f"{seed} {name}"), digest_size=8).digest()
    chance = np.random.default_rng(int.from_bytes(digest, "little")).random(number)
    starts = [int(part * k + chance[k] * (part - length + 1)) for k in range(number)]
    return [range(start, start + length) for start in starts]


def sample_variable(
    checkpoint: Checkpoint, name: str, most_bytes: int, *, seed: int
) -> Iterator[npt.NDArray[np.generic]]:
    """Yield elements of a variable: all when they are at most `most_bytes`, else some stretches of them.

    Of variables with one shape and one dtype they are those of the same places.
    """
    shard, entry = checkpoint.find_variable(name)
    for places in stretches(entry.elements, most_bytes // entry.dtype.itemsize, seed=seed, name=name):
        yield read_elements(checkpoint, shard, entry, places.start, len(places))


def sample_values(
    checkpoint: Checkpoint, table: str, most_bytes: int, *, seed: int
) -> Iterator[npt.NDArray[np.generic]]:
    """Yield vectors of a table [n, dim]: all when they are at most `most_bytes`, else stretches of rows as they lie.

    No id is read, so these rows are those of this version only.
    """
    entries = [(shard, entry) for shard, entry in checkpoint.entries(table) if entry.rows and entry.row_bytes]
    starts = np.cumsum([0, *(entry.rows for _, entry in entries)])
    row_bytes = max((entry.row_bytes for _, entry in entries), default=1)
    chosen = stretches(int(starts[-1]), max(most_bytes // row_bytes, 1), seed=seed, name=table)

    def read(piece: tuple[int, int, int]) -> npt.NDArray[np.generic]:
        number, first, end = piece
        return read_vectors(checkpoint, *entries[number], first, end - first)

    pieces = [
        (number, max(places.start, first) - first, min(places.stop, end) - first)
        for places in chosen
        for number, (first, end) in enumerate(pairwise(starts.tolist()))
        if places.start < end and places.stop > first
    ]
    yield from run_parallel(read, pieces, openings(checkpoint.store))
