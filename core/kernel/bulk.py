"""Inner loops over many ids or rows at once: varints, owners, grouping by owner, the sketch of the fingerprint.

Every function is written in numpy, which is the reference. Where the compiled kernel (`kernel/`) could be built, it
does the same work about five times faster: the same result byte for byte, and the same errors. No function loops over
ids or rows in Python, and all of them release the GIL while they work, so threads scale. A ValueError names the
argument that does not fit the others, the expected value and the one that came.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.words import counted

if TYPE_CHECKING:
    from edl_ckpt.core.kernel._kernel import Kernel

KERNEL_ABI: Final = 2
"""The functions of the kernel and their arguments; a kernel that was built for another number is not used."""

kernel: Kernel | None = None
"""The compiled kernel, as its stub describes it; tests set it to None to compare numpy with it."""
with suppress(ImportError):  # no compiler at installation: numpy does the same work
    from edl_ckpt.core.kernel import _kernel

    if getattr(_kernel, "ABI", 0) == KERNEL_ABI:  # else it was built in place for other code
        kernel = cast("Kernel", _kernel)

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

MAX_VARINT_BYTES: Final = 10
TOO_LONG: Final = "a varint is longer than 10 bytes"
TOO_WIDE: Final = "a varint has more than 64 bits"
CUT_SHORT: Final = "a varint is cut short"
MAX_OWNERS: Final = 1 << 16
"""Owners are uint16."""
LIMBS: Final = 8
"""Signed 16-bit numbers in the key of a row; see docs/fingerprint.md."""
CHUNK_BYTES: Final = 4096
"""A row is sketched in chunks of this many bytes; see docs/fingerprint.md."""
LEAST_RADIX: Final = 1 << 14  # fewer ids are sorted before the digits of a radix sort are counted
NUMPY_SORTS_VECTORS: Final = int(np.__version__.partition(".")[0]) >= 2
"""With AVX2, numpy 2 sorts as fast as the kernel, and with AVX-512 twice as fast; numpy 1 takes ten times as long."""
_ROWS_AT_ONCE: Final = 2048  # the numpy sketch works in batches that stay in the L2 cache
_MASK64: Final = 0xFFFFFFFFFFFFFFFF
_GROUPS: Final = np.array([0x7F7F7F7F7F7F7F7F & ((1 << 8 * min(k, 8)) - 1) for k in range(11)], np.uint64)
"""The seven-bit groups of a varint of k bytes among the eight that a load brings."""


class VarintError(ValueError):
    """Bytes that are not a varint of 64 bits; `position` is where the bad one starts."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


def complete_prefix(data: U8) -> int:
    """Return how many leading bytes of uint8 [n] are whole varints; VarintError for the first too long one.

    >>> complete_prefix(np.array([1, 0x80, 1, 0x80], np.uint8))
    3
    """
    for size in range(len(data), max(len(data) - MAX_VARINT_BYTES, 0), -1):
        if data[size - 1] < 0x80:
            return size
    if len(data) >= MAX_VARINT_BYTES:
        start = int(np.flatnonzero(np.append(np.uint8(0), data) < 0x80)[-1])
        decode_varints(data[:start])  # raises for a bad one before it
        raise VarintError(start, TOO_LONG)
    return 0


def count_varints(data: U8) -> int:
    """Return how many varints end in uint8 [n]: its bytes below 0x80.

    >>> count_varints(np.array([1, 0x80, 1, 0x80], np.uint8))
    2
    """
    if kernel is not None:
        return kernel.count_varints(data)
    return len(data) - int(np.count_nonzero(data & 0x80))


def decode_varints(data: U8) -> tuple[I64, U8]:
    """Decode varints that lie back to back: uint8 [bytes] -> (int64 [n] values, uint8 [n] lengths in bytes).

    Raises VarintError for the first one that is longer than 10 bytes, has more than 64 bits, or is cut short.

    >>> values, lengths = decode_varints(np.array([5, 0x80, 0x01, *[0xFF] * 9, 0x01], np.uint8))
    >>> values.tolist(), lengths.tolist()
    ([5, 128, -1], [1, 2, 10])
    """
    if kernel is not None:
        values = np.empty(count_varints(data), np.int64)
        lengths = np.empty(len(values), np.uint8)
        bad = kernel.decode_varints(data, values, lengths)
        if bad >= 0:
            raise _bad_varint(data, bad)
        return values, lengths
    return _decode_varints(data)


def _bad_varint(data: U8, position: int) -> VarintError:
    """Return the error for the bad varint that starts at a position."""
    start = data[position : position + MAX_VARINT_BYTES]
    if bool((start < 0x80).any()):  # it ends in time, so its value is too large
        return VarintError(position, TOO_WIDE)
    return VarintError(position, TOO_LONG if len(start) == MAX_VARINT_BYTES else CUT_SHORT)


def _decode_varints(data: U8) -> tuple[I64, U8]:
    """Decode by unaligned 8-byte loads, and SWAR: seven-bit groups are closed up pair by pair."""
    ends = np.flatnonzero(data < 0x80)
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    _check_varints(data, starts, sizes)
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    words: U64 = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded, strides=(1,))[starts]
    words &= _GROUPS[sizes]
    longest = int(sizes.max(initial=0))
    for low, shift in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4)):
        if longest > shift:
            high = words & np.uint64(~low & _MASK64)
            high >>= np.uint64(shift)
            words &= np.uint64(low)
            words |= high
    for byte, shift in ((8, 56), (9, 63)):
        long = np.flatnonzero(sizes > byte)
        if len(long):
            extra = padded[starts[long] + byte].astype(np.uint64)
            words[long] |= (extra & np.uint64(0x7F)) << np.uint64(shift)
    return words.view(np.int64), sizes.astype(np.uint8)


def _check_varints(data: U8, starts: npt.NDArray[np.intp], sizes: npt.NDArray[np.intp]) -> None:
    """Raise VarintError for the first bad varint, which may be bytes after the last whole one."""
    whole = int(starts[-1] + sizes[-1]) if len(starts) else 0
    bad = [whole] if whole < len(data) else []
    long = np.flatnonzero(sizes >= MAX_VARINT_BYTES)
    bad += starts[long[(sizes[long] > MAX_VARINT_BYTES) | (data[starts[long] + 9] > 1)]][:1].tolist()
    if bad:
        raise _bad_varint(data, min(bad))


def varint_lengths(values: I64) -> U8:
    """Return how many bytes the varint of each int64 takes: uint8 [n].

    >>> varint_lengths(np.array([0, 127, 128, -1])).tolist()
    [1, 1, 2, 10]
    """
    if kernel is not None:
        out = np.empty(len(values), np.uint8)
        kernel.varint_lengths(np.ascontiguousarray(values), out)
        return out
    bits = values.view(np.uint64)
    lengths = np.ones(len(values), np.uint8)
    for group in range(1, MAX_VARINT_BYTES):
        lengths += bits >= np.uint64(1 << (7 * group))
    return lengths


def encode_varints(values: I64) -> U8:
    """Encode int64 [n] as varints back to back: uint8 [bytes].

    >>> encode_varints(np.array([5, 128])).tolist()
    [5, 128, 1]
    """
    lengths = varint_lengths(values)
    if kernel is not None:
        out = np.empty(int(lengths.sum()), np.uint8)
        kernel.encode_varints(np.ascontiguousarray(values), out)
        return out
    shifts = np.arange(MAX_VARINT_BYTES, dtype=np.uint64) * np.uint64(7)
    groups = ((values.view(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    column = np.arange(MAX_VARINT_BYTES)
    groups |= np.where(column < lengths[:, None] - 1, 0x80, 0).astype(np.uint8)
    return groups[column < lengths[:, None]]


def owners(ids: I64, ps_num: int) -> U16:
    """Return `id % ps_num` with Python's sign: int64 [n] -> uint16 [n]. `ps_num` is at most 65,536."""
    if kernel is not None:
        out = np.empty(len(ids), np.uint16)
        kernel.owners(np.ascontiguousarray(ids), ps_num, out)
        return out
    if not 1 <= ps_num <= MAX_OWNERS:
        raise ValueError(f"owners: ps_num must be 1 to {MAX_OWNERS}, got {ps_num}")
    if ps_num & (ps_num - 1) == 0:
        return (ids & (ps_num - 1)).astype(np.uint16)
    return np.mod(ids, ps_num).astype(np.uint16)


def have_owner(ids: I64, ps_num: int, ps_id: int) -> bool:
    """Say whether `id % ps_num` is `ps_id` for all ids, int64 [n]; in less time than `owners` takes.

    Raises ValueError for an owner that is not below `ps_num`.

    >>> have_owner(np.array([5, -1]), 3, 2), have_owner(np.array([5, 6]), 3, 2)
    (True, False)
    """
    if kernel is not None:
        return kernel.have_owner(np.ascontiguousarray(ids), ps_num, ps_id)
    if not 0 <= ps_id < ps_num:
        raise ValueError(f"have_owner: ps_id must be below ps_num, got {ps_id} of {ps_num}")
    return bool((np.mod(ids, ps_num) == ps_id).all())


def tally(owner: U16, lengths: U8, ps_num: int) -> tuple[I64, I64]:
    """Return (rows, id bytes) of each owner, both int64 [ps_num], from uint16 [n] owners and uint8 [n] lengths.

    Raises ValueError for an owner that is not below `ps_num`, and for arrays of different lengths.
    """
    if kernel is not None:
        rows, id_bytes = np.zeros(ps_num, np.int64), np.zeros(ps_num, np.int64)
        kernel.tally(owner, lengths, rows, id_bytes)
        return rows, id_bytes
    _check_size("tally", "owner", owner, len(lengths), 2)
    _check_owners("tally", owner, ps_num)
    return np.bincount(owner, minlength=ps_num), np.bincount(owner, lengths, ps_num).astype(np.int64)


def group_rows(values: U8, owner: U16, rows_per_owner: I64, out: U8) -> None:
    """Fill `out` with the rows uint8 [n, row_bytes] ordered by owner, and in their old order within one.

    Raises ValueError for an owner beyond the end of `rows_per_owner`, for arrays of different lengths, and where the
    rows of the owners before another one are not as many as `rows_per_owner` claims.
    """
    row_bytes = values.shape[1]
    if kernel is not None:
        kernel.group_rows(values, row_bytes, owner, _starts(rows_per_owner), out)
        return
    if row_bytes < 1:
        raise ValueError(f"group_rows: row_bytes must be at least 1, got {row_bytes}")
    _check_size("group_rows", "owner", owner, len(values), 2)
    _check_size("group_rows", "out", out, len(values), row_bytes)
    _check_owners("group_rows", owner, len(rows_per_owner))
    order = _order(owner)
    _check_starts("group_rows", "row", _starts(rows_per_owner), _first_rows(owner[order], len(rows_per_owner)))
    row = np.dtype((np.void, row_bytes))
    np.take(values.view(row).ravel(), order, out=out.view(row).ravel(), mode="clip")


def group_varints(data: U8, lengths: U8, owner: U16, bytes_per_owner: I64) -> U8:
    """Return varints, back to back in uint8 [bytes], ordered by owner: their bytes are moved, never re-encoded.

    Raises ValueError as `group_rows` does, for a length that no varint has, and for lengths that do not add up to
    the size of `data`.
    """
    if kernel is not None:
        out = np.empty_like(data)
        kernel.group_varints(data, lengths, owner, _starts(bytes_per_owner), out)
        return out
    _check_size("group_varints", "owner", owner, len(lengths), 2)
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    _check_lengths(data, lengths, int(ends[-1]))
    _check_owners("group_varints", owner, len(bytes_per_owner))
    order = _order(owner)
    ordered = lengths[order]
    first = _first_rows(owner[order], len(bytes_per_owner))
    moved = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(ordered, out=moved[1:])
    _check_starts("group_varints", "byte", _starts(bytes_per_owner), moved[first])
    padded = np.zeros(len(data) + MAX_VARINT_BYTES, np.uint8)
    padded[: len(data)] = data
    windows = np.lib.stride_tricks.sliding_window_view(padded, MAX_VARINT_BYTES)[ends[order]]
    grouped: U8 = windows[np.arange(MAX_VARINT_BYTES) < ordered[:, None]]
    return grouped


def sort_ids(ids: I64) -> None:
    """Sort int64 [n] in place."""
    if kernel is None or len(ids) < LEAST_RADIX or (kernel.AVX2 and NUMPY_SORTS_VECTORS):
        ids.sort()
    else:
        kernel.sort_ids(ids, None)


def order_ids(ids: I64) -> U32:
    """Sort int64 [n] in place, and return where each id was, uint32 [n]; equal ids keep their order.

    >>> ids = np.array([7, -1, 7])
    >>> order_ids(ids).tolist(), ids.tolist()
    ([1, 0, 2], [-1, 7, 7])
    """
    if kernel is not None and len(ids) >= LEAST_RADIX:
        order = np.empty(len(ids), np.uint32)
        kernel.sort_ids(ids, order)
        return order
    if len(ids) >= 1 << 32:
        raise ValueError(f"sort_ids: {len(ids)} rows are more than 32 bits can number")
    found = np.argsort(ids, kind="stable")
    ids[:] = ids[found]
    return found.astype(np.uint32)


def ranges_of(ids: I64, cuts: I64) -> U16:
    """Return how many of the ascending cuts are not above each id: int64 [n] -> uint16 [n]; at most 65,535 cuts.

    Raises ValueError for more cuts, and for the first one that is below the one before it.

    >>> ranges_of(np.array([4, 5, 9]), np.array([5, 7])).tolist()
    [0, 1, 2]
    """
    if kernel is not None:
        out = np.empty(len(ids), np.uint16)
        kernel.ranges_of(np.ascontiguousarray(ids), np.ascontiguousarray(cuts), out)
        return out
    if len(cuts) > np.iinfo(np.uint16).max:
        raise ValueError(f"ranges_of: {len(cuts)} cuts are more than {np.iinfo(np.uint16).max}")
    if len(descents := np.flatnonzero(cuts[1:] < cuts[:-1])):
        raise ValueError(f"ranges_of: cut {descents[0] + 1} is below the one before it")
    return np.searchsorted(cuts, ids, "right").astype(np.uint16)


def take_rows(values: U8, order: U32, out: U8 | None = None) -> U8:
    """Return the rows of uint8 [n, row_bytes] at the places uint32 [k]: uint8 [k, row_bytes], in `out` if it is given.

    Raises ValueError for a place that is not below n, for rows without bytes, and for `out` of another size.
    """
    row_bytes = values.shape[1]
    if out is None:
        out = np.empty((len(order), row_bytes), np.uint8)
    if kernel is not None:
        kernel.take_rows(values, row_bytes, order, out)
        return out
    if row_bytes < 1:
        raise ValueError(f"take_rows: row_bytes must be at least 1, got {row_bytes}")
    _check_size("take_rows", "out", out, len(order), row_bytes)
    if len(order) and int(order.max()) >= len(values):
        row = int(np.flatnonzero(order >= len(values))[0])
        rows = counted(len(values), "row")
        raise ValueError(f"take_rows: place {order[row]} of row {row} is out of range for {rows}")
    out.reshape(len(order), row_bytes)[...] = values[order]
    return out


def _starts(sizes: I64) -> I64:
    return np.cumsum(sizes) - sizes


def _order(owner: U16) -> npt.NDArray[np.intp]:
    """Return the stable order by owner; owners of eight bits sort twice as fast."""
    narrow = owner.astype(np.uint8) if len(owner) and int(owner.max()) < 256 else owner
    return np.argsort(narrow, kind="stable")


def _check_size(function: str, name: str, array: npt.NDArray[Any], rows: int, itemsize: int) -> None:
    """Raise ValueError when an array has another size than so many rows need."""
    if array.nbytes != rows * itemsize:
        need = "needs" if rows == 1 else "need"
        raise ValueError(
            f"{function}: {name} has {counted(array.nbytes, 'byte')}, the {counted(rows, 'row')} {need}"
            f" {rows * itemsize}"
        )


def _check_owners(function: str, owner: U16, targets: int) -> None:
    """Raise ValueError for the first owner that is not below the number of targets."""
    if int(owner.max(initial=0)) >= targets and len(owner):
        row = int(np.flatnonzero(owner >= targets)[0])
        raise ValueError(
            f"{function}: owner {owner[row]} of row {row} is out of range for {counted(targets, 'target')}"
        )


def _first_rows(ordered: U16, targets: int) -> npt.NDArray[np.intp]:
    """Return where each target's rows begin among ascending owners."""
    return np.searchsorted(ordered, np.arange(targets, dtype=ordered.dtype))


def _check_starts(function: str, noun: str, starts: I64, expected: npt.NDArray[np.signedinteger]) -> None:
    """Raise ValueError for the first target that starts elsewhere than the rows of the targets before it end."""
    if not np.array_equal(starts, expected):
        target = int(np.flatnonzero(starts != expected)[0])
        raise ValueError(f"{function}: target {target} starts at {noun} {starts[target]}, expected {expected[target]}")


def _check_lengths(data: U8, lengths: U8, total: int) -> None:
    """Raise ValueError for a length that no varint has, or for lengths that do not add up to the size of the data."""
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= MAX_VARINT_BYTES:
        row = int(np.flatnonzero((lengths < 1) | (lengths > MAX_VARINT_BYTES))[0])
        raise ValueError(f"group_varints: the varint of row {row} has length {lengths[row]}, expected 1 to 10")
    if total != len(data):
        add = "adds" if len(lengths) == 1 else "add"
        raise ValueError(
            f"group_varints: data has {counted(len(data), 'byte')}, the {counted(len(lengths), 'length')} {add} up to"
            f" {total}"
        )


def new_sketch(row_bytes: int) -> U32:
    """Return the sketch of no rows: zeros, uint32 [8, columns + 1]; the last column is the sum of the keys."""
    return np.zeros((LIMBS, -(-min(row_bytes, CHUNK_BYTES) // 2) + 1), np.uint32)


def sketch_rows(sketch: U32, ids: I64, values: U8, *, first_chunk: int = 0) -> None:
    """Add rows uint8 [n, row_bytes] with their ids int64 [n] to a sketch, in place.

    docs/fingerprint.md has the definition. `first_chunk` is the number of the chunk that `values` begin with, for
    a row that comes piece by piece. Raises ValueError when ids and rows are not as many, or the sketch is too narrow.
    """
    for chunk in range(max(1, -(-values.shape[1] // CHUNK_BYTES))):
        salt = (first_chunk + chunk) * CHUNK_STEP & _MASK64
        start = chunk * CHUNK_BYTES
        sketch_columns(sketch, ids, values, start, min(CHUNK_BYTES, values.shape[1] - start), salt)


def sketch_columns(sketch: U32, ids: I64, values: U8, start: int, size: int, salt: int = 0) -> None:
    """Add bytes [start, start + size) of rows uint8 [n, row_bytes], at most a chunk, to a sketch, in place.

    They are the first columns of the sketch. The key of a row is that of its id and the chunk whose number times
    `CHUNK_STEP` is `salt`; the ids may have that added already. Errors as `sketch_rows`.
    """
    if kernel is not None and size > 0:
        kernel.sketch(sketch, ids, values, values.shape[1], start, size, salt)
        return
    _check_sketch(sketch, ids, values, size)
    for row in range(0, len(ids), _ROWS_AT_ONCE):
        some = slice(row, row + _ROWS_AT_ONCE)
        _sketch(sketch, ids[some], values[some, start : start + size], salt)


def sketch_alone(values: U8) -> U32:
    """Return the sketch of each row by itself, as that of a dense variable: uint8 [n, size] -> uint32 [n, 8, columns].

    A row has at most one chunk. All have the id 0, so one key, and nothing is added up.
    """
    rows, size = values.shape
    keys = row_keys(np.zeros(1, np.int64), 0)[0].astype(np.int32).view(np.uint32)
    sketches = np.empty((rows, LIMBS, -(-size // 2) + 1), np.uint32)
    sketches[:, :, -1] = keys
    if size % 2:
        values = np.concatenate([values, np.zeros((rows, 1), np.uint8)], axis=1)
    numbers = np.ascontiguousarray(values).view("<i2").astype(np.int32).view(np.uint32)
    np.multiply(keys[:, None], numbers[:, None, :], out=sketches[:, :, :-1])
    return sketches


def _check_sketch(sketch: U32, ids: I64, values: U8, size: int) -> None:
    """Raise ValueError unless the sketch has the columns of a chunk of `size` bytes and each row has its id."""
    _check_size("sketch_rows", "ids", ids, len(values), 8)
    needed = -(-size // 2) + 1
    if sketch.shape[1] < needed:
        raise ValueError(
            f"sketch_rows: sketch has {counted(sketch.shape[1], 'column')},"
            f" rows of {counted(values.shape[1], 'byte')} need {needed}"
        )


CHUNK_STEP: Final = 0x9E3779B97F4A7C15
KEY_CONSTANTS: Final = (
    0x9FB21C651E98DF25,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
)


def row_keys(ids: I64, salt: int) -> npt.NDArray[np.int16]:
    """Return the keys of rows, int16 [n, 8]: see docs/fingerprint.md."""
    add, first, second, add_more, third = KEY_CONSTANTS
    keys = np.empty((len(ids), 2), np.uint64)
    shifted = np.empty(len(ids), np.uint64)
    word = ids.view(np.uint64) + np.uint64(salt + add & _MASK64)
    word *= np.uint64(first)
    word ^= np.right_shift(word, np.uint64(32), out=shifted)
    word *= np.uint64(second)
    word ^= np.right_shift(word, np.uint64(29), out=shifted)
    keys[:, 0] = word
    word += np.uint64(add_more)
    word *= np.uint64(third)
    np.bitwise_xor(word, np.right_shift(word, np.uint64(32), out=shifted), out=keys[:, 1])
    return keys.view("<i2")


def _sketch(sketch: U32, ids: I64, values: U8, salt: int) -> None:
    """Sum keys times values exactly: float64 represents every partial sum of up to 2**23 products of 16 by 16 bits."""
    rows, size = values.shape
    even = values
    if size % 2:
        even = np.zeros((rows, size + 1), np.uint8)
        even[:, :size] = values
    keys = row_keys(ids, salt).astype(np.float64).T
    columns = even.shape[1] // 2
    if columns:
        numbers = np.ascontiguousarray(even).view("<i2").astype(np.float64)
        sketch[:, :columns] += (keys @ numbers).astype(np.int64).astype(np.uint32)
    sketch[:, -1] += keys.sum(axis=1).astype(np.int64).astype(np.uint32)
