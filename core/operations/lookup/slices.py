"""Slices of variables and tables by their places; of the values only the slice is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, IncompleteError
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.shapes import check_dimensions
from edl_ckpt.core.model.tables import ShardIndex, TableEntry
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.lookup.rows import Lookup, lookup_of, open_table
from edl_ckpt.core.reading.aliases import own_name
from edl_ckpt.core.reading.blocks import as_dtype, id_blocks
from edl_ckpt.core.reading.loss import open_rest
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.slices import Axis, Index, choose, memory_bytes, parse_index, read_chosen, result_shape
from edl_ckpt.core.sources.elasticdl.placement import variable_owner


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
        found = lookup_of(checkpoint, name, np.concatenate(ids)[turn], vectors)
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
