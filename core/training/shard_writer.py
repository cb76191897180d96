"""Writing one shard in one pass: bytes go to their places, and checksums and sums for the fingerprint come along.

Arrays in memory are written as they are, in pieces that begin where the chunks of a seal begin, by a few threads.
Tables in batches are copied piece by piece, in the order in which they come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import xxhash

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import default_workers, run_all, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.seals import Chunk
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.proof.sealing import batches, cut
from edl_ckpt.core.reading.scan import PIECE_BYTES
from edl_ckpt.core.sources.elasticdl.target import Literals, PlannedReader, ShardLayout, lay_out_shard, planned_shards
from edl_ckpt.core.state.shard_note import ShardNote
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.training.content import (
    ID_BLOCK,
    DenseContent,
    MemoryTable,
    ShardContent,
    StreamedTable,
    TableContent,
)

MOST_WORKERS: Final = 4
"""Threads for a shard: a job has other work for its cores, and each takes memory for some ids."""
_STREAM_WORKERS: Final = 2
_WAITING_BYTES: Final = 24 << 20
"""The most bytes of chunks that are under way: those that came in batches are in memory."""
_ROWS_BYTES: Final = 1 << 20
"""Bytes of rows that are sketched at a time: about the L2 cache of a core."""

_Read = Callable[[int, int], Sequence[memoryview]]


@dataclass(frozen=True, slots=True)
class _Region:
    """Bytes [start, end) of the shard; `read` returns those of [a, b), and None stands for values that come once."""

    start: int
    end: int
    read: _Read | None
    stream: _RowStream | None = None


def lay_out(version: int, content: ShardContent) -> ShardLayout:
    """Return the layout of the shard with this content."""
    return lay_out_shard(
        version,
        [table.info for table in content.tables],
        [variable.placed for variable in content.variables],
        [table.placed for table in content.tables],
    )


def write_shard(
    content: ShardContent,
    layout: ShardLayout,
    sink: Sink,
    file: ShardFile,
    version: int,
    *,
    run: str,
    written: Callable[[], None] = lambda: None,
    reporter: Reporter = WARNINGS,
) -> ShardNote:
    """Write a shard, and return the note on it; `written` is called when the last byte is, before the last sums.

    `file` is the shard as it will be listed. Memory is at most 48 MiB, and a batch of a table that comes in batches; in
    a version of more than 6 TiB, a chunk of it instead.
    Raises CorruptError for an id that a table has twice, and UsageError for batches that were not the same twice.
    """
    streams = any(isinstance(table, StreamedTable) for table in content.tables)
    workers = min(default_workers(), _STREAM_WORKERS if streams else MOST_WORKERS)
    work = _Write(content, layout, sink, reporter)
    chunks = _cut(layout, file, version)
    most = max(_WAITING_BYTES // max((chunk.end - chunk.start for chunk in chunks), default=1), 1)
    reporter.start("saving", layout.size_bytes)
    pieces = work.pieces(chunks)
    done = [chunk for some in run_parallel(work.write, pieces, workers, most=min(most, 3 * workers)) for chunk in some]
    work.check_streams()
    written()
    run_all(lambda task: task(), work.sums(), workers)
    names = [variable.placed.name for variable in content.variables]
    return ShardNote(
        run,
        tuple(done),
        {name: _le(sums) for name, sums in work.sketch.variable_sums(names)},
        {name: _le(sums) for name, sums in work.sketch.tables.items()},
    )


def _le(sums: bulk.U32) -> memoryview:
    """Return the bytes of sums, little-endian, without a copy: a variable may have 64 KiB of them."""
    return np.ascontiguousarray(sums, "<u4").reshape(-1).view(np.uint8).data


def _cut(layout: ShardLayout, file: ShardFile, version: int) -> list[Chunk]:
    """Return the chunks of the shard as a reader of the finished file cuts them."""
    planned, literals = replace(file, size_bytes=layout.size_bytes), Literals.of(layout.between)
    (index,) = planned_shards([planned], [literals], version)
    return cut(index, PlannedReader(planned, literals))


@dataclass(slots=True)
class _ChunkRun:
    """Consecutive chunks of the shard; `data` has their bytes where these came in batches."""

    chunks: list[Chunk]
    data: bytearray | None = None


@dataclass(slots=True)
class _RowStream:
    """The values of a table that come in batches, as one stream of bytes; they are sketched as they come."""

    table: StreamedTable
    sketch: ContentSketch
    _rows: Iterator[tuple[bulk.I64, bulk.U8]] = field(init=False)
    _left: memoryview = field(default_factory=lambda: memoryview(b""))

    def __post_init__(self) -> None:
        self._rows = self.table.read()

    def fill(self, buffer: memoryview) -> None:
        """Fill the whole buffer with the next values."""
        done = 0
        while done < len(buffer):
            if not len(self._left):
                self._left = self._next()
            size = min(len(self._left), len(buffer) - done)
            buffer[done : done + size] = self._left[:size]
            self._left = self._left[size:]
            done += size

    def _next(self) -> memoryview:
        for ids, values in self._rows:
            _sketch_rows(self.sketch, self.table, ids, values)
            if values.size:
                return values.reshape(-1).data
        raise EdlCkptError(f"table {self.table.info.name!r}: its batches ended early")

    def finish(self) -> None:
        """Take the rest, which has no values: it must end, and with the rows that were counted."""
        for ids, values in self._rows:
            _sketch_rows(self.sketch, self.table, ids, values)


def _sketch_rows(sketch: ContentSketch, table: TableContent, ids: bulk.I64, values: bulk.U8) -> None:
    step = max(_ROWS_BYTES // max(table.row_bytes, 1), 1)
    for start in range(0, len(ids), step):
        sketch.add_rows(table.info.name, ids[start : start + step], values[start : start + step])


class _Write:
    """One pass over the content of a shard."""

    def __init__(self, content: ShardContent, layout: ShardLayout, sink: Sink, reporter: Reporter) -> None:
        self.sketch = ContentSketch()
        self._content = content
        self._sink = sink
        self._reporter = reporter
        regions = list(self._all_regions(layout))
        self._streams = [region.stream for region in regions if region.stream is not None]
        self._regions = sorted((r for r in regions if r.start < r.end), key=lambda region: region.start)
        self._starts = [region.start for region in self._regions]

    def _all_regions(self, layout: ShardLayout) -> Iterator[_Region]:
        for offset, data in layout.between:
            yield _memory_region(offset, memoryview(data))
        for variable in self._content.variables:
            yield _memory_region(layout.dense_at[variable.placed.name], variable.data.data)
        for table in self._content.tables:
            name = table.info.name
            if isinstance(table, MemoryTable):
                yield _memory_region(layout.values_at[name], table.values.reshape(-1).data)
            elif isinstance(table, StreamedTable):
                start = layout.values_at[name]
                stream = _RowStream(table, self.sketch)
                yield _Region(start, start + table.rows * table.row_bytes, None, stream)
            yield _id_region(layout.ids_at[name], table)

    def pieces(self, chunks: Sequence[Chunk]) -> Iterator[_ChunkRun]:
        """Yield the shard in pieces, from the first byte to the last."""
        for some in batches(chunks):
            piece = _ChunkRun(some)
            if any(region.stream for region, _, _ in self._parts(some[0].start, some[-1].end)):
                piece.data = self._collect(some[0].start, some[-1].end)
            yield piece

    def _parts(self, start: int, end: int) -> Iterator[tuple[_Region, int, int]]:
        """Yield the regions of [start, end), each with the part of it that is in there."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self._regions) and self._starts[at] < end:
            region = self._regions[at]
            begin, stop = max(region.start, start), min(region.end, end)
            if begin < stop:
                yield region, begin, stop
            at += 1

    def _collect(self, start: int, end: int) -> bytearray:
        data = bytearray(end - start)
        view = memoryview(data)
        for region, begin, stop in self._parts(start, end):
            if region.stream is not None:
                region.stream.fill(view[begin - start : stop - start])
            elif region.read is not None:
                at = begin - start
                for part in region.read(begin, stop):
                    view[at : at + len(part)] = part
                    at += len(part)
        return data

    def _buffers(self, start: int, end: int) -> Iterator[memoryview]:
        for region, begin, stop in self._parts(start, end):
            if region.read is not None:
                yield from region.read(begin, stop)

    def write(self, piece: _ChunkRun) -> list[Chunk]:
        """Write a piece; return its chunks with their checksums."""
        done: list[Chunk] = []
        first = piece.chunks[0].start
        for chunk in piece.chunks:
            total, at = xxhash.xxh3_128(), chunk.start
            if piece.data is not None:
                parts: Iterator[memoryview] = iter([memoryview(piece.data)[chunk.start - first : chunk.end - first]])
            else:
                parts = self._buffers(chunk.start, chunk.end)
            for part in parts:
                total.update(part)
                self._sink.write(at, part)
                at += len(part)
            done.append(chunk._replace(sum=total.hexdigest()))
        self._reporter.advance(piece.chunks[-1].end - first)
        return done

    def check_streams(self) -> None:
        """Take what is left of each table in batches: other rows than those that were counted are an error."""
        for stream in self._streams:
            stream.finish()

    def sums(self) -> Iterator[Callable[[], None]]:
        """Yield what is left to do: the search for ids that occur twice, and sums, of all that is in memory."""
        yield self._check_unique
        for variable in self._content.variables:
            yield from self._sums_of_variable(variable)
        for table in self._content.tables:
            if isinstance(table, MemoryTable):
                yield from self._sums_of_table(table)

    def _check_unique(self) -> None:
        for table in self._content.tables:  # one after the other: each takes memory
            table.check_unique()

    def _sums_of_variable(self, variable: DenseContent) -> Iterator[Callable[[], None]]:
        name, data = variable.placed.name, variable.data
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            part = data[start : start + PIECE_BYTES]
            yield partial(self.sketch.add_dense, name, len(data), start, part)

    def _sums_of_table(self, table: MemoryTable) -> Iterator[Callable[[], None]]:
        step = max(8 * _ROWS_BYTES // max(table.row_bytes, 1), 1)
        for start in range(0, table.rows, step):
            stop = min(start + step, table.rows)
            yield partial(_sketch_rows, self.sketch, table, table.ids(start, stop), table.values[start:stop])


def _memory_region(start: int, data: memoryview) -> _Region:
    return _Region(start, start + len(data), lambda a, b: [data[a - start : b - start]])


def _id_region(start: int, table: TableContent) -> _Region:
    """Return the region of a table's ids: varints, encoded block by block when they are written."""
    ends = np.cumsum(table.block_bytes)
    total = int(ends[-1]) if len(ends) else 0

    def read(a: int, b: int) -> list[memoryview]:
        parts: list[memoryview] = []
        at = a - start
        block = int(np.searchsorted(ends, at, side="right"))
        while at < b - start:
            begin = int(ends[block - 1]) if block else 0
            ids = table.ids(block * ID_BLOCK, min((block + 1) * ID_BLOCK, table.rows))
            data = bulk.encode_varints(ids)
            parts.append(data[at - begin : b - start - begin].data)
            at = int(ends[block])
            block += 1
        return parts

    return _Region(start, start + total, read)
