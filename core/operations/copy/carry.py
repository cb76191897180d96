"""Carrying chunks of a shard to its copy: each is read once, summed and written; here, or by other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import xxhash

from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.commit.interface import SharedTargets
from edl_ckpt.core.commit.sent_parts import Extent, Sending, SharedUploads, TargetPart, even_edges
from edl_ckpt.core.model.seals import Chunk
from edl_ckpt.core.proof.sealing import CHUNK_BYTES, TASK_CHUNKS, batches, checksum, rereads_correctly
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.interface import RangeReader, Sink

_memory = ThreadMemory()


def carry(reader: RangeReader, chunks: Sequence[Chunk], sink: Sink) -> list[str]:
    """Copy chunks that follow each other; return the checksums of what was written.

    A chunk that differs from its known checksum is read once more.
    """
    start, end = chunks[0].start, chunks[-1].end
    if len(chunks) == 1 and end - start > 2 * CHUNK_BYTES:  # one of a version of terabytes
        return [_carry_large(reader, chunks[0], sink)]
    data = _memory.take(end - start)
    reader.read_into(start, data.data)
    sums = []
    for chunk in chunks:
        inside = data[chunk.start - start : chunk.end - start]
        total = checksum(inside.data)
        if chunk.sum and total != chunk.sum and rereads_correctly(reader, chunk):
            reader.read_into(chunk.start, inside.data)
            total = checksum(inside.data)
        sums.append(total)
    sink.write(start, data.data)
    return sums


def _carry_large(reader: RangeReader, chunk: Chunk, sink: Sink) -> str:
    """Copy a chunk some bytes at a time; return the checksum of what was written.

    A part of an upload is written once, so what one damaged read has written cannot be written again: UnavailableError.
    """
    total = xxhash.xxh3_128()
    for start in range(chunk.start, chunk.end, CHUNK_BYTES):
        data = _memory.take(min(CHUNK_BYTES, chunk.end - start)).data
        reader.read_into(start, data)
        total.update(data)
        sink.write(start, data)
    if chunk.sum and total.hexdigest() != chunk.sum and rereads_correctly(reader, chunk):
        raise UnavailableError(
            f"bytes {chunk.start} to {chunk.end} were damaged in one read, and correct in the next",
            path=reader.path,
            hint="try again: the copy resumes",
        )
    return total.hexdigest()


class Carried(NamedTuple):
    """A task for another process: chunks of a file of a shard that follow each other, from the `first` on."""

    shard: int
    first: int
    chunks: tuple[Chunk, ...]
    extents: tuple[Extent, ...] = ()
    """The parts that they are, where the target is an upload."""


class CarriedSums(NamedTuple):
    """What a task answers: the checksums of its chunks, and the parts that it has sent."""

    chunks: list[str]
    parts: Sequence[TargetPart]


def tasks_of(targets: SharedTargets | None, shard: int, chunks: Sequence[Chunk], task_bytes: int) -> Iterator[Carried]:
    """Yield the tasks of a shard, each of about `task_bytes`; those of shared uploads have whole parts."""
    if not isinstance(targets, SharedUploads):
        first = 0
        for group in batches(chunks, task_bytes, most=TASK_CHUNKS):
            yield Carried(shard, first, tuple(group))
            first += len(group)
        return
    at = first = number = 0  # of the task
    edges = [0]
    for last, chunk in enumerate(chunks, 1):
        least = targets.least_part(shard)
        if chunk.end - edges[-1] < least and last < len(chunks):
            continue
        edges += even_edges(edges[-1], chunk.end, least)
        if chunk.end - at >= task_bytes or last - first >= TASK_CHUNKS or last == len(chunks):
            yield Carried(shard, first, tuple(chunks[first:last]), (Extent(shard, tuple(edges), number),))
            number += len(edges) - 1
            at = chunk.end
            first = last
            edges = [chunk.end]


def carry_task(
    opened: Sending[Checkpoint], task: Carried, advance: Advance, *, targets: SharedTargets, batch_bytes: int
) -> CarriedSums:
    """Copy the chunks of a task in another process; it writes to one shard, and answers with checksums."""
    sums = []
    reader = opened.source.files[opened.source.version.files[task.shard].path]
    with targets.only(task.shard).opened([task.shard], task.extents, opened.memory) as files:
        for some in batches(task.chunks, batch_bytes):
            sums += carry(reader, some, files[task.shard])
            advance(some[-1].end - some[0].start)
    return CarriedSums(sums, files.sent)
