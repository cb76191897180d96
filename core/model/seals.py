"""Seals: the checksums of the bytes of a version, cut into chunks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, overload

from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.model.versions import Version


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


class PackedChunks(Sequence[Chunk]):
    """The chunks of a shard, with their checksums, in a fifth of their memory; each is made when it is asked for."""

    __slots__ = ("_names", "_numbers", "_sums")

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._names: list[str] = []
        self._numbers = array("q")
        sums = bytearray()
        for kind, name, number, start, end, total in chunks:
            self._names += (kind, name)
            self._numbers.extend((number, start, end))
            sums += bytes.fromhex(total)
        self._sums = bytes(sums)

    def __repr__(self) -> str:
        return describe("PackedChunks", "", counted(len(self), "chunk"))

    def __len__(self) -> int:
        return len(self._names) // 2

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return tuple(self)[index]
        k = range(len(self))[index]
        kind, name = self._names[2 * k : 2 * k + 2]
        number, start, end = self._numbers[3 * k : 3 * k + 3]
        return Chunk(kind, name, number, start, end, self._sums[16 * k : 16 * k + 16].hex())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A shard's file name, its size, and its chunks from the first byte to the last."""

    name: str
    size_bytes: int
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class Override:
    """A decision to go on with `--force` although a version did not match its seal: when, who, which command, why."""

    when: str
    who: str
    command: str
    why: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The checksums of a version, and the time when they were made (ISO 8601)."""

    version: int
    fingerprint: str
    shards: tuple[SealedShard, ...]
    sealed: str
    origin: str = ""
    """Of a copy: the digest of the files that it was copied from (`Version.files_digest`)."""
    history: tuple[Override, ...] = ()
    """The decisions, the oldest first, that replaced seals of this content which did not match."""
    has_digest: bool = field(default=True, compare=False)
    """False for a seal of the first schema, which does not cover itself."""
    run: str = ""
    """Of a version that servers saved, each its own shard: the name of their run, '' when they gave none."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each shard by its file name."""
        return {shard.name: shard.size_bytes for shard in self.shards}


def now_text() -> str:
    """Return the time now as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_change(seal: Seal, version: Version) -> str:
    """Return how a version's files differ from its seal, in one sentence; '' when names and sizes match."""
    faults = differing_sizes(seal, version)
    if not faults:
        return ""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    newest = max((shard.modified for shard in version.shards), default=0.0)
    changed = datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
    return f"{faults[0]}{more}; it was sealed at {seal.sealed}, and its shards were last changed at {changed}"


def differing_sizes(seal: Seal, version: Version) -> list[str]:
    """Return how the names and sizes of a version's shards differ from its seal; nothing when they match."""
    present = version.sizes
    sealed = seal.sizes
    faults = [f"{name} is not in the seal" for name in sorted(present.keys() - sealed.keys())]
    faults += [f"{name} is in the seal, but missing" for name in sorted(sealed.keys() - present.keys())]
    faults += [
        f"{name} has {present[name]} bytes; it had {sealed[name]} when it was sealed"
        for name in sorted(present.keys() & sealed.keys())
        if present[name] != sealed[name]
    ]
    return faults
