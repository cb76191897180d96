"""The rows of a table that are most similar to others by cosine, from one pass over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.lookup.rows import Lookup
from edl_ckpt.core.reading.reader import open_checkpoint

_QUERIES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rows most similar to the row of `id`, the most similar first: (id, cosine)."""

    id: int
    nearest: tuple[tuple[int, float], ...]


def find_nearest(
    version: Version,
    lookup: Lookup,
    count: int,
) -> tuple[Neighbours, ...]:
    """Return, for each row of a lookup, the `count` other rows of the table most similar to it by cosine.

    Reads the whole table once, in batches. Rows of zeros, and rows with NaN or infinities, are similar to no row.
    Equal similarities come in the order of ids. Raises UsageError for a `count` below 1, UnsupportedError for more
    than 256 rows at a time.
    """
    if len(lookup.ids) > _QUERIES_AT_ONCE:
        raise UnsupportedError(f"`nearest` takes at most {_QUERIES_AT_ONCE} rows at a time, got {len(lookup.ids)}")
    if count < 1:
        raise UsageError(f"nearest must be at least 1, got {count}")
    queries = _unit(lookup.vectors)
    best = np.full((len(queries), 0), -np.inf)
    names = np.zeros((len(queries), 0), np.int64)
    with open_checkpoint(version) as checkpoint:
        for batch in checkpoint.table(lookup.table, batch_rows=16_384):
            similar = queries @ _unit(batch.vectors).T
            similar[~np.isfinite(similar)] = -np.inf
            similar[lookup.ids[:, None] == batch.ids[None, :]] = -np.inf
            best = np.concatenate([best, similar], axis=1)
            names = np.concatenate([names, np.broadcast_to(batch.ids, similar.shape)], axis=1)
            if best.shape[1] > count:
                kept = np.argpartition(-best, count - 1, axis=1)[:, :count]
                best, names = np.take_along_axis(best, kept, 1), np.take_along_axis(names, kept, 1)
    order = np.lexsort((names, -best), axis=1)
    best, names = np.take_along_axis(best, order, 1), np.take_along_axis(names, order, 1)
    found = []
    for id_, near, similarities in zip(lookup.ids, names, best, strict=True):
        pairs = zip(near.tolist(), similarities.tolist(), strict=True)
        found.append(Neighbours(int(id_), tuple((other, similar) for other, similar in pairs if similar > -np.inf)))
    return tuple(found)


def _unit(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return vectors of length one, or of NaN without a direction; scaled first, since squares can exceed float64."""
    with np.errstate(all="ignore"):
        vectors = rows.astype(np.float64)
        vectors = vectors / np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
        length = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        unit: npt.NDArray[np.float64] = np.where(length > 0, vectors / length, np.nan)
    return unit
