"""The places of a table's rows: buckets, which are ranks, or parts of one where a system keeps rows in groups.

The rows of a bucket have the order of the source, so a table and its companions keep one order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edl_ckpt.core.converting.changes import OutTable
from edl_ckpt.core.kernel import bulk

Owners = Callable[[bulk.I64], bulk.U16]
"""Returns the bucket of each id: int64 [n] -> uint16 [n]. It can be pickled."""


class Spread(NamedTuple):
    """How the rows of a table are spread."""

    buckets: int
    owners: Owners | None
    """None where all rows go to one bucket."""

    def owners_of(self, ids: bulk.I64) -> bulk.U16:
        """Return the bucket of each id: uint16 [n]."""
        return np.zeros(len(ids), np.uint16) if self.owners is None else self.owners(ids)


@dataclass(frozen=True, slots=True, eq=False)
class CountedRows:
    """The rows of a table that go out: how many go to each bucket, and the bytes of their ids there."""

    table: OutTable
    of_bucket: bulk.I64
    """int64 [buckets]"""
    id_bytes: bulk.I64
    """int64 [buckets]"""
    low: int
    high: int
    """The lowest and the highest id; 0 and -1 without any."""

    @property
    def total(self) -> int:
        """Return the number of rows that go out."""
        return int(self.of_bucket.sum())


class RowPlaces(NamedTuple):
    """Where the rows and the ids of a table begin in each bucket: numbers of files and offsets, int64 [buckets].

    Without `ids` nothing is written for them, since another table writes the same.
    """

    rows: tuple[bulk.I64, bulk.I64]
    ids: tuple[bulk.I64, bulk.I64] | None


class Cut(NamedTuple):
    """Bytes [start, end) of a tensor, and where they go."""

    start: int
    end: int
    file: int
    offset: int
