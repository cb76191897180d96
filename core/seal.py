"""What a version's bytes must be: a manifest of checksums beside its metadata, against which a deep verify looks.

`.edl-ckpt-0/meta-0/{version}.seal.json` holds the version's fingerprint and, for each shard, its size and the XXH3-128
of every chunk. Chunks are cut where variables and tables begin, and at most 4 MiB long, so that a mismatch names what
it lies in though the shard can no longer be parsed. Everything this tool writes is sealed; `verify --seal` seals what
others wrote. A seal finds damage, not malice: whoever may change shards may change the seal too.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.metadata import META_DIR, read_document
from edl_ckpt.core.model import ShardIndex, Version
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import SILENT, Progress
from edl_ckpt.core.store import RangeReader, Store

if TYPE_CHECKING:
    from edl_ckpt.core.reader import Checkpoint

SEAL_SCHEMA: Final = "edl-ckpt/seal/1"
CHUNK_BYTES: Final = 4 << 20
LOG: Final = logging.getLogger("edl_ckpt")
_SUM: Final = "xxh3-128"


class Chunk(NamedTuple):
    """Bytes [start, end) of a shard, what they are of, and their checksum in hex; '' until it is known."""

    kind: str
    """'variable', 'table', 'info' (of a table) or '' for the rest."""
    name: str
    number: int
    """Which chunk of the same thing, from 0."""
    start: int
    end: int
    sum: str = ""


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A shard's file name, its size, and its chunks from the first byte to the last."""

    name: str
    size_bytes: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """What is known of a version's bytes, and since when (ISO 8601)."""

    version: int
    fingerprint: str
    shards: tuple[SealedShard, ...]
    sealed: str
    origin: str = ""
    """Of a copy: which files it was copied from (`copying.identity`)."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each shard by its file name."""
        return {shard.name: shard.size_bytes for shard in self.shards}


class Mismatch(NamedTuple):
    """A chunk of a shard that is not what was sealed."""

    shard: str
    chunk: Chunk


def seal_file(version: int) -> str:
    """Return the path of a version's seal below its location.

    >>> seal_file(100)
    '.edl-ckpt-0/meta-0/100.seal.json'
    """
    return f"{META_DIR}/{version}.seal.json"


def make_seal(checkpoint: Checkpoint, fingerprint: str, *, workers: int, progress: Progress = SILENT) -> Seal:
    """Read every byte of an opened version once and return its seal."""
    progress.start("sealing", sum(shard.file.size_bytes for shard in checkpoint.shards))
    held = [(checkpoint.reader(shard), cut(shard, checkpoint.reader(shard))) for shard in checkpoint.shards]
    sums = sums_of(held, workers=workers, progress=progress)
    shards = [SealedShard(file_name(r.path), r.size_bytes, tuple(c)) for (r, _), c in zip(held, sums, strict=True)]
    number = checkpoint.version.version
    return Seal(number, fingerprint, tuple(shards), now_text())


def now_text() -> str:
    """Return the time now as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def file_name(path: str) -> str:
    """Return the last part of a path or URL."""
    return path.rpartition("/")[2]


def cut(shard: ShardIndex, reader: RangeReader) -> list[Chunk]:
    """Return the chunks of a shard, without checksums: each field of the Model message begins one."""
    from edl_ckpt.core.wire import Cursor

    edges = [field.offset for field in Cursor(reader).fields(0, reader.size_bytes)]
    of: dict[int, tuple[str, str]] = {}
    for kind, entries in (("info", shard.infos), ("variable", shard.variables), ("table", shard.tables)):
        for entry in entries:
            of[edges[bisect_right(edges, entry.offset) - 1]] = (kind, entry.name)
    chunks: list[Chunk] = []
    for start, end in pairwise([*edges, reader.size_bytes]):
        kind, name = of.get(start, ("", ""))
        chunks += [
            Chunk(kind, name, number, at, min(at + CHUNK_BYTES, end))
            for number, at in enumerate(range(start, end, CHUNK_BYTES))
        ]
    return chunks


def sums_of(
    held: Sequence[tuple[RangeReader, Sequence[Chunk]]], *, workers: int, progress: Progress = SILENT
) -> list[list[Chunk]]:
    """Return the chunks of each file with the checksums of what it holds there now, in their order."""
    import numpy as np

    def add(task: tuple[int, list[Chunk]]) -> tuple[int, list[Chunk]]:
        number, some = task
        reader, start, end = held[number][0], some[0].start, some[-1].end
        data = reader.view(start, end - start)
        if data is None:
            buffer = np.empty(end - start, np.uint8)
            reader.read_into(start, buffer.data)
            data = buffer.data
        progress.advance(end - start)
        return number, [chunk._replace(sum=checksum(data[chunk.start - start : chunk.end - start])) for chunk in some]

    done: list[list[Chunk]] = [[] for _ in held]
    tasks = ((number, some) for number, (_, chunks) in enumerate(held) for some in batches(chunks))
    for number, some in run_parallel(add, tasks, workers):
        done[number] += some
    return done


def batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Yield runs of chunks that follow each other, each of about CHUNK_BYTES: small ones are read together."""
    some: list[Chunk] = []
    for chunk in chunks:
        if some and chunk.end - some[0].start > CHUNK_BYTES:
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
    seal: Seal, readers: Mapping[str, RangeReader], *, workers: int, progress: Progress = SILENT
) -> Iterator[Mismatch]:
    """Yield every chunk of a seal that is not what a reader, by shard file name, finds; sizes must be right already."""
    for shard in seal.shards:
        if shard.name in readers and readers[shard.name].size_bytes == shard.size_bytes:
            (found,) = sums_of([(readers[shard.name], shard.chunks)], workers=workers, progress=progress)
            for held, now in zip(shard.chunks, found, strict=True):
                if held != now and not is_right_now(readers[shard.name], held):
                    yield Mismatch(shard.name, held)


def differing_sizes(seal: Seal, version: Version) -> list[str]:
    """Return what is wrong with the names and sizes of a version's shards; nothing when they are as sealed."""
    held = {file_name(shard.path): shard.size_bytes for shard in version.shards}
    sealed = seal.sizes
    said = [f"{name} is of another set than what was sealed" for name in sorted(held.keys() - sealed.keys())]
    said += [f"{name} was sealed and is not there" for name in sorted(sealed.keys() - held.keys())]
    said += [
        f"{name} has {held[name]} bytes, {sealed[name]} when it was sealed"
        for name in sorted(held.keys() & sealed.keys())
        if held[name] != sealed[name]
    ]
    return said


def is_right_now(reader: RangeReader, chunk: Chunk) -> bool:
    """Read a chunk once more and say whether it is what was sealed: a network may damage an answer, a disk a read."""
    ((found,),) = sums_of([(reader, [chunk])], workers=1)
    if found == chunk:
        LOG.info("read wrongly once, and rightly now: %s, bytes %d to %d", reader.path, chunk.start, chunk.end)
    return found == chunk


def read_seal(store: Store, version: int) -> Seal | None:
    """Return a version's seal, None when it has none; UsageError when it is damaged."""
    document = read_document(store, seal_file(version))
    return None if document is None else parse_seal(document)


def seal_bytes(seal: Seal) -> bytes:
    """Return a seal as its file has it; `parse_seal` is the other way."""
    shards = [
        {
            "name": shard.name,
            "size_bytes": shard.size_bytes,
            "chunks": [[c.kind, c.name, c.start, c.end, c.sum] for c in shard.chunks],
        }
        for shard in seal.shards
    ]
    head = {"schema": SEAL_SCHEMA, "version": seal.version, "fingerprint": seal.fingerprint, "sealed": seal.sealed}
    if seal.origin:
        head["origin"] = seal.origin
    document = {**head, "checksum": _SUM, "shards": shards}
    return (json.dumps(document, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def parse_seal(document: Mapping[str, Any]) -> Seal:
    """Return a seal from its document; UsageError when it is damaged, or of a kind that we do not know."""
    if document.get("schema") != SEAL_SCHEMA or document.get("checksum") != _SUM:
        raise UsageError(f"damaged seal: not {SEAL_SCHEMA} with {_SUM}")
    try:
        shards = tuple(
            SealedShard(str(s["name"]), int(s["size_bytes"]), tuple(_numbered(s["chunks"]))) for s in document["shards"]
        )
        number, origin = int(document["version"]), str(document.get("origin", ""))
        seal = Seal(number, str(document["fingerprint"]), shards, str(document["sealed"]), origin)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"damaged seal: {type(error).__name__} {error}") from None
    for shard in shards:
        edges = [0, *(c.end for c in shard.chunks)]
        if [c.start for c in shard.chunks] != edges[:-1] or edges[-1] != shard.size_bytes:
            raise UsageError(f"damaged seal: the chunks of {shard.name} do not cover it")
    return seal


def _numbered(rows: Iterable[Sequence[Any]]) -> Iterator[Chunk]:
    last, number = ("", "", 0), 0
    for kind, name, start, end, total in rows:
        if not 0 <= int(start) <= int(end):
            raise ValueError(f"chunk from {start} to {end}")
        number = number + 1 if (kind, name) == last[:2] and start == last[2] else 0
        last = (kind, name, end)
        yield Chunk(str(kind), str(name), number, int(start), int(end), str(total))
