"""Single rows and variables: only the shards that can have them are opened, and only the requested rows are read.

The first rows of a table, its ids, and a sample of them show what is there without an export.

A row with id i lies in shard `i % ps_num`, so a lookup reads only the headers of that shard, its ids and the row.
Rows that lie less than a page apart are read at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Ids, as_ids
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, UnsupportedError, UsageError
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.words import abridged, counted, describe, escaped
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.kernel.placement import owners
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.shapes import check_dimensions
from edl_ckpt.core.model.tables import ShardIndex, TableEntry
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading.aliases import own_name
from edl_ckpt.core.reading.blocks import as_dtype, id_blocks
from edl_ckpt.core.reading.loss import NOTHING, Loss, open_rest
from edl_ckpt.core.reading.names import called_names
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.sampling import sample_table
from edl_ckpt.core.reading.slices import Axis, Index, choose, memory_bytes, parse_index, read_chosen, result_shape
from edl_ckpt.core.reading.table import find_rows
from edl_ckpt.core.sources.elasticdl.placement import variable_owner

_QUERIES_AT_ONCE: Final = 256
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


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rows most similar to the row of `id`, the most similar first: (id, cosine)."""

    id: int
    nearest: tuple[tuple[int, float], ...]


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
        found = _looked_up(checkpoint, table, wanted[there], vectors[there])
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
def _open_with(version: Version, name: str) -> Iterator[tuple[Checkpoint, str]]:
    """Open the shard that a dense variable belongs to, else all shards; yield them with its own name there.

    Raises NameNotFoundError for a name that is neither that of a variable nor an alias, and the error of a shard that
    may have it and cannot be read.
    """
    ps_num = version.ps_num or 0
    is_known = version.layout.placement is Placement.MOD and ps_num
    present = {shard.ps_id for shard in version.shards}
    owner = {variable_owner(name, ps_num)} & present if is_known else None
    for chosen in (owner, None) if owner else (None,):
        with ExitStack() as stack:
            try:
                checkpoint, loss = stack.enter_context(open_rest(version, owners=chosen))
            except (CorruptError, IncompleteError):
                if chosen is None:
                    raise
                continue  # the name may be a short one, which another shard knows
            own = own_name(checkpoint, name)
            if chosen is None:
                with loss.explains():
                    own = checkpoint.variable_name(own)
            if checkpoint.has_entry(own):
                yield checkpoint, own
                return


def slice_variable(version: VersionLike, name: str, index: Index | str = ...) -> tuple[npt.NDArray[np.generic], DType]:
    """Return a slice of a dense variable, by default all of it, and its dtype; only the slice is read.

    It comes from the shard that the name belongs to, else from any other shard. The name may also be another one that
    led to the object when it was saved (`ObjectCheckpoint`). `index` is what `np.s_[0:10, 3]`
    returns, or that as a text. bfloat16, which numpy lacks, becomes float32 with the same values. Raises NotFoundError
    for an unknown name, UsageError for an index that the shape does not allow.
    """
    wanted = parse_index(index) if isinstance(index, str) else index
    with _open_with(as_version(version), name) as (checkpoint, own):
        shard, entry = checkpoint.find_array(own)
        check_dimensions(entry.name, entry.shape, shard.file.path)
        axes = choose(wanted, entry.shape)
        shape = result_shape(axes)
        check_memory(memory_bytes(axes, entry.dtype.itemsize), f"variable {name!r}", checkpoint.version.ref)
        data = read_chosen(checkpoint.reader(shard, entry.values), entry.values.start, entry.dtype.itemsize, axes)
        checkpoint.check_unchanged()
        return as_dtype(data, entry.dtype).reshape(shape), entry.dtype


def slice_table(version: VersionLike, table: str, index: Index | str) -> Lookup:
    """Return rows of a table by their places: shard after shard, as each has them.

    `index` is that of `slice_variable`, for an array [rows, dim]; the result keeps both axes. Of the values only the
    slice is read; ids have different lengths, so those before the last row are read too. Errors as `slice_variable`.
    """
    wanted = parse_index(index) if isinstance(index, str) else index
    with open_table(version, table) as (checkpoint, name, _):
        entries = checkpoint.entries(name)
        whole = checkpoint.table(name)
        rows, columns = choose(wanted, (whole.rows, whole.dim))
        dtype = checkpoint.written_dtype(name)
        size = 2 * memory_bytes((rows, columns), dtype.itemsize) + 8 * len(rows.chosen)
        check_memory(size, f"table {name!r}", checkpoint.version.ref)
        ordered, first = (rows.chosen if rows.chosen.step > 0 else rows.chosen[::-1]), 0
        ids, values = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
        for shard, entry in entries:
            own = _within(ordered, first, entry.rows)
            first += entry.rows
            if own and entry.dim != whole.dim:
                raise CorruptError(f"table {name!r} has rows of {entry.dim} and of {whole.dim}", path=shard.file.path)
            if own:
                reader = checkpoint.reader(shard, entry.values)
                ids.append(_ids_at(checkpoint, shard, entry, own))
                values.append(read_chosen(reader, entry.values.start, dtype.itemsize, (Axis(own, entry.rows), columns)))
        turn = slice(None, None, 1 if rows.chosen.step > 0 else -1)
        vectors = as_dtype(np.concatenate(values), dtype).reshape(len(rows.chosen), len(columns.chosen))[turn]
        found = _looked_up(checkpoint, name, np.concatenate(ids)[turn], vectors)
        return replace(found, vectors=vectors, columns=columns.chosen)


def _within(chosen: range, first: int, count: int) -> range:
    """Return the numbers in [first, first + count), counted from `first`, of an ascending range.

    >>> _within(range(1, 100, 10), 15, 20)
    range(6, 26, 10)
    """
    low, high = (min(max(-((chosen.start - at) // chosen.step), 0), len(chosen)) for at in (first, first + count))
    own = chosen[low:high]
    return range(own.start - first, own.start - first + len(own) * own.step, own.step)


def _ids_at(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, rows: range) -> I64:
    """Return the ids of some rows of a shard, int64 [n], at ascending places; blocks behind the last are not read."""
    found: list[I64] = []
    for first, ids in id_blocks(checkpoint, shard, entry):
        own = _within(rows, first, len(ids))
        found.append(ids[own.start : own.stop : own.step] if own else ids[:0])
        if first + len(ids) > rows[-1]:
            break
    return np.concatenate(found)


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
        return replace(_looked_up(checkpoint, name, np.concatenate(ids), np.concatenate(vectors)), loss=loss)


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
        return _looked_up(checkpoint, name, sample.ids, sample.vectors)


def _looked_up(checkpoint: Checkpoint, table: str, ids: I64, vectors: npt.NDArray[np.generic]) -> Lookup:
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
