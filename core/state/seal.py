"""What a version's bytes must be: a manifest of checksums beside its metadata, against which a deep verify looks.

`.edl-ckpt-0/meta-0/{version}.seal.json` holds the version's fingerprint and, for each shard, its size and the XXH3-128
of every chunk. Chunks are cut where variables and tables begin, and at most 4 MiB long, so that a mismatch names what
it lies in though the shard can no longer be parsed. Everything this tool writes is sealed; `verify --seal` seals what
others wrote. A seal finds damage, not malice: whoever may change shards may change the seal too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.state.metadata import read_document
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.storage.interface import Store

SEAL_SCHEMA: Final = "edl-ckpt/seal/1"
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


def now_text() -> str:
    """Return the time now as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def base_name(path: str) -> str:
    """Return the last part of a path or URL."""
    return path.rpartition("/")[2]


def differing_sizes(seal: Seal, version: Version) -> list[str]:
    """Return what is wrong with the names and sizes of a version's shards; nothing when they are as sealed."""
    held = {base_name(shard.path): shard.size_bytes for shard in version.shards}
    sealed = seal.sizes
    said = [f"{name} is of another set than what was sealed" for name in sorted(held.keys() - sealed.keys())]
    said += [f"{name} was sealed and is not there" for name in sorted(sealed.keys() - held.keys())]
    said += [
        f"{name} has {held[name]} bytes, {sealed[name]} when it was sealed"
        for name in sorted(held.keys() & sealed.keys())
        if held[name] != sealed[name]
    ]
    return said


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
