"""The chunks of a seal and their checksums, and comparing the bytes of a version with them."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from json.encoder import encode_basestring_ascii
from typing import Final, NamedTuple

import numpy as np
import xxhash

from edl_ckpt.core.base.job import FunctionWork, Job, near, together
from edl_ckpt.core.base.parallel import Advance, run_parallel
from edl_ckpt.core.model.seals import Chunk, PackedChunks, Seal, SealedShard, now_text
from edl_ckpt.core.model.tables import Extent, ShardIndex
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.reader import Checkpoint
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


def cut(shard: ShardIndex, reader: RangeReader, file: int = 0) -> list[Chunk]:
    """Return the chunks of a file of a shard, without checksums: each field of the Model message begins one.

    Where a file has no such fields, each extent begins one. One shard alone shows how many there are, and all are taken
    for equal. Where chunks are large, ids begin one too:
    rows and ids of a table are read one after the other, and neither waits for the other. Where a seal of all shards
    would be too large to be read again, small fields that follow each other are one chunk.
    """
    step = chunk_bytes(reader.size_bytes * max(shard.file.ps_num, 1))
    ids = sorted(run.start for entry in shard.tables for run in entry.ids[:1]) if step > CHUNK_BYTES else []
    edges, of = _edges_of_fields(shard) if shard.edges else _edges_of_extents(shard, file)
    if len(edges) * shard.file.ps_num > MOST_CHUNKS:
        edges = _without_infos(edges, of)
    most = MOST_BYTES // max(shard.file.ps_num, 1)
    chunks = _chunks(edges, of, ids, reader.size_bytes, step)
    if _text_bytes(chunks, of) <= most:
        return chunks
    join = max(reader.size_bytes // len(chunks), 1)
    while join < reader.size_bytes:
        join = 1 << join.bit_length()
        own = dict(of)
        joined = _joined(edges, own, reader.size_bytes, join)
        chunks = _chunks(joined, own, ids, reader.size_bytes, max(step, join))
        if _text_bytes(chunks, own) <= most:
            break
    else:  # names as long as the rest of a seal
        chunks = [Chunk("", "", 0, 0, reader.size_bytes)]
    return list(number_chunks((kind, name, start, end, "") for kind, name, _, start, end, _ in chunks))


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
    extents: list[tuple[str, str, Extent]] = [("variable", entry.name, entry.values) for entry in shard.variables]
    for entry in shard.tables:
        rows = entry.values.file - files
        values = [entry.values] if rows < 0 else [box.extent for box in shard.gathered[rows].boxes]
        extents += [("table", entry.name, extent) for extent in (*values, *entry.ids)]
    own = [each for each in extents if each[2].file == file and each[2].size_bytes]
    of = {extent.start: (kind, name) for kind, name, extent in own}
    return sorted({0, *of}), of


def _chunks(
    edges: Sequence[int], of: Mapping[int, tuple[str, str]], ids: Sequence[int], size_bytes: int, step: int
) -> list[Chunk]:
    """Return the chunks that begin at edges, and at each `step` bytes behind them."""
    chunks: list[Chunk] = []
    for start, end in pairwise([*edges, size_bytes]):
        kind, name = of.get(start, ("", ""))
        inside = ids[bisect_right(ids, start) : bisect_left(ids, end)] if end - start > step else []
        parts = (range(one, two, step) for one, two in pairwise([start, *inside, end]))
        bounds = [*chain.from_iterable(parts), end]
        chunks += [Chunk(kind, name, number, *two) for number, two in enumerate(pairwise(bounds))]
    return chunks


def _text_bytes(chunks: Sequence[Chunk], of: Mapping[int, tuple[str, str]]) -> int:
    """Return a bound of the bytes of chunks as ASCII JSON."""
    widest = 2 * len(str(chunks[-1].end)) if chunks else 0
    names = {name: len(encode_basestring_ascii(name)) for _, name in of.values()}
    own = sum(len(chunk.kind) + names.get(chunk.name, 2) for chunk in chunks)
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
    return Seal(checkpoint.version.version, fingerprint, shards, now_text())


def _tasks(file: int, chunks: Sequence[Chunk], task_bytes: int) -> Iterator[_Chunks]:
    """Yield the chunks of a file in tasks: small chunks are read together."""
    last = 0
    for some in batches(chunks, max(task_bytes, CHUNK_BYTES), most=TASK_CHUNKS):
        first, last = last, last + len(some)
        yield _Chunks(file, first, last)
