"""Writing one shard in one pass: bytes go to their places, and checksums and sums for the fingerprint come along.

Arrays in memory are written as they are, in pieces that begin where the chunks of a seal begin, by a few threads.
Tables in batches are copied piece by piece, in the order in which they come.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import Final, NamedTuple

import numpy as np
import xxhash

from edl_ckpt.core.base.arrays import as_bytes
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import default_workers, run_all, run_parallel
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.commit.shard import ShardOutput, ShardPlace
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.seals import Chunk
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.proof.sealing import batches, cut
from edl_ckpt.core.reading.pieces import PIECE_BYTES
from edl_ckpt.core.sources.elasticdl.target import PlannedReader, VersionLayout, lay_out_shards, planned_shards
from edl_ckpt.core.state.shard_note import ShardNote
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.training.content import MemoryTable, ServerContent, StreamedTable, TableContent

MOST_WORKERS: Final = 4
"""Threads for a shard: a job has other work for its cores, and each takes memory for some ids."""
_STREAM_WORKERS: Final = 2
_WAITING_BYTES: Final = 24 << 20
"""The most bytes of chunks that are under way: those that came in batches are in memory."""
_ROWS_BYTES: Final = 1 << 20
"""Bytes of rows that are sketched at a time: about the L2 cache of a core."""


class _Region(NamedTuple):
    """Bytes [start, end) of the shard; `read` returns those of [a, b), in order and once where they come in batches."""

    start: int
    end: int
    read: Callable[[int, int], Iterable[memoryview]]
    in_batches: bool = False


def lay_out(version: int, content: ServerContent) -> VersionLayout:
    """Return the layout of the shard with this content, as that of a version of one shard."""
    variables, tables = (each.placed for each in content.variables), (each.counted for each in content.tables)
    return lay_out_shards(version, variables, tables, 1)


def write_shard(
    content: ServerContent, layout: VersionLayout, output: ShardOutput, place: ShardPlace, run: str, reporter: Reporter
) -> ShardNote:
    """Write a shard to its output, and return the note on it.

    Memory is at most 48 MiB, and a batch of a table that comes in batches; in a version of more than 6 TiB, a chunk of
    it instead.
    Raises CorruptError for an id that a table has twice, and UsageError for batches that were not the same twice.
    """
    file = ShardFile(place.ps_id, place.ps_num, place.path, int(layout.size_bytes[0]), 0.0)
    work = _Write(content, layout, output.create(file.size_bytes), reporter)
    workers = min(default_workers(), _STREAM_WORKERS if work.streams else MOST_WORKERS)
    (index,) = planned_shards([file], [work.literals], place.version)
    chunks = cut(index, PlannedReader(file, work.literals))  # as a reader of the finished file cuts them
    most = max(_WAITING_BYTES // max((chunk.end - chunk.start for chunk in chunks), default=1), 1)
    reporter.start("saving", file.size_bytes)
    pieces = work.pieces(chunks)
    done = [chunk for some in run_parallel(work.write, pieces, workers, most=min(most, 3 * workers)) for chunk in some]
    for stream in work.streams:
        stream.finish()
    output.written()  # before the last sums
    run_all(lambda task: task(), work.sums(), workers)
    names = [variable.placed.name for variable in content.variables]
    return ShardNote(
        run,
        tuple(done),
        {name: as_bytes(sums).data for name, sums in work.sketch.variable_sums(names)},
        {name: as_bytes(sums).data for name, sums in work.sketch.tables.items()},
    )


_ChunkRun = tuple[list[Chunk], memoryview | None]
"""Consecutive chunks of the shard; the second has their bytes where these came in batches."""


class _RowStream:
    """The values of a table that come in batches, as one stream of bytes; they are sketched as they come."""

    def __init__(self, table: StreamedTable, sketch: ContentSketch) -> None:
        self._name = table.info.name
        self._values = _sketched(table, sketch)
        self._left = memoryview(b"")

    def read(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield the next values, as many as there are bytes from start to end."""
        missing = end - start
        while missing:
            self._left = self._left or next(self._values, self._left)
            if not self._left:
                raise EdlCkptError(f"table {self._name!r}: its batches ended early")
            part, self._left = self._left[:missing], self._left[missing:]
            missing -= len(part)
            yield part

    def finish(self) -> None:
        """Take the rest, which has no values: it must end, and with the rows that were counted."""
        deque(self._values, maxlen=0)


def _sketched(table: StreamedTable, sketch: ContentSketch) -> Iterator[memoryview]:
    for ids, values in table.read():
        _sketch_rows(sketch, table, ids, values)
        if values.size:
            yield values.reshape(-1).data


def _sketch_rows(sketch: ContentSketch, table: TableContent, ids: bulk.I64, values: bulk.U8) -> None:
    step = max(_ROWS_BYTES // max(table.row_bytes, 1), 1)
    for start in range(0, len(ids), step):
        sketch.add_rows(table.info.name, ids[start : start + step], values[start : start + step])


class _Write:
    """One pass over the content of a shard."""

    def __init__(self, content: ServerContent, layout: VersionLayout, sink: Sink, reporter: Reporter) -> None:
        self.sketch = ContentSketch()
        self._content = content
        self._sink = sink
        self._reporter = reporter
        self.streams: list[_RowStream] = []
        """The tables that come in batches; what is left of each must be taken at the end."""
        self.literals = layout.literals(0)
        regions = [*starmap(_memory_region, self.literals), *self._all_regions(layout)]
        self._regions = sorted((r for r in regions if r.start < r.end), key=lambda r: r.start)
        self._starts = [region.start for region in self._regions]

    def _all_regions(self, layout: VersionLayout) -> Iterator[_Region]:
        for variable in self._content.variables:
            yield _memory_region(layout.dense_at(variable.placed.name)[1], variable.data.data)
        for table in self._content.tables:
            start = int(layout.values_at(table.info.name)[0])
            if isinstance(table, MemoryTable):
                yield _memory_region(start, table.values.reshape(-1).data)
            elif isinstance(table, StreamedTable):
                stream = _RowStream(table, self.sketch)
                self.streams.append(stream)
                yield _Region(start, start + table.rows * table.row_bytes, stream.read, in_batches=True)
            yield _id_region(int(layout.ids_at(table.info.name)[0]), table)

    def pieces(self, chunks: Sequence[Chunk]) -> Iterator[_ChunkRun]:
        """Yield the shard in pieces, from the first byte to the last."""
        for some in batches(chunks):
            start, end = some[0].start, some[-1].end
            in_batches = any(region.in_batches for region, _, _ in self._parts(start, end))
            yield some, self._copied(start, end) if in_batches else None

    def _parts(self, start: int, end: int) -> Iterator[tuple[_Region, int, int]]:
        """Yield the regions of [start, end), each with the part of it that is in there."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        for region in self._regions[first : bisect_left(self._starts, end)]:
            begin, stop = max(region.start, start), min(region.end, end)
            if begin < stop:
                yield region, begin, stop

    def _buffers(self, start: int, end: int) -> Iterator[memoryview]:
        for region, begin, stop in self._parts(start, end):
            yield from region.read(begin, stop)

    def _copied(self, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of the shard, each batch of them released as soon as it is copied."""
        data, done = memoryview(bytearray(end - start)), 0
        for part in self._buffers(start, end):
            data[done : done + len(part)] = part
            done += len(part)
        return data

    def write(self, piece: _ChunkRun) -> list[Chunk]:
        """Write a piece; return its chunks with their checksums."""
        done: list[Chunk] = []
        chunks, data = piece
        first = chunks[0].start
        for chunk in chunks:
            total, offset = xxhash.xxh3_128(), chunk.start
            copied = None if data is None else [data[chunk.start - first : chunk.end - first]]
            for part in copied or self._buffers(chunk.start, chunk.end):
                total.update(part)
                self._sink.write(offset, part)
                offset += len(part)
            done.append(chunk._replace(sum=total.hexdigest()))
        self._reporter.advance(chunks[-1].end - first)
        return done

    def sums(self) -> Iterator[Callable[[], None]]:
        """Yield what is left to do: the search for ids that occur twice, and sums, of all that is in memory."""
        yield self._check_unique
        for variable in self._content.variables:
            name, data = variable.placed.name, variable.data
            for start in range(0, max(len(data), 1), PIECE_BYTES):
                yield partial(self.sketch.add_dense, name, len(data), start, data[start : start + PIECE_BYTES])
        for table in self._content.tables:
            if isinstance(table, MemoryTable):
                step = max(8 * _ROWS_BYTES // max(table.row_bytes, 1), 1)
                for start in range(0, table.rows, step):
                    stop = min(start + step, table.rows)
                    yield partial(_sketch_rows, self.sketch, table, table.ids(start, stop), table.values[start:stop])

    def _check_unique(self) -> None:
        for table in self._content.tables:  # one after the other: each takes memory
            table.check_unique()


def _memory_region(start: int, data: memoryview) -> _Region:
    return _Region(start, start + len(data), lambda a, b: [data[a - start : b - start]])


def _id_region(start: int, table: TableContent) -> _Region:
    """Return the region of a table's ids: varints, encoded block by block when they are written."""
    ends = start + np.cumsum(table.block_bytes)
    starts = ends - table.block_bytes

    def read(begin: int, end: int) -> Iterator[memoryview]:
        first, last = np.searchsorted(ends, begin, side="right"), np.searchsorted(starts, end)
        for block in range(first, last):
            data, offset = bulk.encode_varints(table.block(block)), int(starts[block])
            yield data[max(begin - offset, 0) : end - offset].data

    return _Region(start, start + int(table.block_bytes.sum()), read)
