"""Inner loops that move rows: those of one table, or of many small tables in one call.

As in `bulk.py`, the numpy code is the reference, and the compiled kernel does the same. A part is the rows of one small
table in one shard; parts are int64 [n, 7], and `Part` names the columns. Values and ids of all parts lie in one buffer
each, so that a checkpoint of thousands of tables costs a few calls and not a few for each table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk


class Part(IntEnum):
    """The columns of an array of parts; without values the last three do not count."""

    IDS = 0
    """Where its ids begin in the buffer of ids."""
    ID_BYTES = 1
    ROWS = 2
    TABLE = 3
    """The number of its table: a row of the arrays that have one for each table."""
    VALUES = 4
    """Where its rows begin in the buffer of values."""
    ROW_BYTES = 5
    SUMS = 6
    """Where the sketch of its table begins among those of all tables."""


PART_NUMBERS: Final = len(Part)


@functools.lru_cache(1024)  # it is asked for each table in each shard
def sketch_size(row_bytes: int) -> int:
    """Return how many numbers the sketch of a table has: those of `bulk.new_sketch`."""
    return bulk.LIMBS * (-(-min(row_bytes, bulk.CHUNK_BYTES) // 2) + 1)


def sketches(sums: bulk.U32, parts: bulk.I64) -> Iterator[bulk.U32]:
    """Yield the sketch of each part's table, uint32 [8, columns], as a view of the sums of all tables."""
    for at, row_bytes in parts[:, [Part.SUMS, Part.ROW_BYTES]].tolist():
        yield sums[at : at + sketch_size(row_bytes)].reshape(bulk.LIMBS, -1)


def move_rows(sums: bulk.U32, ids: bulk.I64, owner: bulk.U16, values: bulk.U8, places: bulk.I64, out: bulk.U8) -> None:
    """Add rows uint8 [n, row_bytes] to a sketch, and copy each to the place of its owner in `out`, uint8 [bytes].

    `places` are int64 [ps_num], and move on. Raises ValueError for an owner beyond their end, for arrays of different
    lengths, and for a row that would leave `out`.
    """
    row_bytes = values.shape[1]
    if bulk.kernel is not None:
        bulk.kernel.move_rows(sums, ids, owner, values, row_bytes, places, out)
        return
    bulk.sketch_rows(sums, ids, values)
    rows, _ = bulk.tally(owner, np.ones(len(owner), np.uint8), len(places))
    grouped = np.empty_like(values)
    bulk.group_rows(values, owner, rows, grouped)
    _copy_groups(grouped.reshape(-1), rows * row_bytes, places, out)


class FailedCall(NamedTuple):
    """A read or a write that the system refused."""

    target: int
    """The number of the target that was written, -1 for the source that was read."""
    error: int
    """The number of the system's error, -1 where the source ends too early."""


def can_move_file_rows() -> bool:
    """Say whether the kernel can read and write rows of files; else a caller does so between the other calls."""
    return bulk.kernel is not None


def move_file_rows(
    sums: bulk.U32,
    ids: bulk.I64,
    owner: bulk.U16,
    source: tuple[int, int, int],
    targets: bulk.I32,
    values_at: bulk.I64,
    buffers: tuple[bulk.U8, bulk.U8],
) -> FailedCall | None:
    """Read the rows of these ids, add them to a sketch, and write each behind those of its owner.

    Return None when all is done. `source` is (descriptor, offset of the first row, bytes of a row). `targets` are
    descriptors, int32 [ps_num], and `values_at` is where each is written next, int64 [ps_num], which moves on. The
    first buffer, uint8 [bytes], is filled and looked at again and again, so it should fit into the cache of a core. As
    many rows are gathered before they are written as the second has room for. It needs the kernel: no thread waits
    for Python. Raises ValueError as `move_rows`.
    """
    assert bulk.kernel is not None  # noqa: S101 - the caller asked `can_move_file_rows`
    descriptor, offset, row_bytes = source
    look, gathered = buffers
    step = max(1, len(gathered) // max(row_bytes, 1))
    failed = bulk.kernel.move_file_rows(
        sums, ids, owner, descriptor, offset, row_bytes, step, targets, values_at, look, gathered
    )
    return None if failed is None else FailedCall(*failed)


def sketch_file_rows(sums: bulk.U32, ids: bulk.I64, source: tuple[int, int], look_bytes: int, rows: bulk.U8) -> int:
    """Read rows uint8 [n, row_bytes] from a file and add them to a sketch; return 0, or as `FailedCall.error`.

    `source` is (descriptor, offset of the first row). About `look_bytes` are read at a time, and looked at while they
    are in the cache. It needs the kernel, which `can_move_file_rows` tells. Raises ValueError as `move_rows`.
    """
    assert bulk.kernel is not None  # noqa: S101 - the caller asked `can_move_file_rows`
    width = rows.shape[1]
    return bulk.kernel.sketch_file_rows(sums, ids, *source, width, max(look_bytes // max(width, 1), 1), rows)


def _copy_groups(data: bulk.U8, sizes: bulk.I64, places: bulk.I64, out: bulk.U8) -> None:
    """Copy consecutive stretches of `data`, one for each target, to their places, which move on."""
    start = 0
    for target in np.flatnonzero(sizes).tolist():
        place, size = int(places[target]), int(sizes[target])
        if not 0 <= place <= len(out) - size:
            raise ValueError(f"move_rows: a row has its place outside of the {counted(len(out), 'byte')} of out")
        out[place : place + size] = data[start : start + size]
        places[target] += size
        start += size


def sketch_parts(sums: bulk.U32, data: bulk.U8, parts: bulk.I64, ps_num: int = 1, ps_id: int = 0) -> int:
    """Add the rows of parts, whose ids and values lie in `data`, to the sketches of their tables.

    Return -1, or the number of the first part whose bytes are not as many ids as it has rows, or that has an id for
    which `id % ps_num` is not `ps_id`. Raises ValueError for a part that is not inside of the data or the sketches.
    """
    if bulk.kernel is not None:
        return bulk.kernel.sketch_parts(sums, data, parts, ps_num, ps_id)
    _check_inside("sketch_parts", "the data or the sketch", parts, data, data, sums)
    for number, (part, own) in enumerate(zip(parts.tolist(), sketches(sums, parts), strict=True)):
        found = _ids_of(data, part)
        if found is None or not bulk.have_owner(found[0], ps_num, ps_id):
            return number
        bulk.sketch_rows(own, found[0], _rows_of(data, part))
    return -1


def tally_parts(data: bulk.U8, parts: bulk.I64, ps_num: int, rows: bulk.I64, id_bytes: bulk.I64, ids: bulk.I64) -> int:
    """Decode the ids of parts into `ids`, int64 [all rows], and add those of each owner to those of their tables.

    `rows` and `id_bytes` are int64 [tables, ps_num]. Returns and raises as `sketch_parts`.
    """
    if bulk.kernel is not None:
        return bulk.kernel.tally_parts(data, parts, ps_num, rows, id_bytes, ids)
    _check_inside("tally_parts", "the data or the tables", parts, data, None, None, tables=len(rows))
    at = 0
    for number, part in enumerate(parts.tolist()):
        found = _ids_of(data, part)
        if found is None:
            return number
        ids[at : at + part[Part.ROWS]] = found[0]
        at += part[Part.ROWS]
        some, size = bulk.tally(bulk.owners(found[0], ps_num), found[1], ps_num)
        rows[part[Part.TABLE]] += some
        id_bytes[part[Part.TABLE]] += size
    return -1


def move_parts(
    sums: bulk.U32,
    data: bulk.U8,
    values: bulk.U8,
    parts: bulk.I64,
    values_at: bulk.I64,
    ids_at: bulk.I64,
    out: bulk.U8,
) -> int:
    """Copy the rows and the ids of parts to the places of their owners in `out`, and add the rows to the sketches.

    `values_at` and `ids_at` are int64 [tables, ps_num], and move on. Returns and raises as `sketch_parts`; a part that
    would leave `out` is returned too.
    """
    if bulk.kernel is not None:
        return bulk.kernel.move_parts(sums, data, values, parts, values_at.shape[1], values_at, ids_at, out)
    _check_inside("move_parts", "the data, the tables or the sketch", parts, data, values, sums, tables=len(values_at))
    ps_num = values_at.shape[1]
    for number, (part, own) in enumerate(zip(parts.tolist(), sketches(sums, parts), strict=True)):
        found = _ids_of(data, part)
        if found is None:
            return number
        ids, lengths = found
        owner = bulk.owners(ids, ps_num)
        _, size = bulk.tally(owner, lengths, ps_num)
        varints = data[part[Part.IDS] : part[Part.IDS] + part[Part.ID_BYTES]]
        rows = _rows_of(values, part)
        try:
            _copy_groups(bulk.group_varints(varints, lengths, owner, size), size, ids_at[part[Part.TABLE]], out)
            if part[Part.ROW_BYTES]:
                move_rows(own, ids, owner, rows, values_at[part[Part.TABLE]], out)
            else:
                bulk.sketch_rows(own, ids, rows)
        except ValueError:
            return number
    return -1


def _ids_of(data: bulk.U8, part: list[int]) -> tuple[bulk.I64, bulk.U8] | None:
    """Return (ids, lengths) of a part, None unless they are as many as its rows."""
    try:
        found = bulk.decode_varints(data[part[Part.IDS] : part[Part.IDS] + part[Part.ID_BYTES]])
    except bulk.VarintError:
        return None
    return found if len(found[0]) == part[Part.ROWS] else None


def _rows_of(values: bulk.U8, part: list[int]) -> bulk.U8:
    start, rows, row_bytes = part[Part.VALUES], part[Part.ROWS], part[Part.ROW_BYTES]
    return values[start : start + rows * row_bytes].reshape(rows, row_bytes)


def _check_inside(
    function: str,
    of: str,
    parts: bulk.I64,
    data: bulk.U8,
    values: bulk.U8 | None,
    sums: bulk.U32 | None,
    *,
    tables: int = 1 << 31,
) -> None:
    """Raise ValueError for the first part with a number that cannot be."""
    for number, part in enumerate(parts.tolist()):
        ids, id_bytes, rows, table, start, row_bytes, at = part
        possible = 0 <= ids <= ids + id_bytes <= len(data) and 0 <= rows <= id_bytes and 0 <= table < tables
        if values is not None and sums is not None:
            possible = possible and 0 <= row_bytes < 1 << 31 and 0 <= start <= start + rows * row_bytes <= len(values)
            possible = possible and 0 <= at <= at + sketch_size(row_bytes) <= len(sums)
        if not possible:
            raise ValueError(f"{function}: part {number} is not inside of {of}")
