"""A pass over values as a work: their sketches, their odd ones, and the checksums of the bytes that are read for them.

All of these add up, so tasks may be done anywhere. In other processes each chunk belongs to the task in which it
begins. What that task does not read of it anyway, it reads for the checksum alone: at most a chunk at each of two ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.seals import Chunk, PackedChunks
from edl_ckpt.core.model.tables import Extent
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.proof.sealing import ChunkSums
from edl_ckpt.core.reading.blocks import (
    VALUE_BATCH_BYTES,
    IdPiece,
    check_placement,
    check_row_count,
    id_blocks,
    raise_bad_ids,
    read_piece,
)
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.pieces import (
    DIRECT_BYTES,
    PIECE_BYTES,
    DenseAt,
    IdsAt,
    PieceAt,
    RowMarks,
    count_rows,
    cut_piece,
    dense_at,
    ids_at,
    in_sketched_tasks,
    is_small,
    marked_at,
    read_dense,
)
from edl_ckpt.core.reading.reader import Checkpoint, openings
from edl_ckpt.core.reading.row_batches import Looks, row_batches
from edl_ckpt.core.reading.small_parts import Bundle, bundles, read_bundle
from edl_ckpt.core.sources.elasticdl.target import Literals
from edl_ckpt.core.storage.interface import RangeReader, is_on_disk

Bounds = Mapping[int, npt.NDArray[np.int64]]
"""Where the chunks of shards begin and end, int64 [chunks, 2], by the number of the shard."""
Marks = Callable[[], Mapping[str, RowMarks]]
"""Returns rows whose places are planned, by the names of their tables."""
HUGE_EXPONENT: Final = 100
"""A float of 2**100 or more in magnitude is 'huge': no trained weight is, a flipped exponent bit is."""
_FLOATS: Final = {  # name: (unsigned view, mask of the magnitude, least huge, infinity)
    "float16": ("<u2", 0x7FFF, 0x7C00, 0x7C00),
    "bfloat16": ("<u2", 0x7FFF, (127 + HUGE_EXPONENT) << 7, 0x7F80),
    "float32": ("<u4", 0x7FFFFFFF, (127 + HUGE_EXPONENT) << 23, 0x7F800000),
    "float64": ("<u8", 0x7FFFFFFFFFFFFFFF, (1023 + HUGE_EXPONENT) << 52, 0x7FF0000000000000),
}
_READ_BYTES: Final = 256 << 10
"""Bytes of values that the kernel reads at a time, and looks at while they are in the L2 cache."""
_BUNDLED_BYTES: Final = 4 << 20
"""The most bytes of small parts that are one task on a disk; far ones are read by as many threads as there are."""
_SMALL_TIMES: Final = 8
"""So many times as large as small parts are those that are read whole on a disk: as large as the L2 cache of a core.

Where a table has a part in each of a thousand shards, its ids would be counted, and read again, for each of them.
"""


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """What a pass over values finds, and what each thread has in memory: values of a batch, and ids of a piece."""

    sketched: bool = True
    odd: bool = False
    """NaN, infinite and huge values are counted."""
    placed: bool = False
    """Each id must be in its own shard: CorruptError for another one."""
    batch_bytes: int = VALUE_BATCH_BYTES
    piece_bytes: int = PIECE_BYTES

    def dense_at(self, checkpoint: Checkpoint, task_bytes: int) -> Iterator[DenseAt]:
        """Yield every variable, in pieces for one thread or of a task."""
        return dense_at(checkpoint, task_bytes, piece_bytes=min(self.piece_bytes, self.batch_bytes))


_ALL: Final = ValueOptions()


@dataclass(slots=True)
class Values:
    """What a task found: sketches; odd values of each (shard, is dense, name); checksums of whole chunks."""

    sketch: ContentSketch = field(default_factory=ContentSketch)
    odd: dict[tuple[int, bool, str], npt.NDArray[np.int64]] = field(default_factory=dict)
    sums: dict[int, dict[int, str]] = field(default_factory=dict)
    """By the number of the shard, and of the chunk in it."""

    def add(self, other: Values) -> None:
        """Add what another task found; tasks of this process have added to the same sketch already."""
        if other.sketch is not self.sketch:
            self.sketch.add(other.sketch)
        for key, counts in other.odd.items():
            self.add_odd(key, counts)

    def add_odd(self, key: tuple[int, bool, str], counts: npt.NDArray[np.int64]) -> None:
        """Add counts of odd values."""
        self.odd[key] = self.odd.get(key, np.zeros(3, np.int64)) + counts


@dataclass(eq=False)
class OpenedValues(CheckpointHolder):
    """An opened checkpoint; in the process of the operation also the sketch and the sums to which tasks add."""

    sketch: ContentSketch | None = None
    sums: ChunkSums | None = None
    looks: Looks = field(default_factory=Looks)


def _chunks_of(
    checkpoint: Checkpoint, own: Mapping[int, Iterable[int]], bounds: Bounds
) -> Iterator[tuple[RangeReader, list[Chunk]]]:
    """Yield the file of each shard with the chunks that a task sums up itself, by their numbers."""
    for shard, numbers in own.items():
        chunks = [Chunk("", "", number, *bounds[shard][number].tolist()) for number in numbers]
        yield checkpoint.reader(checkpoint.shards[shard]), chunks


def _read_task(
    opened: OpenedValues, task: Sequence[PieceAt | Bundle], advance: Advance, *, options: ValueOptions, bounds: Bounds
) -> Values:
    """Read some pieces once. `bounds` are chunks, which tasks in other processes sum up themselves."""
    found = Values(opened.sketch or ContentSketch())
    checkpoint = opened.checkpoint
    own = _owned(checkpoint, task, bounds) if opened.sums is None else {}
    sums = ChunkSums(_chunks_of(checkpoint, own, bounds)) if own else opened.sums
    values = _Pass(opened, options, found.sketch, sums, advance)
    for place in task:
        if isinstance(place, Bundle):
            for name, counts in values.read_bundle(place):
                number = [shard.file for shard in checkpoint.shards].index(place.shard.file)
                found.add_odd((number, False, name), counts)
            continue
        counts = values.read_dense(place) if isinstance(place, DenseAt) else values.read_rows(place.piece(checkpoint))
        if counts.any():
            found.add_odd((place.shard, isinstance(place, DenseAt), place.entry(checkpoint).name), counts)
    for shard, numbers in own.items():
        path = checkpoint.reader(checkpoint.shards[shard]).path
        assert sums is not None  # noqa: S101 - there are chunks
        found.sums[shard] = dict(zip(numbers, (chunk.sum for chunk in sums.finish(path)), strict=True))
    return found


class _Pass(NamedTuple):
    """What a task reads values with."""

    opened: OpenedValues
    options: ValueOptions
    sketch: ContentSketch
    sums: ChunkSums | None
    advance: Advance

    def read_dense(self, place: DenseAt) -> npt.NDArray[np.int64]:
        """Read bytes of a variable; return how many odd values they have."""
        checkpoint, counts = self.opened.checkpoint, np.zeros(3, np.int64)
        entry = place.entry(checkpoint)
        step = min(self.options.piece_bytes, self.options.batch_bytes) // bulk.CHUNK_BYTES * bulk.CHUNK_BYTES
        step = max(step, place.reader(checkpoint).block_bytes, bulk.CHUNK_BYTES)
        for start in range(place.start, max(place.start + place.size, place.start + 1), step):
            size = min(step, place.start + place.size - start)
            data = read_dense(checkpoint, place._replace(start=start, size=size), self.sums)
            if self.options.sketched:
                self.sketch.add_dense(entry.name, entry.size_bytes, start, data)
            if self.options.odd:
                counts += odd_values(data, entry.dtype)
            self.advance(size)
        return counts

    def read_rows(self, place: IdPiece) -> npt.NDArray[np.int64]:
        """Read rows of a table; return how many odd values they have."""
        row = place.first_row
        end = place.first_row + place.rows
        checkpoint = self.opened.checkpoint
        counts = np.zeros(3, np.int64)
        for cut in cut_piece(checkpoint, place, self.options.piece_bytes):
            ids = read_piece(checkpoint, cut, self.sums).ids
            if row + len(ids) > end:
                raise _miscounted(place)
            piece = IdPiece(cut.shard, cut.entry, cut.run, cut.start, cut.end, row, len(ids))
            row += len(ids)
            if self.options.placed:
                check_placement(cut.shard, cut.entry, ids)
            if not self._sketch_directly(piece, ids):
                counts += self._read_batches(piece, ids)
        if row != end:
            raise _miscounted(place)
        return counts

    def _sketch_directly(self, piece: IdPiece, ids: bulk.I64) -> bool:
        """Let the kernel read rows; False where it cannot, where they are few, or where Python must see them too.

        Between a read and the look at it Python does nothing, so threads do not wait for each other. Raises what the
        reader raises.
        """
        entry, rows = piece.entry, len(ids)
        reader = self.opened.checkpoint.reader(piece.shard, entry.values)
        file = reader if is_on_disk(reader) and self.options.sketched and not self.options.odd else None
        if file is None or rows * entry.row_bytes < DIRECT_BYTES or not routing.can_move_file_rows():
            return False
        if piece.first_row + rows > entry.rows:
            check_row_count(piece.shard, entry, piece.first_row + rows, at_least=True)
        sketch = bulk.new_sketch(entry.row_bytes)
        step = min(max(1, min(self.options.batch_bytes, DIRECT_BYTES) // entry.row_bytes), rows)
        buffer = np.empty((step, entry.row_bytes), np.uint8)
        offset = entry.values.start + piece.first_row * entry.row_bytes
        file.will_need(offset, rows * entry.row_bytes)
        for start in range(0, rows, step):
            batch = buffer[: min(step, rows - start)]
            source = file.descriptor, offset
            failed = routing.sketch_file_rows(sketch, ids[start : start + step], source, _READ_BYTES, batch)
            if failed:
                raise file.failed(failed, offset)
            file.add_moved(batch.nbytes)
            if self.sums is not None:
                self.sums.add(reader, offset, batch.reshape(-1).data)
            offset += batch.nbytes
        self.sketch.add_sketch(entry.name, sketch)
        self.advance(rows * entry.row_bytes)
        return True

    def _read_batches(self, piece: IdPiece, ids: bulk.I64) -> npt.NDArray[np.int64]:
        counts, looks = np.zeros(3, np.int64), self.opened.looks
        batch_bytes = self.options.batch_bytes
        for some, rows in row_batches(self.opened.checkpoint, piece, len(ids), batch_bytes, self.sums, looks=looks):
            if self.options.sketched:
                self.sketch.add_rows(piece.entry.name, ids[some], rows)
            if self.options.odd:
                counts += odd_values(rows.reshape(-1), piece.entry.dtype)
            self.advance(rows.nbytes)
        return counts

    def read_bundle(self, bundle: Bundle) -> list[tuple[str, npt.NDArray[np.int64]]]:
        """Add small parts of tables to the sketch; return how many odd values those have that have some.

        Raises CorruptError for one that has other ids than it must have.
        """
        parts = bundle.parts()
        last = routing.sketch_size(int(parts[-1, routing.Part.ROW_BYTES]))
        added = np.zeros(int(parts[-1, routing.Part.SUMS]) + last, np.uint32)
        file, checkpoint = bundle.shard.file, self.opened.checkpoint
        owner = (file.ps_num, file.ps_id) if self.options.placed else ()
        data = read_bundle(checkpoint, bundle, self.sums)
        bad = routing.sketch_parts(added, data, parts, *owner)
        if bad >= 0:
            if self.options.placed:
                for _, ids in id_blocks(checkpoint, bundle.shard, bundle.entries[bad]):
                    check_placement(bundle.shard, bundle.entries[bad], ids)
            raise_bad_ids(checkpoint, bundle.shard, bundle.entries[bad])
        self.sketch.add_parts([entry.name for entry in bundle.entries], added, parts)
        self.advance(bundle.value_bytes)
        if not self.options.odd:
            return []
        values = ((entry, entry.values.start - bundle.start) for entry in bundle.entries)
        counted = ((e.name, odd_values(data[at : at + e.values.size_bytes], e.dtype)) for e, at in values)
        return [(name, counts) for name, counts in counted if counts.any()]


def odd_values(data: bulk.U8, dtype: DType | None) -> npt.NDArray[np.int64]:
    """Return how many elements are NaN, infinite and huge: int64 [3]; integers are none of them.

    >>> from edl_ckpt.core.model.dtypes import DTYPES
    >>> odd_values(np.array([1, np.nan, -np.inf, 2.0**101], "<f4").view(np.uint8), DTYPES["float32"]).tolist()
    [1, 1, 1]
    """
    counts = np.zeros(3, np.int64)
    if dtype is None or dtype.name not in _FLOATS or not len(data):
        return counts
    view, mask, huge, _ = _FLOATS[dtype.name]
    elements = data.view(view)
    if bulk.kernel is not None and not bulk.kernel.reaches(data, elements.itemsize, huge):
        return counts
    magnitude = elements & mask
    if int(magnitude.max()) < huge:
        return counts
    counts[:] = [np.count_nonzero(_of_kind(magnitude, dtype, kind)) for kind in range(3)]
    return counts


def odd_rows(rows: bulk.U8, dtype: DType | None, kind: int) -> npt.NDArray[np.bool_]:
    """Say which rows, uint8 [n, row_bytes], have values of a kind: 0 for NaN, 1 for infinite and 2 for huge ones."""
    if dtype is None or dtype.name not in _FLOATS or not rows.size:
        return np.zeros(len(rows), np.bool_)
    view, mask, *_ = _FLOATS[dtype.name]
    odd: npt.NDArray[np.bool_] = np.any(_of_kind(rows.view(view) & mask, dtype, kind), axis=1)
    return odd


def _of_kind(magnitude: npt.NDArray[Any], dtype: DType, kind: int) -> npt.NDArray[np.bool_]:
    _, mask, huge, infinity = _FLOATS[dtype.name]
    low, high = ((infinity + 1, mask), (infinity, infinity), (huge, infinity - 1))[kind]
    return np.logical_and(magnitude >= low, magnitude <= high)


def read_values(
    checkpoint: Checkpoint, places: Iterable[PieceAt], job: Job, small: Bundles, sums: ChunkSums | None = None
) -> Values:
    """Read the values at some places, numbered where they are rows, and small parts; return all that was found.

    The bytes that are read are added to `sums`, whichever process reads them.
    """
    numbers = {checkpoint.reader(shard).path: number for number, shard in enumerate(checkpoint.shards)}
    bounds = {} if sums is None else sums.bounds(numbers)
    tasks = in_sketched_tasks(checkpoint, places, small.task_bytes)
    total = Values()
    opened = OpenedValues(checkpoint, total.sketch, sums)
    source = HeldValue(CheckpointValue.of(checkpoint), OpenedValues)
    work = FunctionWork(source, partial(_read_task, options=small.options, bounds=bounds))
    with job.run(work, opened, chain(small.tasks(checkpoint, job.workers), tasks)) as results:
        for found in results:
            total.add(found)
            for shard, done in found.sums.items():
                assert sums is not None  # noqa: S101 - there are bounds
                sums.take(checkpoint.reader(checkpoint.shards[shard]).path, done)
    return total


def read_back(
    checkpoint: Checkpoint,
    chunks: Iterable[Sequence[Chunk]],
    job: Job,
    *,
    options: ValueOptions = _ALL,
    literals: Mapping[str, Literals] | None = None,
    total_bytes: int | None = None,
    marks: Marks | None = None,
) -> tuple[ContentSketch, list[PackedChunks]]:
    """Read every byte of an opened version once; return the sketch of its values, and the chunks of its files.

    `literals` are what each file must have besides values and ids, by its path. Tasks are those of a version with
    `total_bytes` of values, of which these shards may be a part. `marks` are rows of its tables, by name: with them
    other processes need not count the rows first, which must be where the marks are. Raises CorruptError for a byte
    that is another one, and where a table has more or fewer ids than rows.
    """
    readers = [checkpoint.files[file.path] for shard in checkpoint.shards for file in shard.file.files]
    sums = ChunkSums(zip(readers, chunks, strict=True), literals)
    small = Bundles.of(checkpoint, job, options, total_bytes)
    openers = job.executor.openings or openings(checkpoint.store)
    sums.add_rest(checkpoint, small.extents(), workers=openers)
    sketch = _sketch(checkpoint, job, small, sums=sums, marks=marks)
    return sketch, [sums.finish(reader.path, workers=job.workers) for reader in readers]


def add_entries(sketch: ContentSketch, checkpoint: Checkpoint, names: Container[str]) -> None:
    """Add some variables and items, which are read whole, to a sketch."""
    if any(entry.name in names for shard in checkpoint.shards for entry in shard.variables):
        for place in dense_at(checkpoint, 0):
            entry = place.entry(checkpoint)
            if entry.name in names:
                sketch.add_dense(entry.name, entry.size_bytes, place.start, read_dense(checkpoint, place))


def fingerprint(checkpoint: Checkpoint, job: Job) -> Fingerprint:
    """Read every value of a checkpoint once and return its fingerprint.

    Raises CorruptError where a table has more or fewer ids than rows.
    """
    return fingerprint_of(checkpoint, _sketch(checkpoint, job, Bundles.of(checkpoint, job, _ALL)))


def fingerprint_checkpoint(checkpoint: Checkpoint, *, workers: int = 1, reporter: Reporter = WARNINGS) -> Fingerprint:
    """Read every value of a checkpoint once and return its fingerprint.

    Each worker needs memory for a few batches of values and of ids, 1 MiB each. Raises CorruptError where a table has
    more or fewer ids than rows.
    """
    return fingerprint(checkpoint, Job.here(workers, reporter=reporter))


class Bundles(NamedTuple):
    """How a pass reads: what it finds, the bytes of values in a task, and parts of tables read many at a time."""

    options: ValueOptions
    task_bytes: int = 0
    times: int = 0
    """So many times as large as small parts are those that are read whole; 0 for none."""
    bundles: Sequence[Bundle] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint, job: Job, options: ValueOptions, total_bytes: int | None = None) -> Bundles:
        """Return those of a checkpoint; where tasks are large, pieces make them."""
        task_bytes = job.executor.task_bytes(value_bytes(checkpoint) if total_bytes is None else total_bytes)
        if task_bytes:
            return cls(options, task_bytes)
        times = _SMALL_TIMES if not checkpoint.reads_blocks and options.batch_bytes >= VALUE_BATCH_BYTES else 1
        return cls(options, 0, times, list(bundles(checkpoint, min(PIECE_BYTES, options.batch_bytes), times=times)))

    def extents(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """Return the extents of shards that are read so, by the numbers of the shards."""
        found = defaultdict(list)
        for bundle in self.bundles:
            found[bundle.shard.file.ps_id].append((bundle.start, bundle.end))
        return found

    def has_all(self, checkpoint: Checkpoint) -> bool:
        """Say whether all rows are in these parts: then there are none to count."""
        return sum(len(each.entries) for each in self.bundles) == sum(len(shard.tables) for shard in checkpoint.shards)

    def others(self, checkpoint: Checkpoint, places: Iterable[IdsAt]) -> Iterator[IdsAt]:
        """Yield the places that are in none of these parts."""
        return (place for place in places if not is_small(place.entry(checkpoint), self.times))

    def tasks(self, checkpoint: Checkpoint, workers: int) -> Iterator[Sequence[Bundle]]:
        """Yield all bundles in tasks."""
        near = 0 if checkpoint.reads_blocks else _BUNDLED_BYTES
        sizes = [bundle.end - bundle.start for bundle in self.bundles]
        yield from together(zip(self.bundles, sizes, strict=True), min(near, sum(sizes) // (4 * workers)))


def _sketch(
    checkpoint: Checkpoint, job: Job, small: Bundles, *, sums: ChunkSums | None = None, marks: Marks | None = None
) -> ContentSketch:
    """Return the sketch of all values; `marks` are as in `read_back`."""
    checkpoint.keep_ids(job)
    size, pieces = small.task_bytes, small.options.piece_bytes
    if marks is not None and size:
        rows = list(marked_at(checkpoint, marks(), size))
    else:
        wanted = ids_at(checkpoint, size, values=True, piece_bytes=pieces, above=small.times)
        counted_rows = partial(count_rows, checkpoint, wanted, job, piece_bytes=pieces, above=small.times)
        rows = [] if small.has_all(checkpoint) else counted_rows()
    return read_values(checkpoint, chain(small.options.dense_at(checkpoint, size), rows), job, small, sums).sketch


def _miscounted(place: IdPiece) -> CorruptError:
    return CorruptError(
        f"table {place.entry.name!r} has more or fewer ids than the {counted(place.rows, 'row')} that were counted",
        code="id-row-mismatch",
        path=place.shard.path(place.run),
        offset=place.start,
    )


def _owned(checkpoint: Checkpoint, task: Sequence[PieceAt | Bundle], bounds: Bounds) -> dict[int, list[int]]:
    """Return the numbers of the chunks of each shard that begin in a task; ascending."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for place in task:
        if not isinstance(place, Bundle) and place.shard in bounds:
            starts = bounds[place.shard][:, 0]
            of_first = (pair for pair in _extents(checkpoint, place) if not pair[0].file)
            for extent, is_first in of_first:
                first = int(np.searchsorted(starts, extent.start, "left"))
                if is_first:  # with what stands before the first value
                    first = max(int(np.searchsorted(starts, extent.start, "right")) - 1, 0)
                found[place.shard].update(range(first, int(np.searchsorted(starts, extent.end, "left"))))
    return {shard: sorted(numbers) for shard, numbers in found.items() if numbers}


def _extents(checkpoint: Checkpoint, place: PieceAt) -> Iterator[tuple[Extent, bool]]:
    """Yield the bytes that a piece reads, and whether its variable, or the run of its ids, begins there."""
    if isinstance(place, DenseAt):
        values = place.entry(checkpoint).values
        at = values.start + place.start
        yield Extent(at, at + place.size, file=values.file), place.start == 0
        return
    piece = place.piece(checkpoint)
    width, values = piece.entry.row_bytes, piece.entry.values
    first, end = (values.start + row * width for row in (piece.first_row, piece.first_row + piece.rows))
    yield Extent(first, end, file=values.file), piece.first_row == 0
    if piece.run.is_stored:
        yield Extent(piece.start, piece.end, file=piece.run.file), False
