"""Carrying chunks of a shard to its copy: each is read once, summed and written; here, or by other processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.sealing import CHUNK_BYTES, batches, checksum, rereads_correctly
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.errors import UnavailableError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.parallel import Advance
from edl_ckpt.core.state.seal import Chunk
from edl_ckpt.core.storage.interface import RangeReader, Sink

_spare = threading.local()


def carry(reader: RangeReader, chunks: Sequence[Chunk], sink: Sink) -> list[str]:
    """Copy chunks that follow each other; return the checksums of what was written.

    A chunk that differs from its known checksum is read once more.
    """
    start, end = chunks[0].start, chunks[-1].end
    if len(chunks) == 1 and end - start > 2 * CHUNK_BYTES:  # one of a version of terabytes
        return [_carry_large(reader, chunks[0], sink)]
    data = _buffer(end - start)
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
        data = _buffer(min(CHUNK_BYTES, chunk.end - start)).data
        reader.read_into(start, data)
        total.update(data)
        sink.write(start, data)
    if chunk.sum and total.hexdigest() != chunk.sum and rereads_correctly(reader, chunk):
        raise UnavailableError(
            f"bytes {chunk.start} to {chunk.end} were damaged in one read, and correct in the next",
            path=reader.path,
            hint="try again: the copy goes on where it was",
        )
    return total.hexdigest()


def _buffer(size: int) -> bulk.U8:
    """Return memory that this thread uses again for its next chunks: fresh memory costs more than the read."""
    if getattr(_spare, "data", None) is None or len(_spare.data) < size:
        _spare.data = np.empty(size, np.uint8)
    data: bulk.U8 = _spare.data[:size]
    return data


class Carried(NamedTuple):
    """A task for another process: chunks of a shard that follow each other, from the `first` on."""

    shard: int
    first: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class CarryWork:
    """The pass over a version as a work for other processes; a task writes to one shard, and answers with checksums."""

    source: CheckpointValue
    targets: StagedTargets
    batch_bytes: int

    def open(self) -> Checkpoint:
        """Open the source in another process."""
        return self.source.open()

    def do(self, opened: Checkpoint, task: Carried, advance: Advance) -> list[str]:
        """Copy the chunks of a task."""
        sums = []
        reader = opened.reader(opened.shards[task.shard])
        with self.targets.only(task.shard).opened([task.shard]) as files:
            for some in batches(task.chunks, self.batch_bytes):
                sums += carry(reader, some, files[task.shard])
                advance(some[-1].end - some[0].start)
        return sums
