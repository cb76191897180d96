"""Making a seal: a pass over every byte, whose tasks are chunks that follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.model.seals import Chunk, Seal
from edl_ckpt.core.proof.sealing import CHUNK_BYTES, batches, cut, seal_of_chunks, sealed_files, sums_of
from edl_ckpt.core.reading.picklable import CheckpointHolder, CheckpointValue, HeldValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.interface import RangeReader

MOST_CHUNKS: Final = 1024
"""Chunks of one task: their checksums are a small result."""


class _Chunks(NamedTuple):
    """The chunks [first, last) of a file, by its number in the seal."""

    file: int
    first: int
    last: int


class _CutCheckpoint(CheckpointHolder):
    """An opened checkpoint with the chunks of its files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._cuts: dict[int, list[Chunk]] = {}

    def reader(self, number: int) -> RangeReader:
        """Return what reads a file of the seal."""
        shard, file = sealed_files(self.checkpoint)[number]
        return self.checkpoint.files[shard.file.files[file].path]

    def chunks(self, number: int) -> Sequence[Chunk]:
        """Return the chunks of a file, without checksums."""
        if number not in self._cuts:
            shard, file = sealed_files(self.checkpoint)[number]
            self._cuts[number] = cut(shard, self.reader(number), file)
        return self._cuts[number]


def _seal(opened: _CutCheckpoint, task: _Chunks, advance: Advance) -> list[str]:
    """Return the checksums of some chunks."""
    chunks = opened.chunks(task.file)[task.first : task.last]
    done = sums_of(opened.reader(task.file), chunks)
    advance(chunks[-1].end - chunks[0].start)
    return [chunk.sum for chunk in done]


def make_seal(checkpoint: Checkpoint, fingerprint: str, job: Job) -> Seal:
    """Read every byte of an opened version once and return its seal."""
    total = sum(file.size_bytes for shard in checkpoint.shards for file in shard.file.files)
    job.reporter.start("sealing", total)
    opened = _CutCheckpoint(checkpoint)
    cuts = [opened.chunks(number) for number in range(len(sealed_files(checkpoint)))]
    tasks = [
        task for number, chunks in enumerate(cuts) for task in _tasks(number, chunks, job.executor.task_bytes(total))
    ]
    done: list[list[Chunk]] = [[] for _ in cuts]
    work = FunctionWork(HeldValue(CheckpointValue.of(checkpoint), _CutCheckpoint), _seal)
    with job.run(work, opened, tasks) as results:
        for task, sums in zip(tasks, results, strict=True):
            own = cuts[task.file][task.first : task.last]
            done[task.file] += [chunk._replace(sum=text) for chunk, text in zip(own, sums, strict=True)]
    return seal_of_chunks(checkpoint, fingerprint, done)


def _tasks(file: int, chunks: Sequence[Chunk], task_bytes: int) -> Iterator[_Chunks]:
    """Yield the chunks of a file in tasks: small chunks are read together."""
    last = 0
    for some in batches(chunks, max(task_bytes, CHUNK_BYTES), most=MOST_CHUNKS):
        first, last = last, last + len(some)
        yield _Chunks(file, first, last)
