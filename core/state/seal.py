"""Seals: the checksums of a version's bytes, kept beside its metadata, with which a deep verify compares them.

`.edl-ckpt-0/meta-0/{version}.seal.json` contains the version's fingerprint and, for each shard, its size and the
XXH3-128 of every chunk. Chunks begin where variables and tables begin, and are at most 4 MiB long. So a mismatch names
the damaged variable or table, even when the shard can no longer be parsed. edl-ckpt seals everything that it writes;
`verify --seal` seals the versions of other programs. A seal detects damage, not malice: a person who can change a shard
can change its seal too.
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
    """Bytes [start, end) of a shard, the tensor they belong to, and their checksum in hex; '' until it is known."""

    kind: str
    """'variable', 'table', 'info' (the description of a table) or '' for other bytes."""
    name: str
    number: int
    """The place among the chunks of the same kind and name, from 0."""
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
    """The checksums of a version, and the time when they were made (ISO 8601)."""

    version: int
    fingerprint: str
    shards: tuple[SealedShard, ...]
    sealed: str
    origin: str = ""
    """Of a copy: the digest of the files that it was copied from (`Version.files_digest`)."""

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
    """Return how the names and sizes of a version's shards differ from its seal; nothing when they match."""
    present = {base_name(shard.path): shard.size_bytes for shard in version.shards}
    sealed = seal.sizes
    faults = [f"{name} is not in the seal" for name in sorted(present.keys() - sealed.keys())]
    faults += [f"{name} is in the seal, but missing" for name in sorted(sealed.keys() - present.keys())]
    faults += [
        f"{name} has {present[name]} bytes; it had {sealed[name]} when it was sealed"
        for name in sorted(present.keys() & sealed.keys())
        if present[name] != sealed[name]
    ]
    return faults


def read_seal(store: Store, version: int) -> Seal | None:
    """Return a version's seal, None when it has none; UsageError when it is damaged."""
    document = read_document(store, seal_file(version))
    return None if document is None else parse_seal(document)


def seal_bytes(seal: Seal) -> bytes:
    """Return a seal as its file contains it; `parse_seal` is the inverse."""
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
    """Return a seal from its document; UsageError when it is damaged or has an unknown schema."""
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
