"""The chunks of a seal and their checksums, and comparing the bytes of a version with them."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from edl_ckpt.core.format.model import ShardIndex
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.seal import Chunk, Seal, SealedShard, base_name, now_text
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:
    from edl_ckpt.core.checkpoint.reader import Checkpoint


CHUNK_BYTES: Final = 4 << 20
LOG: Final = logging.getLogger("edl_ckpt")


class Mismatch(NamedTuple):
    """A chunk of a shard whose checksum is not that of the seal."""

    shard: str
    chunk: Chunk


def seal_of_chunks(checkpoint: Checkpoint, fingerprint: str, chunks: Iterable[Iterable[Chunk]]) -> Seal:
    """Return the seal of an opened version from the chunks of its shards, with their checksums."""
    readers = map(checkpoint.reader, checkpoint.shards)
    shards = [
        SealedShard(base_name(reader.path), reader.size_bytes, tuple(some))
        for reader, some in zip(readers, chunks, strict=True)
    ]
    number = checkpoint.version.version
    return Seal(number, fingerprint, tuple(shards), now_text())


def cut(shard: ShardIndex, reader: RangeReader) -> list[Chunk]:
    """Return the chunks of a shard, without checksums: each field of the Model message begins one."""
    of: dict[int, tuple[str, str]] = {}
    starts = set(shard.edges)
    for kind, entries in (("info", shard.infos), ("variable", shard.variables), ("table", shard.tables)):
        for entry in entries:
            at = entry.offset
            of[at if at in starts else shard.edges[bisect_right(shard.edges, at) - 1]] = (kind, entry.name)
    chunks: list[Chunk] = []
    for start, end in pairwise([*shard.edges, reader.size_bytes]):
        kind, name = of.get(start, ("", ""))
        for number, at in enumerate(range(start, end, CHUNK_BYTES)):
            chunks.append(Chunk(kind, name, number, at, min(at + CHUNK_BYTES, end)))
    return chunks


def sums_of(
    files: Sequence[tuple[RangeReader, Sequence[Chunk]]], *, workers: int, reporter: Reporter = SILENT
) -> list[list[Chunk]]:
    """Return the chunks of each file with the checksums of its present bytes, in their order."""
    import numpy as np

    def add(task: tuple[int, list[Chunk]]) -> tuple[int, list[Chunk]]:
        number, some = task
        reader, start, end = files[number][0], some[0].start, some[-1].end
        data = reader.view(start, end - start)
        if data is None:
            buffer = np.empty(end - start, np.uint8)
            reader.read_into(start, buffer.data)
            data = buffer.data
        reporter.advance(end - start)
        return number, [chunk._replace(sum=checksum(data[chunk.start - start : chunk.end - start])) for chunk in some]

    done: list[list[Chunk]] = [[] for _ in files]
    tasks = ((number, some) for number, (_, chunks) in enumerate(files) for some in batches(chunks))
    for number, some in run_parallel(add, tasks, workers):
        done[number] += some
    return done


def batches(
    chunks: Iterable[Chunk], batch_bytes: int = CHUNK_BYTES, *, most: int = sys.maxsize
) -> Iterator[list[Chunk]]:
    """Yield groups of `most` consecutive chunks, each of about `batch_bytes`: small chunks are read together."""
    some: list[Chunk] = []
    for chunk in chunks:
        if some and (chunk.end - some[0].start > batch_bytes or len(some) == most):
            yield some
            some = []
        some.append(chunk)
    if some:
        yield some


def checksum(data: memoryview | bytes) -> str:
    """Return the XXH3-128 of bytes in hex.

    >>> checksum(b"")
    '99aa06d3014798d86001c324468d497f'
    """
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def check_chunks(
    seal: Seal, readers: Mapping[str, RangeReader], *, workers: int, reporter: Reporter = SILENT
) -> Iterator[Mismatch]:
    """Yield every chunk of a seal that does not match its shard; `readers` are the shards by file name.

    Shards of another size than in the seal are passed over.
    """
    for shard in comparable(seal, readers):
        (found,) = sums_of([(readers[shard.name], shard.chunks)], workers=workers, reporter=reporter)
        for chunk, now in zip(shard.chunks, found, strict=True):
            if chunk != now and not rereads_correctly(readers[shard.name], chunk):
                yield Mismatch(shard.name, chunk)


def comparable(seal: Seal, readers: Mapping[str, RangeReader]) -> list[SealedShard]:
    """Return the shards of a seal that are there with the sealed size."""
    return [s for s in seal.shards if s.name in readers and readers[s.name].size_bytes == s.size_bytes]


def rereads_correctly(reader: RangeReader, chunk: Chunk) -> bool:
    """Read a chunk once more; True when it matches the seal now: a network or a disk may damage a single read."""
    ((found,),) = sums_of([(reader, [chunk])], workers=1)
    if found == chunk:
        LOG.info(
            "%s: bytes %d to %d were damaged in one read, and correct in the next", reader.path, chunk.start, chunk.end
        )
    return found == chunk
