"""The sketch of a box of an array: what a process that has a part of a tensor adds to the sketch of the whole.

The sum in a fingerprint is linear in the bytes, so parts of an array may be summed where they are. A box is cut into
runs, which follow each other in the array too. A run that begins inside a chunk counts at its own columns of the
sketch; one that begins at an odd byte is the high half of a number, and counts as one with a zero before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.kernel import bulk

_BATCH_BYTES: Final = 32 << 20
"""Runs are put in another order, which copies them, so many bytes at a time."""
_MOST_RUNS: Final = 1 << 20
"""Runs whose places are computed at a time."""


class ArrayForm(NamedTuple):
    """The shape of an array, the bytes of an element, and whether it is a table: then its first dimension has rows."""

    shape: tuple[int, ...]
    itemsize: int
    is_table: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row; a variable is one row."""
        return self.shape[1:] if self.is_table else self.shape

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return math.prod(self.row_shape) * self.itemsize

    @property
    def rows(self) -> int:
        """Return how many rows there are."""
        return self.shape[0] if self.is_table else 1


def whole_sketch(form: ArrayForm) -> bulk.U32 | None:
    """Return the sketch of an array that has no bytes; None for one that has some."""
    if form.row_bytes:
        return None
    sketch = bulk.new_sketch(0)
    for first in range(0, form.rows, _MOST_RUNS):
        ids = np.arange(first, min(first + _MOST_RUNS, form.rows), dtype=np.int64)
        bulk.sketch_rows(sketch, ids, np.zeros((len(ids), 0), np.uint8))
    return sketch


def add_box(sketch: bulk.U32, form: ArrayForm, offsets: Sequence[int], sizes: Sequence[int], data: bulk.U8) -> None:
    """Add the bytes of a box, uint8 [bytes] in C order, to the sketch of its array, uint32 [8, columns + 1].

    The box begins at `offsets` and has `sizes`, as many as the array has dimensions. Boxes that tile an array add up to
    its sketch. Raises ValueError where the bytes are not those of the box.
    """
    if len(data) != math.prod(sizes) * form.itemsize:
        raise ValueError(f"add_box: a box of {list(sizes)} has no {len(data)} bytes of {form.itemsize} an element")
    if not len(data):
        return
    outer, run = _runs(form, sizes)
    values = data.reshape(-1, run)
    step = max(1, min(_BATCH_BYTES // run, _MOST_RUNS))
    for first in range(0, len(values), step):
        some = values[first : first + step]
        ids, starts = _places(form, offsets, sizes[:outer], range(first, first + len(some)))
        for which in _alike(starts % bulk.CHUNK_BYTES):
            _add_alike(sketch, ids[which], starts[which], some[which])


def _runs(form: ArrayForm, sizes: Sequence[int]) -> tuple[int, int]:
    """Return how many dimensions of a box are outside of its runs, and the bytes of a run."""
    outer, run = len(sizes), form.itemsize
    while outer > int(form.is_table):
        outer -= 1
        run *= sizes[outer]
        if sizes[outer] != form.shape[outer]:
            break
    return outer, run


def _places(form: ArrayForm, offsets: Sequence[int], counted: Sequence[int], runs: range) -> tuple[bulk.I64, bulk.I64]:
    """Return the ids of the rows in which some runs of a box are, and where they begin there, in bytes."""
    ids, starts = np.zeros(len(runs), np.int64), np.zeros(len(runs), np.int64)
    indexes = np.unravel_index(np.arange(runs.start, runs.stop), counted) if counted else ()
    for axis, offset in enumerate(offsets):
        at = indexes[axis] + offset if axis < len(indexes) else offset
        if form.is_table and not axis:
            ids += at
        else:
            starts += at * (math.prod(form.shape[axis + 1 :]) * form.itemsize)
    return ids, starts


def _alike(phases: bulk.I64) -> Iterator[slice | np.ndarray]:
    """Yield the places of equal numbers: all at once, or group by group."""
    if not len(phases) or bool((phases == phases[0]).all()):
        yield slice(None)
        return
    order = np.argsort(phases, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(phases[order])) + 1)


def _add_alike(sketch: bulk.U32, ids: bulk.I64, starts: bulk.I64, values: bulk.U8) -> None:
    """Add runs, uint8 [n, run], that begin at the same place in their chunks."""
    chunk, step = bulk.CHUNK_BYTES, np.int64(np.uint64(bulk.CHUNK_STEP).view(np.int64))
    keys = ids + starts // chunk * step  # modulo 2**64
    at = int(starts[0] % chunk)
    is_first = at == 0
    if at % 2:
        values = np.concatenate([np.zeros((len(values), 1), np.uint8), values], axis=1)
        at -= 1
    size = values.shape[1]
    end = min(chunk - at, size)
    _add_columns(sketch, keys, values, (0, end), at, keyed=is_first)
    middle = (size - end) // chunk
    numbers = np.arange(1, middle + 2, dtype=np.int64) * step
    if middle > len(values):  # long runs: each is a matrix of chunks
        for key, row in zip(keys, values, strict=True):
            chunks = row[end : end + middle * chunk].reshape(middle, chunk)
            bulk.sketch_columns(sketch, key + numbers[:middle], chunks, 0, chunk)
    else:
        for number in range(middle):
            begin = end + number * chunk
            _add_columns(sketch, keys + numbers[number], values, (begin, begin + chunk), 0, keyed=True)
    begin = end + middle * chunk
    if begin < size:
        _add_columns(sketch, keys + numbers[middle], values, (begin, size), 0, keyed=True)


def _add_columns(
    sketch: bulk.U32, keys: bulk.I64, values: bulk.U8, columns: tuple[int, int], at: int, *, keyed: bool
) -> None:
    """Add columns [begin, end) of runs at byte `at` of their chunks; `keyed` runs have the first byte of the chunk."""
    begin, end = columns
    part = bulk.new_sketch(end - begin)
    bulk.sketch_columns(part, keys, values, begin, end - begin)
    width = part.shape[1] - 1
    sketch[:, at // 2 : at // 2 + width] += part[:, :-1]
    if keyed:
        sketch[:, -1] += part[:, -1]
