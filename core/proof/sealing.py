"""The chunks of a seal and their checksums, and comparing the bytes of a version with them.

Where other work reads the bytes, each is read once, for its values and for its checksum. The pieces of workers arrive
in any order, while a checksum needs the bytes of its chunk in their order. What comes too early is copied and waits.
Bytes that did not come are read at the end.
"""

from __future__ import annotations

import logging
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from edl_ckpt.core.base.columns import numbers_of
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import near, together
from edl_ckpt.core.base.parallel import Advance, run_all, run_parallel
from edl_ckpt.core.model.seals import Chunk, PackedChunks, Seal, SealedShard, now_text
from edl_ckpt.core.model.tables import Encoding, Extent, ShardIndex
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl.target import Literals
from edl_ckpt.core.state.seal import number_chunks
from edl_ckpt.core.storage.interface import RangeReader

CHUNK_BYTES: Final = 4 << 20
"""The most bytes of a chunk of a version of up to a TiB, and what is read at a time for the chunks of a larger one."""
MOST_CHUNKS: Final = 1 << 18
"""So many chunks have a seal of about 25 MB."""
MOST_BYTES: Final = 32 << 20
"""The most bytes that the chunks of a version take in a seal or a journal, of which no more than 64 MiB are read.

The rest is for what stands beside them: at most 100 bytes for each of 65,535 shards in a seal, and in the journal of an
upload another 300 for each, with a checksum of each chunk once more.
"""
_CHUNK_TEXT_BYTES: Final = 48
"""The bytes of a chunk in a seal without its kind, its name and its numbers."""
_UNKNOWN: Final = ("", "")
"""The kind and the name of bytes of which neither is known."""
TASK_CHUNKS: Final = 1024
"""Chunks of one task: their checksums are a small result."""
LOG: Final = logging.getLogger("edl_ckpt")


class Mismatch(NamedTuple):
    """A chunk of a shard whose checksum is not that of the seal."""

    shard: str
    chunk: Chunk


def chunk_bytes(size_bytes: int) -> int:
    """Return the most bytes of a chunk of a version of a size: 4 MiB, doubled for each doubling beyond a TiB.

    >>> [chunk_bytes(size << 40) >> 20 for size in (1, 2, 3, 10)]
    [4, 8, 16, 64]
    """
    wanted = max(-(-size_bytes // MOST_CHUNKS), CHUNK_BYTES)
    return 1 << (wanted - 1).bit_length()


def cut(shard: ShardIndex, reader: RangeReader, file: int = 0) -> PackedChunks:
    """Return the chunks of a file of a shard, without checksums: each field of the Model message begins one.

    Where a file has no such fields, each extent begins one. One shard alone shows how many there are, and all are taken
    for equal. Where chunks are large, ids begin one too: rows and ids of a table are read one after the other, and
    neither waits for the other. Where a seal of all shards would be too large to be read again, small fields that
    follow each other are one chunk.
    """
    step = chunk_bytes(reader.size_bytes * max(shard.file.ps_num, 1))
    ids = sorted(run.start for entry in shard.tables for run in entry.ids[:1]) if step > CHUNK_BYTES else []
    edges, of = _edges_of_fields(shard) if shard.edges else _edges_of_extents(shard, file)
    if len(edges) * shard.file.ps_num > MOST_CHUNKS:
        edges = _without_infos(edges, of)
    most = MOST_BYTES // max(shard.file.ps_num, 1)
    chunks = _chunks(edges, of, ids, reader.size_bytes, step)
    if _text_bytes(chunks) <= most:
        return chunks
    join = max(reader.size_bytes // len(chunks), 1)
    while join < reader.size_bytes:
        join = 1 << join.bit_length()
        own = dict(of)
        joined = _joined(edges, own, reader.size_bytes, join)
        chunks = _chunks(joined, own, ids, reader.size_bytes, max(step, join))
        if _text_bytes(chunks) <= most:
            break
    else:  # names as long as the rest of a seal
        chunks = PackedChunks([Chunk("", "", 0, 0, reader.size_bytes)], ())
    return PackedChunks(number_chunks(chunks.rows()), ())


def _edges_of_fields(shard: ShardIndex) -> tuple[Sequence[int], dict[int, tuple[str, str]]]:
    """Return where the fields of a shard begin, and the kinds and names of those that are known."""
    of: dict[int, tuple[str, str]] = {}
    starts = set(shard.edges)
    for kind, entries in (("info", shard.infos), ("variable", shard.variables), ("table", shard.tables)):
        for entry in entries:
            at = entry.offset
            of[at if at in starts else shard.edges[bisect_right(shard.edges, at) - 1]] = (kind, entry.name)
    return shard.edges, of


def _edges_of_extents(shard: ShardIndex, file: int) -> tuple[Sequence[int], dict[int, tuple[str, str]]]:
    """Return the same of the extents in a file; gathered rows count where their columns are."""
    files = len(shard.file.files)

    def places(values: Extent) -> Sequence[Extent]:
        rows = values.file - files
        return [values] if rows < 0 else [box.extent for box in shard.gathered[rows].boxes]

    extents: list[tuple[str, str, Extent]] = []
    for variable in shard.variables:
        kind = "item" if variable.is_item else "variable"
        extents += [(kind, variable.name, extent) for extent in places(variable.values)]
    for entry in shard.tables:
        extents += [("table", entry.name, extent) for extent in (*places(entry.values), *entry.ids)]
    own = [each for each in extents if each[2].file == file and each[2].size_bytes]
    of = {extent.start: (kind, name) for kind, name, extent in own}
    return sorted({0, *of}), of


def _chunks(
    edges: Sequence[int], of: Mapping[int, tuple[str, str]], ids: Sequence[int], size_bytes: int, step: int
) -> PackedChunks:
    """Return the chunks that begin at edges, and at each `step` bytes behind them."""
    starts = np.array(edges, np.int64)
    sizes = np.diff(starts, append=size_bytes)
    if len(edges) and sizes.min() > 0 and sizes.max() <= step:  # as in nearly all shards of many small tables
        kinds, names = zip(*[of.get(start, _UNKNOWN) for start in edges], strict=True)
        ends = array("q", (starts + sizes).tobytes())
        return PackedChunks.of_columns(kinds, names, array("q", starts.tobytes()), ends)
    chunks: list[Chunk] = []
    for start, end in pairwise([*edges, size_bytes]):
        kind, name = of.get(start, _UNKNOWN)
        inside = ids[bisect_right(ids, start) : bisect_left(ids, end)]
        parts = (range(one, two, step) for one, two in pairwise([start, *inside, end]))
        bounds = [*chain.from_iterable(parts), end]
        chunks += [Chunk(kind, name, number, *two) for number, two in enumerate(pairwise(bounds))]
    return PackedChunks(chunks, ())


def _text_bytes(chunks: PackedChunks) -> int:
    """Return a bound of the bytes of chunks as ASCII JSON."""
    widest = 2 * len(str(chunks.ends[-1])) if chunks else 0
    widths = {name: len(encode_basestring_ascii(name)) for name in set(chunks.names)}
    own = sum(map(len, chunks.kinds)) + sum(map(widths.__getitem__, chunks.names))
    return own + len(chunks) * (_CHUNK_TEXT_BYTES + widest)


def _joined(edges: Sequence[int], of: dict[int, tuple[str, str]], size_bytes: int, most_bytes: int) -> list[int]:
    """Return the edges of coarser chunks: fields that follow each other are one, without a name, up to some bytes."""
    kept: list[int] = []
    for start, end in pairwise([*edges, size_bytes]):
        if kept and end - kept[-1] <= most_bytes:
            of[kept[-1]] = ("", "")
        else:
            kept.append(start)
    return kept


def tensors_of(chunk: Chunk, shard: ShardIndex | None) -> str:
    """Return in words the variable or table that a chunk is of, or those that begin in it, as far as they are known."""
    if chunk.kind:
        return f"{chunk.kind} {chunk.name!r}"
    of_kinds = () if shard is None else (("variable", shard.variables), ("table", shard.tables))
    known = ((entry.offset, kind, entry.name) for kind, entries in of_kinds for entry in entries)
    found = [each for each in known if chunk.start <= each[0] < chunk.end]
    if not found:
        return "the header"
    _, kind, name = min(found)
    return f"{kind} {name!r}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def _without_infos(edges: Sequence[int], of: dict[int, tuple[str, str]]) -> list[int]:
    """Return the edges of the chunks of a shard of thousands of tables: infos that follow each other are one chunk."""
    kept: list[int] = []
    last = "none"
    for at in edges:
        kind, _ = of.get(at, ("", ""))
        if kind == "info":
            kind, of[at] = "", ("", "")
            if last == "":
                continue
        kept.append(at)
        last = kind
    return kept


def sums_of(reader: RangeReader, chunks: Iterable[Chunk], *, workers: int = 1) -> list[Chunk]:
    """Return chunks of a file with the checksums of its present bytes, in their order."""

    def add(task: tuple[int, int, list[Chunk]]) -> list[Chunk]:
        start, end, some = task
        if end - start > CHUNK_BYTES:
            return [_sum_of_large(reader, some[0])]
        data = reader.view(start, end - start)
        if data is None:
            buffer = np.empty(end - start, np.uint8)
            reader.read_into(start, buffer.data)
            data = buffer.data
        return [chunk._replace(sum=checksum(data[chunk.start - start : chunk.end - start])) for chunk in some]

    tasks = near(chunks, lambda chunk: (chunk.start, chunk.end), CHUNK_BYTES, CHUNK_BYTES)
    return list(chain.from_iterable(run_parallel(add, tasks, workers)))


def _sum_of_large(reader: RangeReader, chunk: Chunk) -> Chunk:
    """Return a chunk with the checksum of its present bytes, of which a few are read at a time."""
    total, buffer = xxhash.xxh3_128(), np.empty(CHUNK_BYTES, np.uint8)
    for start in range(chunk.start, chunk.end, CHUNK_BYTES):
        some = buffer[: min(CHUNK_BYTES, chunk.end - start)].data
        reader.read_into(start, some)
        total.update(some)
    return chunk._replace(sum=total.hexdigest())


def batches(
    chunks: Iterable[Chunk], batch_bytes: int = CHUNK_BYTES, *, most: int = sys.maxsize
) -> Iterator[list[Chunk]]:
    """Return groups of `most` consecutive chunks, each of about `batch_bytes`: small chunks are read together."""
    return together(((chunk, chunk.end - chunk.start) for chunk in chunks), batch_bytes, most=most)


def checksum(data: memoryview | bytes) -> str:
    """Return the XXH3-128 of bytes in hex.

    >>> checksum(b"")
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(data)


def check_chunks(seal: Seal, readers: Mapping[str, RangeReader], *, workers: int) -> Iterator[Mismatch]:
    """Yield every chunk of a seal that does not match its shard; `readers` are the shards by file name.

    Shards of another size than in the seal are passed over.
    """
    for shard in comparable(seal, readers):
        found = sums_of(readers[shard.name], shard.chunks, workers=workers)
        for chunk, now in zip(shard.chunks, found, strict=True):
            if chunk != now and not rereads_correctly(readers[shard.name], chunk):
                yield Mismatch(shard.name, chunk)


def comparable(seal: Seal, readers: Mapping[str, RangeReader]) -> list[SealedShard]:
    """Return the shards of a seal that are there with the sealed size."""
    return [s for s in seal.shards if s.name in readers and readers[s.name].size_bytes == s.size_bytes]


def rereads_correctly(reader: RangeReader, chunk: Chunk) -> bool:
    """Read a chunk once more; True when it matches the seal now: a network or a disk may damage a single read."""
    (found,) = sums_of(reader, [chunk])
    if found == chunk:
        LOG.info(
            "%s: bytes %d to %d were damaged in one read, and correct in the next", reader.path, chunk.start, chunk.end
        )
    return found == chunk


class _Chunks(NamedTuple):
    """The chunks [first, last) of a file, by its number in the seal."""

    file: int
    first: int
    last: int


class _CutCheckpoint(CheckpointHolder):
    """An opened checkpoint with the chunks of its files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._places = [(shard, number) for shard in checkpoint.shards for number in range(len(shard.file.files))]
        self.readers = [checkpoint.files[shard.file.files[number].path] for shard, number in self._places]
        """What reads the files of the seal, in its order."""
        self.chunks = cache(self._chunks)

    def _chunks(self, number: int) -> Sequence[Chunk]:
        """Return the chunks of a file, without checksums."""
        shard, file = self._places[number]
        return cut(shard, self.readers[number], file)


def _seal(opened: _CutCheckpoint, task: _Chunks, advance: Advance) -> list[str]:
    """Return the checksums of some chunks."""
    chunks = opened.chunks(task.file)[task.first : task.last]
    done = sums_of(opened.readers[task.file], chunks)
    advance(chunks[-1].end - chunks[0].start)
    return [chunk.sum for chunk in done]


def make_seal(checkpoint: Checkpoint, fingerprint: str, job: Job) -> Seal:
    """Read every byte of an opened version once and return its seal."""
    total = sum(file.size_bytes for shard in checkpoint.shards for file in shard.file.files)
    job.reporter.start("sealing", total)
    opened = _CutCheckpoint(checkpoint)
    cuts = [opened.chunks(number) for number in range(len(opened.readers))]
    tasks = [
        task for number, chunks in enumerate(cuts) for task in _tasks(number, chunks, job.executor.task_bytes(total))
    ]
    done: list[list[Chunk]] = [[] for _ in cuts]
    work = FunctionWork(HeldValue(CheckpointValue.of(checkpoint), _CutCheckpoint), _seal)
    with job.run(work, opened, tasks) as results:
        for task, sums in zip(tasks, results, strict=True):
            own = cuts[task.file][task.first : task.last]
            done[task.file] += [chunk._replace(sum=text) for chunk, text in zip(own, sums, strict=True)]
    files, name_of = zip(opened.readers, done, strict=True), checkpoint.version.name_of
    shards = tuple(SealedShard(name_of(file.path), file.size_bytes, PackedChunks(some)) for file, some in files)
    version = checkpoint.version
    key = version.key if version.has_place_for_seal else version.version
    return Seal(key, fingerprint, shards, now_text())


def _tasks(file: int, chunks: Sequence[Chunk], task_bytes: int) -> Iterator[_Chunks]:
    """Yield the chunks of a file in tasks: small chunks are read together."""
    last = 0
    for some in batches(chunks, max(task_bytes, CHUNK_BYTES), most=TASK_CHUNKS):
        first, last = last, last + len(some)
        yield _Chunks(file, first, last)


WAITING_BYTES: Final = 64 << 20
"""The most bytes that wait for those before them; chunks beyond that are read again."""
_LEFT_OUT: Final = (Encoding.TAGGED, Encoding.ROWS)
"""Ids that are summed with the framing bytes between values, and those that are stored nowhere."""
_GAP_BYTES: Final = 256 << 10
"""The largest part between values and ids that is read for the sums alone."""


@dataclass(slots=True)
class _Arriving:
    """One chunk, of which the bytes up to `at` have come."""

    at: int
    sum: Any = field(default_factory=xxhash.xxh3_128)
    early: dict[int, bytes] = field(default_factory=dict)
    is_lost: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class ChunkSums:
    """The checksums of the chunks of several files, by their readers; several threads add bytes."""

    def __init__(
        self,
        files: Iterable[tuple[RangeReader, Sequence[Chunk]]],
        literals: Mapping[str, Literals] | None = None,
    ) -> None:
        """Take files with their chunks; `literals` are what must stand in them besides values and ids, by path."""
        self._literals = literals or {}
        self._compared = dict.fromkeys(self._literals, 0)
        """How many bytes of the literals were compared."""
        self._files = {reader.path: (reader, _without_sums(chunks)) for reader, chunks in files}
        self._whole = {path: [""] * len(chunks) for path, (_, chunks) in self._files.items()}
        """The checksums of chunks that came in one part."""
        self._arriving: dict[str, dict[int, _Arriving]] = {path: {} for path in self._files}
        """The chunks that come in several parts, by their numbers."""
        self._waiting = 0
        self._lock = threading.Lock()

    def add(self, reader: RangeReader, offset: int, data: memoryview | bytes) -> None:
        """Add bytes of a file, in any order; they are copied when they are too early.

        Raises CorruptError for bytes that must be others.
        """
        view = memoryview(data)
        if reader.path in self._literals:
            self._compare(reader.path, offset, view)
        if reader.path not in self._files:
            return
        chunks = self._files[reader.path][1]
        whole = self._whole[reader.path]
        arriving = self._arriving[reader.path]
        end = offset + len(view)
        some = self._among(reader.path, offset, end)
        bounds = slice(some.start, some.stop)
        for number, start, stop in zip(some, chunks.starts[bounds], chunks.ends[bounds], strict=True):
            if offset <= start and stop <= end and number not in arriving:  # as nearly all of small tables
                whole[number] = whole[number] or checksum(view[start - offset : stop - offset])
                continue
            part = view[max(start, offset) - offset : min(stop, end) - offset]
            state = self._state(reader.path, number)
            with state.lock:
                self._take(state, stop, max(start, offset), part)

    def _compare(self, path: str, offset: int, view: memoryview) -> None:
        """Compare bytes with the literals of their file."""
        count, wrong = self._literals[path].differing(offset, np.frombuffer(view, np.uint8))
        if wrong >= 0:
            raise CorruptError("a byte is not the one that was written", path=path, offset=wrong)
        with self._lock:
            self._compared[path] += count

    def bounds(self, numbers: Mapping[str, int]) -> dict[int, npt.NDArray[np.int64]]:
        """Return where the chunks of files begin and end, int64 [chunks, 2], by the number of each path."""
        return {
            numbers[path]: np.stack([np.array(chunks.starts, np.int64), np.array(chunks.ends, np.int64)], 1)
            for path, (_, chunks) in self._files.items()
            if path in numbers
        }

    def take(self, path: str, sums: Mapping[int, str]) -> None:
        """Take the checksums of chunks that another process has summed up, by their numbers in the file."""
        for number, text in sums.items():
            self._whole[path][number] = text

    def _state(self, path: str, number: int) -> _Arriving:
        """Return what is known of a chunk that arrives in parts."""
        with self._lock:
            states = self._arriving[path]
            if number not in states:
                states[number] = _Arriving(self._files[path][1].starts[number])
            return states[number]

    def _among(self, path: str, start: int, end: int) -> range:
        """Return the numbers of the chunks that have some of the bytes [start, end) of a file."""
        chunks = self._files[path][1]
        first = max(bisect_right(chunks.starts, start) - 1, 0)
        if first < len(chunks) and chunks.ends[first] <= start:
            first += 1
        return range(first, bisect_left(chunks.starts, end, first))

    def _take(self, state: _Arriving, stop: int, start: int, part: memoryview) -> None:
        """Add bytes of a chunk that ends at `stop`."""
        if state.is_lost or start < state.at:  # what came twice is passed over
            return
        if start > state.at:
            if start in state.early:
                return
            if self._count(len(part)) <= WAITING_BYTES:
                state.early[start] = bytes(part)
                return
            self._count(-len(part))
            state.is_lost = True
            self._drop(state)
            return
        state.sum.update(part)
        state.at += len(part)
        while state.early and (early := state.early.pop(state.at, None)) is not None:
            state.sum.update(early)
            state.at += len(early)
            self._count(-len(early))
        if state.at == stop:
            self._drop(state)

    def _count(self, size: int) -> int:
        with self._lock:
            self._waiting += size
            return self._waiting

    def _complete(self, reader: RangeReader, state: _Arriving, chunk: Chunk) -> bool:
        """Read the bytes of a chunk that did not come; return whether its sum has all of them now."""
        while not state.is_lost and state.at < chunk.end:
            until = min((start for start in state.early if start > state.at), default=chunk.end)
            until = min(until, state.at + CHUNK_BYTES)
            self._take(state, chunk.end, state.at, memoryview(reader.read(state.at, until - state.at)))
        return state.at == chunk.end

    def _drop(self, state: _Arriving) -> None:
        self._count(-sum(map(len, state.early.values())))
        state.early.clear()

    def add_rest(
        self, checkpoint: Checkpoint, others: Mapping[int, Sequence[tuple[int, int]]], *, workers: int
    ) -> None:
        """Read and add what lies between values and ids; call it first, so that nothing has to wait for it.

        `others` are parts of each shard that will be added too, with what is between the values and ids in them.
        """

        def add(place: tuple[ShardIndex, int]) -> None:
            shard, number = place
            reader = checkpoint.files[shard.file.files[number].path]
            read_too = () if number else others.get(shard.file.ps_id, ())
            for start, end in _between(shard, number, reader.size_bytes, read_too):
                if end - start <= _GAP_BYTES or reader.path in self._literals:
                    for at in range(start, end, _GAP_BYTES):
                        self.add(reader, at, reader.read(at, min(_GAP_BYTES, end - at)))
                    continue
                for number in self._among(reader.path, start, end):
                    self._state(reader.path, number).is_lost = True

        places = ((shard, number) for shard in checkpoint.shards for number in range(len(shard.file.files)))
        run_all(add, places, workers)

    def finish(self, path: str, *, workers: int = 1) -> PackedChunks:
        """Return the chunks of a file with the checksums of its bytes; what did not come of them is read now."""
        reader, chunks = self._files[path]
        if path in self._literals and self._compared[path] != self._literals[path].size_bytes:
            raise CorruptError("not all bytes between values and ids were read back", path=path)
        found = list(self._whole[path])
        for number, state in self._arriving[path].items():
            if not found[number] and self._complete(reader, state, chunks[number]):
                found[number] = state.sum.hexdigest()
        rest = [number for number, total in enumerate(found) if not total]
        for number, chunk in zip(rest, sums_of(reader, map(chunks.__getitem__, rest), workers=workers), strict=True):
            found[number] = chunk.sum
        return chunks.with_sums(found)


def _without_sums(chunks: Sequence[Chunk]) -> PackedChunks:
    return chunks if isinstance(chunks, PackedChunks) else PackedChunks(chunks, ())


def _between(
    shard: ShardIndex, file: int, size_bytes: int, others: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file of a shard that are neither values nor packed ids, nor in the others."""
    extents = [variable.values for variable in shard.variables]
    extents += [table.values for table in shard.tables]
    extents += [run for table in shard.tables for run in table.ids if run.encoding not in _LEFT_OUT]
    of_file = numbers_of(extents, "file") == file
    bounds = np.array([(0, 0), *others, (size_bytes, size_bytes)], np.int64)  # with the begin and the end of the file
    starts = np.concatenate((bounds[:, 0], numbers_of(extents, "start")[of_file]))
    ends = np.concatenate((bounds[:, 1], numbers_of(extents, "end")[of_file]))
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.flatnonzero(reached[:-1] < starts[1:])
    yield from zip(reached[gaps].tolist(), starts[gaps + 1].tolist(), strict=True)
