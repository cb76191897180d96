"""Rows of a table by their ids, its first ones, and samples: only the shards that can have them are opened.

The first rows of a table, its ids, and a sample of them show what is there without an export.

A row with id i lies in shard `i % ps_num`, so a lookup reads only the headers of that shard, its ids and the row.
Rows that lie less than a page apart are read at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Ids, as_ids
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.words import abridged, counted, describe, escaped
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.kernel.placement import owners
from edl_ckpt.core.reading.blocks import id_blocks
from edl_ckpt.core.reading.loss import NOTHING, Loss, open_rest
from edl_ckpt.core.reading.names import called_names
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.sampling import sample_table
from edl_ckpt.core.reading.table import find_rows

_BATCH_ROWS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Rows of a table: int64 [n] ids in the requested order, their [n, dim] vectors, and the ids without a row.

    `duplicates` are ids with several rows; the last row is the result, as in a restore by ElasticDL.
    """

    ref: str
    table: str
    dtype: str
    ids: I64
    vectors: npt.NDArray[np.generic]
    missing: tuple[int, ...]
    duplicates: tuple[int, ...]
    bytes_read: int
    columns: range | None = None
    """The elements of each row that a slice chose; None for all."""
    loss: Loss = NOTHING
    """What could not be read; then `unread` are the requested ids that may be there."""
    unread: tuple[int, ...] = ()
    title: str = ""
    """The name of the table as people give it: `user:momentum1` for a companion, whose whole name may be long."""

    def __repr__(self) -> str:
        return describe(
            "Lookup",
            f"{escaped(self.table)} of {escaped(self.ref)}",
            f"{counted(len(self.ids), 'row')} of {self.vectors.shape[1]} {self.dtype}",
            f"{counted(len(self.missing), 'id')} missing" if self.missing else "",
            f"{counted(len(self.duplicates), 'id')} with several rows" if self.duplicates else "",
        )


def look_up(
    version: VersionLike,
    table: str,
    ids: Ids,
    *,
    everywhere: bool = False,
) -> Lookup:
    """Return the rows of some ids. Each id is searched in the shard it belongs to; with `everywhere` in all shards.

    A repeated id has one row in the result. Where some of the needed shards are missing or damaged, the result says so.
    Raises NotFoundError for an unknown table, IncompleteError or CorruptError when no needed shard can be read,
    UnsupportedError for a dtype that numpy lacks, and the errors of reading.

    >>> found = look_up("run@200", "user", [7, 99])
    >>> found.vectors.shape, found.missing
    ((1, 4), (99,))
    """
    version = as_version(version)
    wanted = _unique(ids)
    owner = owners(version.layout.placement, wanted, version.ps_num or 1)
    shards = None if everywhere or owner is None else set(owner.tolist()) or {0}
    with open_rest(version, owners=shards) as (checkpoint, loss):
        with loss.explains():
            table = checkpoint.table_name(table)
        vectors, hits = find_rows(checkpoint, table, wanted, everywhere=everywhere)
        there = hits > 0
        found = lookup_of(checkpoint, table, wanted[there], vectors[there])
        checkpoint.check_unchanged()
        unsure = checkpoint.cut.keys() - checkpoint.kept(table)
        read = [shard.file.ps_id for shard in checkpoint.shards if shard.file.path not in unsure]
    known = there | (not loss if everywhere or owner is None else np.isin(owner, read))
    missing, unread, twice = (tuple(wanted[some].tolist()) for some in (known & ~there, ~known, hits > 1))
    return replace(found, missing=missing, duplicates=twice, loss=loss, unread=unread)


def _unique(ids: Ids) -> I64:
    """Return the ids without repetitions, in the order of their first occurrences."""
    asked = as_ids(ids)
    _, first = np.unique(asked, return_index=True)
    return asked[np.sort(first)]


@contextmanager
def open_table(
    version: VersionLike, table: str | None, *, partial: bool = False
) -> Iterator[tuple[Checkpoint, str, Loss]]:
    """Open a version; yield it with the name of a table, by default the only one that it has, and what is lost.

    That is nothing unless `partial` shards are enough. Raises UsageError when it is not clear which table is meant,
    NotFoundError for an unknown one, LockedError at the end when a shard has changed meanwhile, and what
    `open_checkpoint` raises.
    """
    with open_rest(version, partial=partial) as (checkpoint, loss):
        companions = set(checkpoint.slots.values())
        names = [name for name in checkpoint.table_names if name not in companions]
        if table is None and len(names) != 1:
            hint = f"try: --table NAME; tables there: {abridged(names, 10)}" if names else "the version has no table"
            raise UsageError("which table?", path=checkpoint.version.ref, hint=hint)
        with loss.explains():
            name = names[0] if table is None else checkpoint.table_name(table)
        yield checkpoint, name, loss.of_table(name, checkpoint.kept(name))
        checkpoint.check_unchanged()


def ids_of(checkpoint: Checkpoint, table: str) -> Iterator[I64]:
    """Yield the ids of a table, int64 [n], in the order of shards and rows; no value is read."""
    for shard, entry in checkpoint.entries(table):
        yield from (ids for _, ids in id_blocks(checkpoint, shard, entry))


def first_rows(version: VersionLike, table: str | None = None, count: int = 10) -> Lookup:
    """Return the first `count` rows of a table as they lie in the shards that can be read; errors as `open_table`."""
    left = whole_number("count", count, least=1)
    with open_table(version, table, partial=True) as (checkpoint, name, loss):
        none = np.empty(0, np.int64)
        ids, vectors = [none], [find_rows(checkpoint, name, none).vectors]
        for batch in checkpoint.table(name, batch_rows=min(left, _BATCH_ROWS)):
            ids.append(batch.ids[:left])
            vectors.append(batch.vectors[:left])
            left -= len(ids[-1])
            if not left:
                break
        return replace(lookup_of(checkpoint, name, np.concatenate(ids), np.concatenate(vectors)), loss=loss)


def sample_rows(version: VersionLike, table: str | None = None, count: int = 10, *, seed: int = 0) -> Lookup:
    """Return `count` rows chosen at random, by ascending id; all of a table that has fewer.

    The rows are those of `sample_table`. So the same ids give the same sample, whatever the number of
    shards and the order of rows, and a larger sample contains a smaller one. All ids are read, and the values of the
    chosen rows. Errors as `open_table`.
    """
    count, seed = whole_number("count", count, least=1), whole_number("seed", seed)
    with open_table(version, table) as (checkpoint, name, _):
        sample = sample_table(checkpoint, name, count, seed=seed, most_bytes=sys.maxsize)
        assert sample is not None  # noqa: S101 - all ids are looked at
        return lookup_of(checkpoint, name, sample.ids, sample.vectors)


def lookup_of(checkpoint: Checkpoint, table: str, ids: I64, vectors: npt.NDArray[np.generic]) -> Lookup:
    """Return rows that were read as a result, with nothing missing."""
    dtype = checkpoint.table_dtype(table)
    if dtype is None:  # no row anywhere: only the info of the table says how wide it is
        vectors = np.zeros((0, checkpoint.table(table).dim), vectors.dtype)
    (title,) = called_names([table], checkpoint.slots)
    return Lookup(
        checkpoint.version.ref,
        table,
        dtype.name if dtype else "",
        ids,
        vectors,
        (),
        (),
        checkpoint.bytes_read,
        title=title,
    )
